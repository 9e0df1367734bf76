"""adaLN modulation candidates with faults that were reported in public; the gate must refuse each."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from candidates._dense import empty_dense_like
from candidates.adaln_modulation.op import native
from harness.op import Candidate, candidate
from harness.schema.vocabulary import Contract, Kind
from tests.evil.wrong_results import EVIL

Tables = tuple[Tensor, Tensor | None]


def _kernel(
    tables: Callable[[Tensor, Tensor, Tensor | None], Tables], name: str, contract: Contract = Contract.TOLERANCE
) -> Candidate:
    """Native on tables that the fault has read wrongly."""

    def run(
        x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
        scale_constant: int, upcast: bool,
    ) -> Tensor:  # fmt: skip
        y = native(x, *tables(x, scale, shift), residual, index, scale_constant, upcast)
        return empty_dense_like(x).copy_(y)

    make: Any = candidate(
        op="adaln_modulation", kind=Kind.TRITON, provider=EVIL, kernels=("never",), contract=contract, name=name
    )
    made: Candidate = make(run)
    return made


def _as_found(x: Tensor, scale: Tensor, shift: Tensor | None) -> Tables:
    return scale, shift


def _frame_index_for_tokens(x: Tensor, scale: Tensor, shift: Tensor | None) -> Tables:
    """sglang PR 18673: with a scale per frame, the shift per token is read at the row of the token's frame."""
    if scale.ndim != 4 or shift is None or shift.ndim != 3 or not x.numel():
        return scale, shift
    frame = torch.arange(x.shape[1]) // (x.shape[1] // scale.shape[1])
    return scale, shift[:, frame]


def _first_batch(x: Tensor, scale: Tensor, shift: Tensor | None) -> Tables:
    """Every batch element gets the first one's tables, as `scale[0]` in an adapter gives."""
    return scale[:1].expand_as(scale), None if shift is None else shift[:1].expand_as(shift)


def _chunks_as_if_dense(x: Tensor, scale: Tensor, shift: Tensor | None) -> Tables:
    """Walks the chunk of a wider table as if it were a tensor of its own."""

    def walked(table: Tensor) -> Tensor:
        return table.as_strided(table.shape, torch.empty(table.shape).stride())

    return walked(scale), None if shift is None else walked(shift)


def _swapped(x: Tensor, scale: Tensor, shift: Tensor | None) -> Tables:
    """Scale and shift in each other's place: hidden where both are drawn alike but for a gate."""
    return (scale, shift) if shift is None else (shift, scale)


def _forgets_the_constant(x: Tensor, scale: Tensor, shift: Tensor | None) -> Tables:
    """x * scale + shift."""
    return scale - 1, shift


def _one_rounding(x: Tensor, scale: Tensor, shift: Tensor | None) -> Tables:
    """All in fp32, one rounding: nearer to the truth, and not what eager PyTorch gives."""
    return scale.float(), None if shift is None else shift.float()


honest = _kernel(_as_found, "honest", Contract.BIT_EXACT)
frame_index_for_tokens = _kernel(_frame_index_for_tokens, "frame_index_for_tokens")
first_batch = _kernel(_first_batch, "first_batch")
chunks_as_if_dense = _kernel(_chunks_as_if_dense, "chunks_as_if_dense")
swapped = _kernel(_swapped, "swapped")
forgets_the_constant = _kernel(_forgets_the_constant, "forgets_the_constant")
one_rounding = _kernel(_one_rounding, "one_rounding")
claims_one_rounding_is_exact = _kernel(_one_rounding, "claims_one_rounding_is_exact", Contract.BIT_EXACT)
