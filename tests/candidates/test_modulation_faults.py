"""Reported faults of modulation and channel-norm kernels, written as candidates: refused, each for its own reason."""

from typing import Any

import pytest

from candidates.adaln_modulation.op import OP as MODULATION
from candidates.rmsnorm_vae.op import OP as RMSNORM_VAE
from harness.op import Candidate, Op
from harness.schema.case import Case, Confidence, Dtype, Layout
from harness.schema.vocabulary import ArmStatus, RunStatus
from tests.evil import channel_norm, modulation
from tests.rig import arm_of, measured, quick

L = Layout


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)


def case(params: dict[str, Any], dims: dict[str, int], layout: Layout = L.CONTIGUOUS, **rehearsal: int) -> Case:
    return Case(
        id="tiny",
        model="toy",
        dims=dims,
        params=params,
        dtype=Dtype.BF16,
        layout=layout,
        calls=1,
        step="a step of a toy",
        source="made up for a test of the gate",
        confidence=Confidence.QUOTED,
        rehearsal={**dims, **rehearsal},
    )


def refused(op: Op, honest: Candidate, candidate: Candidate, one: Case, reason: str) -> None:
    """The candidate fails the gate for that reason; the honest one, judged after it, does not."""
    of = measured(candidate, honest, case=one, op=op)
    arm = arm_of(of, candidate)
    assert (arm.status, reason in arm.reason) == (ArmStatus.GATE_FAILED, True), (arm.status, arm.reason)
    neighbour = arm_of(of, honest)
    assert neighbour.status is ArmStatus.REHEARSED, (neighbour.status, neighbour.reason)
    assert of.status is RunStatus.MEASURED, of.reason


def modulate(scale_per: str, shift_per: str = "", **more: Any) -> dict[str, Any]:
    plain = {"form": "scale_shift", "scale_per": scale_per, "shift_per": shift_per or scale_per, "rows": 1,
             "chunks": 1, "table": "bfloat16", "scale_constant": 1, "upcast": False}  # fmt: skip
    return {**plain, **more}


BSD = {"B": 2, "S": 12, "D": 32}
RULE = "fail the element rule"


@pytest.mark.parametrize(
    ("candidate", "params", "dims", "reason"),
    [
        (modulation.frame_index_for_tokens, modulate("frame", "token", rows=3), BSD, RULE),
        (modulation.first_batch, modulate("batch"), BSD, RULE),
        (modulation.first_batch, modulate("frame", rows=3), {**BSD, "B": 1}, "contract: layout contiguous"),
        (modulation.chunks_as_if_dense, modulate("batch", chunks=6), BSD, RULE),
        (modulation.swapped, modulate("token"), BSD, RULE),
        (modulation.forgets_the_constant, modulate("batch_2d"), BSD, RULE),
        (modulation.claims_one_rounding_is_exact, modulate("batch"), BSD, "claims bit_exact, but "),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_modulation(candidate: Candidate, params: dict[str, Any], dims: dict[str, int], reason: str) -> None:
    refused(MODULATION, modulation.honest, candidate, case(params, dims), reason)


def test_one_rounding_is_no_fault_in_itself() -> None:
    of = measured(modulation.one_rounding, case=case(modulate("batch"), BSD), op=MODULATION)
    assert arm_of(of, modulation.one_rounding).status is ArmStatus.REHEARSED


NCHW = {"N": 2, "C": 48, "H": 6, "W": 8}


@pytest.mark.parametrize(
    ("candidate", "dims", "layout", "reason"),
    [
        (channel_norm.over_last_dim, NCHW, L.CONTIGUOUS, RULE),
        (channel_norm.over_everything, NCHW, L.CHANNELS_LAST, RULE),
        (channel_norm.eps_in_the_mean, NCHW, L.CONTIGUOUS, "small: "),
        (channel_norm.without_root, NCHW, L.CONTIGUOUS, RULE),
        (channel_norm.contiguous_alone, NCHW, L.CHANNELS_LAST, RULE),
        (channel_norm.contiguous_alone, NCHW, L.CONTIGUOUS, "contract: layout channels_last"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_channel_norm(candidate: Candidate, dims: dict[str, int], layout: Layout, reason: str) -> None:
    params = {"eps": 1e-6, "upcast": False, "bias": False}
    refused(RMSNORM_VAE, channel_norm.honest, candidate, case(params, dims, layout, C=48), reason)
