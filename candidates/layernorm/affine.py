"""Weights for kernels that insist on them: made once per set of tensors, as a model would when it loads."""

import torch

from harness.op import Args


def in_float32(args: Args) -> Args:
    """The arguments with weight and bias in fp32; ones and zeros where the norm has none."""
    x, weight, bias = args["x"], args["weight"], args["bias"]
    if weight is None or bias is None:
        weight = torch.ones(x.shape[-1], dtype=torch.float32, device=x.device)
        bias = torch.zeros_like(weight)
    return args | {"weight": weight.float(), "bias": bias.float()}
