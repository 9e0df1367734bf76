"""Arguments that are views of one storage (q and k of a packed qkv), and kernels that work in place on them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from candidates.qknorm_rope.op import OP, native
from harness.measure.arms import arms_of
from harness.measure.gate import ArmGate, Gate, copied_args, storage_bytes
from harness.op import candidate
from harness.protocol import Task
from harness.schema.case import Layout
from harness.schema.vocabulary import Contract, Kind
from tests.candidates.qknorm_rope_cases import case
from tests.evil.wrong_results import EVIL
from tests.rig import CPU, TOLERANCE, without_inductor


def test_copies_of_views_of_one_storage_share_one_storage() -> None:
    packed = torch.arange(24.0).view(2, 12)
    other = torch.ones(3)
    args = {"q": packed[:, :4], "k": packed[:, 4:8], "other": other, "eps": 1e-6}
    copies = copied_args(args)
    assert copies["q"].untyped_storage().data_ptr() == copies["k"].untyped_storage().data_ptr()
    assert len({t.untyped_storage().data_ptr() for t in (packed, other, copies["q"], copies["other"])}) == 4
    copies["q"].fill_(-1)
    assert copies["k"].tolist() == packed[:, 4:8].tolist()
    assert packed.min() == 0
    assert copies["eps"] == 1e-6


def test_a_shared_storage_is_counted_once() -> None:
    packed = torch.zeros(2, 12)
    assert storage_bytes([packed[:, :4], packed[:, 4:8]]) == packed.numel() * 4
    assert storage_bytes([packed[:, :4], torch.zeros(3)]) == packed.numel() * 4 + 12


@candidate(
    op="qknorm_rope",
    kind=Kind.CUDA,
    provider=EVIL,
    kernels=("never",),
    contract=Contract.TOLERANCE,
    mutates=("q", "k"),
    returns=("q", "k"),
)
def in_place_of_packed(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> None:  # fmt: skip
    """Honest; insists on a q and a k that lie in one storage."""
    assert q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
    new_q, new_k = native(q, k, q_weight, k_weight, cos, sin, eps, across_heads, pairs, table, rounding)
    q.copy_(new_q)
    k.copy_(new_k)


@pytest.mark.parametrize("context", [None, "bhsd", "joint"])
def test_an_in_place_kernel_of_packed_views_is_judged_alone_and_in_context(
    context: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_inductor(monkeypatch)
    packed = case(B=2, S=6, H=4, D=16, layout=Layout.SLICED, contexts=("bhsd", "joint"))
    gate = Gate(OP, packed, OP.context(context) if context else None, TOLERANCE, torch.device("cpu"), seed=1)
    gpu = replace(CPU, type="cuda")
    arms, declined = arms_of(OP, [in_place_of_packed], Task(case=packed, context=context), gpu)
    assert declined == []
    judge = ArmGate(gate, arms[-1])
    for reference in gate.references():
        judge.see(reference)
    assert judge.reason == ""
    assert judge.deterministic
