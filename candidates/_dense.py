"""Outputs laid out like their inputs, with the same strides from real and from fake tensors."""

import torch
from torch import Tensor


def empty_dense_like(x: Tensor) -> Tensor:
    """Uninitialised tensor like x: x's strides where x is dense, else x's order of dims without the gaps.

    `torch.empty_like` keeps odd strides of size-1 dims for real tensors and not for fake ones.
    """
    order = sorted(range(x.ndim), key=x.stride, reverse=True)
    return torch.empty_permuted(x.shape, order, dtype=x.dtype, device=x.device)
