"""The last thing `harness bench` prints reads well in 80 columns."""

import io

import pytest
from rich.console import Console

from harness.report.console import outcome_table
from harness.schema.measurement import Measurement
from harness.schema.vocabulary import ArmStatus, Kind
from tests.builders import H200, LAPTOP, Arm, case, decided, environment, manifest, measurement


def printed(*measurements: Measurement, width: int = 80) -> str:
    cases = {one.case.id: one.case for one in measurements}
    verdicts = decided(*measurements, of=manifest(*cases.values()))
    out = io.StringIO()
    device = measurements[0].environment.device.type
    Console(file=out, width=width).print(outcome_table(verdicts, "groupnorm_silu", device))
    return out.getvalue()


ARMS = {
    "inhouse.two_pass": Arm(1.31),
    "sglang.triton_group_norm_silu": Arm(0.9),
    "torch.two_stage": Arm(1.0, kind=Kind.REWRITE),
    "vllm.k": Arm(1.01, noise_percent=0.5),
    "flashinfer.k": Arm(status=ArmStatus.NOT_INSTALLED, reason="flashinfer is not installed; run `make providers`"),
    "liger.k": Arm(status=ArmStatus.INELIGIBLE, reason="no SiLU"),
    "bad.k": Arm(status=ArmStatus.GATE_FAILED, reason="12 elements"),
    "odd.k": Arm(1.2),
}


@pytest.mark.parametrize("width", [80, 100, 120])
def test_every_candidate_is_there_and_nothing_is_cut(width: int) -> None:
    of, other = case("hunyuan-tile-4f-512x4x32x32", contexts=("conv",)), case("other", model="toy")
    runs = [
        measurement(ARMS, of=of),
        measurement({"odd.k": Arm(0.9)}, of=of, context="conv"),
        # what does not run in one case has its column for the other
        measurement({"flashinfer.k": Arm(1.1), "liger.k": Arm(1.1)}, of=other),
    ]
    made = printed(*runs, width=width)
    assert max(map(len, made.splitlines())) <= width
    for cell in ("1.31", "0.90", "▲", "▼", "1.00", "=", "?", "absent", "n/a", "invalid"):
        assert cell in made
    for name in ARMS:
        assert name in made
    assert "…" not in made
    assert "G: GATE_FAILED: 12 elements (hunyuan-tile-4f-512x4x32x32)" in made
    assert "E: flashinfer is not installed; run `make providers`" in made
    said = " ".join(made.split())
    assert "✅ On NVIDIA H200, some candidate does 1 of 1 deciding steps 1.31" in said
    assert "× as fast as native + torch.compile." in said
    assert "): inhouse.two_pass 1.31" in said
    assert "inhouse.two_pass loses" not in said


def test_candidates_that_ran_nowhere_are_told_below_the_table() -> None:
    gpu = Arm(status=ArmStatus.INELIGIBLE, reason="needs an NVIDIA GPU")
    odd = [{"x.k": Arm(status=ArmStatus.INELIGIBLE, reason=reason)} for reason in ("D is 96", "D is 64")]
    runs = [
        measurement({**ARMS, "a.k": gpu, "b.k": gpu, **odd[n]}, of=case(name)) for n, name in enumerate(("one", "two"))
    ]
    made = printed(*runs)
    said = " ".join(made.split())
    assert "not in the table: a.k, b.k: needs an NVIDIA GPU" in said
    assert "not in the table: flashinfer.k: flashinfer is not installed; run `make providers`" in said
    assert "not in the table: x.k: not eligible for any case, for several reasons" in said
    assert "n/a" not in said
    assert "absent" not in said
    assert made.count("flashinfer is not installed") == 1


def test_every_word_of_the_table_is_explained_and_no_other() -> None:
    ran = {"flashinfer.k": Arm(1.1), "liger.k": Arm(1.1)}
    made = " ".join(printed(measurement(ARMS), measurement(ran, of=case("other"))).split())
    assert "n/a not eligible absent not installed invalid no comparison, reason below µs is" in made
    assert "gate ok" not in made
    bare = " ".join(printed(measurement({"odd.k": Arm(1.2)})).split())
    assert "? INCONCLUSIVE µs is torch.compile's time" in bare


def test_a_reason_that_holds_for_all_is_said_once() -> None:
    cases = [case(f"c{n}") for n in range(5)]
    bad = printed(*(measurement({"bad.k": ARMS["bad.k"]}, of=of) for of in cases))
    assert bad.count("12 elements") == 2, "once as a reason and once in the conclusion"
    assert "c0, c1, c2 and 2 more" in bad
    assert "(on all cases)" in bad


def test_a_rehearsal_says_that_it_decides_nothing() -> None:
    made = printed(measurement({"torch.r": Arm(1.5)}, of=case().rehearsed(), env=environment(LAPTOP)))
    assert "Rehearsal on a CPU: it decides nothing" in made
    assert "✅" not in made


def test_nothing_but_the_baseline() -> None:
    assert "— On NVIDIA H200, there is no candidate" in printed(measurement({}))


def test_the_card_measured_last_is_shown_and_none_is_said() -> None:
    other = environment(H200.model_copy(update={"uuid": "GPU-2"}))
    made = printed(
        measurement({"inhouse.k": Arm(1.5)}),
        measurement({"inhouse.k": Arm(0.9)}, env=other, started_at="2026-12-03T00:00:00Z"),
    )
    assert "(card GPU-2)" in made.splitlines()[0]
    out = io.StringIO()
    Console(file=out).print(outcome_table(decided(), "groupnorm_silu", "cuda"))
    assert "nothing is stored for this device" in out.getvalue()
