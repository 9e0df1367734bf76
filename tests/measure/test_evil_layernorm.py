"""Every candidate of `tests.evil.layernorm_faults` is refused with its own reason, and its honest neighbour is not."""

from typing import Any

import pytest

from candidates.adalayernorm.op import OP as ADALAYERNORM
from candidates.adalayernorm.op import VLLM_OMNI
from candidates.layernorm.op import OP as LAYERNORM
from harness.op import Candidate, Op
from harness.schema.case import Case, Dtype, Layout
from harness.schema.vocabulary import ArmStatus
from tests.evil import layernorm_faults as evil
from tests.rig import arm_of, measured, quick, rmsnorm_case

RULE = "fail the element rule"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)


def case(d: int, layout: Layout, dtype: Dtype, **params: Any) -> Case:
    plain = rmsnorm_case({"B": 2, "S": 6, "D": d}, rehearsal={"B": 2, "S": 3, "D": d}, dtype=dtype, layout=layout)
    return plain.model_copy(update={"params": {"eps": 1e-6, **params}})


def refused(candidate: Candidate, honest: Candidate, op: Op, one: Case, reason: str) -> None:
    of = measured(candidate, honest, case=one, op=op, context=candidate.context)
    arm = arm_of(of, candidate)
    assert (arm.status, reason in arm.reason) == (ArmStatus.GATE_FAILED, True), (arm.status, arm.reason)
    neighbour = arm_of(of, honest)
    assert neighbour.status is ArmStatus.REHEARSED, (neighbour.status, neighbour.reason)


def slow(*values: object) -> Any:
    """A case for `make test-full`: the faults in the normal suite are those that were reported."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("candidate", "d", "weights", "dtype", "layout", "reason"),
    [
        (evil.one_pass_variance, 64, "none", Dtype.FP32, Layout.CONTIGUOUS, "offset: "),
        slow(evil.counts_padding, 48, "none", Dtype.BF16, Layout.CONTIGUOUS, "RMS error"),
        slow(evil.unbiased_variance, 48, "none", Dtype.BF16, Layout.CONTIGUOUS, "RMS error"),
        (evil.reads_weights_as_x, 64, "float32", Dtype.BF16, Layout.CONTIGUOUS, ""),
        slow(evil.walks_slices_as_dense, 64, "none", Dtype.BF16, Layout.SLICED, "contract: layout sliced"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_layernorm(candidate: Candidate, d: int, weights: str, dtype: Dtype, layout: Layout, reason: str) -> None:
    refused(candidate, evil.honest_norm, LAYERNORM, case(d, layout, dtype, weights=weights), reason)


@pytest.mark.parametrize(
    ("candidate", "modulation", "reason"),
    [
        (evil.shift_per_frame, "frame-token", RULE),
        slow(evil.first_batch_modulates_all, "batch", RULE),
        slow(evil.first_batch_modulates_all, "batch-2d", RULE),
        slow(evil.forgets_one, "token", RULE),
        slow(evil.modulates_before_norm, "batch", RULE),
        (evil.rounds_once, "batch", "claims bit_exact"),
        (evil.residual_in_place, "batch", "residual is not defined as mutable but was mutated"),
        slow(evil.normalises_update, "batch", RULE),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_adalayernorm(candidate: Candidate, modulation: str, reason: str) -> None:
    frames = 3 if modulation == "frame-token" else 1
    one = case(64, Layout.CONTIGUOUS, Dtype.BF16, formula=VLLM_OMNI, modulation=modulation, frames=frames)
    refused(candidate, evil.honest, ADALAYERNORM, one, reason)
