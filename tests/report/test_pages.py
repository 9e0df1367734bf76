"""What a reviewer looks for is in the matrix, on the page and in the rehearsal."""

import re
from pathlib import Path

import pytest

from harness.report import matrix, page, rehearsal
from harness.report.tables import context_flag
from harness.schema.case import Confidence
from harness.schema.measurement import Measurement
from harness.schema.verdict import ArmVerdict
from harness.schema.vocabulary import ArmStatus, Contract, Kind, Outcome, Role, RunStatus
from tests.builders import H200, LAPTOP, Arm, case, decided, environment, manifest, measurement
from tests.report.golden import ROOT

PAGE = (ROOT / "reports" / "groupnorm_silu.md").read_text(encoding="utf-8")


def page_of(*measurements: Measurement) -> str:
    cases = {one.case.id: one.case for one in measurements}
    return page.render(decided(*measurements, of=manifest(*cases.values())).rows[0])


@pytest.mark.parametrize(
    "fact",
    [
        # the conclusion and who says it
        "**On Made-up GPU, some candidate does 1 of 1 deciding steps 1.35",
        "\n- toy-vae (decode of one 4x32x32 latent tile): inhouse.gn 1.35",
        "| software | driver 570.86.15, CUDA 13.0, torch 2.11.0+cu130, triton 3.6.0, demo 1.2 |",
        "| card | GPU-11111111-2222-3333-4444-555555555555 |",
        "| execution | cold L2, CUDA-graph replay |",
        # weighting and coverage
        "| `inhouse.gn` ← leader | triton | 1.35",
        "| 1/2 |",
        "toy-image, decode of one 4x32x32 latent tile (does not decide the row)",
        # gate, cost, reasons
        "| `demo.gn` | passed | passed | 7/2621440 | 0 | 2 | 1 | 0.950 | no | tolerance | yes |",
        "Inputs: normal, large, small, offset.",
        "| BLOCK: 4096 | `gn_kernel` |",
        "| `demo.gn` | triton | INELIGIBLE | contiguous \\| packed only |",
        "| `demo.gn` | triton | GATE_FAILED | 12 elements beyond the rule |",
        "| `other.gn` | triton | NOT_INSTALLED | other.gn is not installed; run \\`make providers\\` |",
        # rivals, copy and floor
        "| times as fast as | `demo.gn` | `torch.two_stage` |",
        "the op's stated floor 371.0 µs",
        # context, clocks, wall time, evidence
        "**wins alone, loses in context**",
        "Ours over CUPTI through the torch profiler: median 1.010",
        "callables, of which 15 agree.",
        "| **all** | **6.0** | **37.0** | **12.0** | **18.0** | **73.0** |",
        "(../results/made-up-gpu-132sm-141gib-driver570/groupnorm_silu.jsonl#L2); "
        "other measurements of it that were passed over: 1",
    ],
)
def test_the_page_holds(fact: str) -> None:
    assert fact in PAGE


def test_the_weighted_result_is_printed_where_the_geomean_differs() -> None:
    """The worked example: a geomean of 1.23× and a slowdown where the calls are."""
    speedups = {"s1": (1.54, 4), "s2": (1.50, 4), "s3": (1.33, 8), "s4": (0.97, 400), "s5": (0.96, 390)}
    runs = [
        measurement({"inhouse.k": Arm(speedup)}, of=case(name, calls=calls), noise_percent=0.1)
        for name, (speedup, calls) in speedups.items()
    ]
    made = page_of(*runs)
    line = next(line for line in made.splitlines() if line.startswith("| `inhouse.k` ← leader"))
    assert "| 0.97" in line
    assert "| SLOWER | 1.23" in line
    assert "no candidate is faster than native + torch.compile on any deciding step." in made


@pytest.mark.parametrize(
    ("arms", "status", "sentence"),
    [
        (
            {"inhouse.k": Arm(1.0)},
            RunStatus.MEASURED,
            "no candidate is faster than native + torch.compile on any deciding step.**\n\n- hunyuan-vae (decode of "
            "one 4x32x32 latent tile): inhouse.k 1.0",
        ),
        ({}, RunStatus.MEASURED, "there is no candidate to compare with native + torch.compile.**\n\n| item"),
        (
            {"inhouse.k": Arm(1.0)},
            RunStatus.THROTTLED,
            "the row is open: 0 of 1 deciding steps are decided, none of them FASTER.**\n\n- hunyuan-vae (decode "
            "of one 4x32x32 latent tile): INVALID, THROTTLED: void",
        ),
        (
            {"inhouse.k": Arm(status=ArmStatus.INELIGIBLE, reason="odd")},
            RunStatus.MEASURED,
            "no candidate is faster than native + torch.compile on any deciding step.**\n\n- hunyuan-vae (decode of "
            "one 4x32x32 latent tile): NOT_RUN, no candidate is eligible",
        ),
    ],
)
def test_the_lead_and_its_steps(arms: dict[str, Arm], status: RunStatus, sentence: str) -> None:
    assert f"**On NVIDIA H200, {sentence}" in page_of(measurement(arms, status=status, reason="void"))


def test_the_lead_gives_the_range_of_what_is_faster() -> None:
    steps = {"a": 1.5, "b": 1.2, "c": 1.0}
    runs = [
        measurement(
            {"inhouse.k": Arm(ratio)}, of=case(name).model_copy(update={"step": f"step {name}"}), noise_percent=0.1
        )
        for name, ratio in steps.items()
    ]
    made = page_of(*runs)
    assert re.search(r"some candidate does 2 of 3 deciding steps 1\.(19|20)\d× to 1\.(49|50)\d× as fast", made), made[
        :400
    ]


def test_invalid_times_are_shown_and_their_reason_is_said_once_in_each_place() -> None:
    made = page_of(measurement({"inhouse.k": Arm(1.5), "inhouse.l": Arm(1.2)}, twin_speedup=1.05))
    line = next(line for line in made.splitlines() if line.startswith("| `inhouse.k` | triton | 66."))
    assert "| INVALID |" in line
    assert "INVALID, as above" in next(
        line for line in made.splitlines() if line.startswith("| `inhouse.k` | triton | – |")
    )
    said = [line for line in made.splitlines() if "A/A failed: twin +4.8" in line]
    assert [line[:10] for line in said] == ["- hunyuan-", "**hunyuan-", "<details><"]
    assert sum(line.count("A/A failed: twin") for line in said) == 3


def test_a_reason_that_candidates_share_is_a_note_and_one_alone_stays_beside_its_candidate() -> None:
    reasons = {"k": "12 off", "l": "12 off", "m": "13 off"}
    arms = {f"inhouse.{name}": Arm(status=ArmStatus.GATE_FAILED, reason=reason) for name, reason in reasons.items()}
    made = page_of(measurement({"inhouse.good": Arm(1.5), **arms}))
    at = made.index("| candidate | kind |")
    by_name = {line.split("`")[1]: line for line in made[at:].splitlines()[2:6]}
    assert "| INVALID (1) |" in by_name["inhouse.k"]
    assert "| INVALID (1) |" in by_name["inhouse.l"]
    assert "| INVALID: " in by_name["inhouse.m"]
    assert "13 off" in by_name["inhouse.m"]
    note = made[at:].splitlines()[7]
    assert note.startswith("(1) ")
    assert "12 off" in note


def test_each_pair_of_rivals_is_printed_once_the_faster_first() -> None:
    made = page_of(measurement({"inhouse.a": Arm(1.2), "inhouse.b": Arm(1.5), "inhouse.c": Arm(1.0)}))
    at = made.index("| times as fast as | `inhouse.a` | `inhouse.c` |")
    first, second = made[at:].splitlines()[2:4]
    assert first.startswith("| `inhouse.b` | 1.2")
    assert "| 1.5" in first
    assert second.startswith("| `inhouse.a` |  | 1.2")


@pytest.mark.parametrize(
    ("base_us", "profiler_us", "agrees"),
    [
        (100.0, 100.0, "yes"),
        (100.0, 97.1, "yes"),
        (100.0, 95.0, "**no**"),
        (100.0, 103.9, "**no**"),
        (3.0, 2.0, "yes"),
        (3.0, 1.2, "**no**"),
        (3.0, 3.4, "yes"),
        (3.0, 4.0, "**no**"),
    ],
)
def test_clocks_agree_within_the_stated_bounds(base_us: float, profiler_us: float, agrees: str) -> None:
    """One kernel: a gap of 1 µs, and 3 % or half a microsecond."""
    of = measurement({}, base_us=base_us, noise_percent=0.001)
    arms = tuple(arm.model_copy(update={"profiler_us": profiler_us}) for arm in of.arms)
    made = page_of(of.model_copy(update={"arms": arms}))
    row = next(line for line in made.splitlines() if line.startswith("| `mid` | `torch.compile` |"))
    assert row.endswith(f"| {agrees} |")
    assert f"2 callables, of which {2 if agrees == 'yes' else 0} agree." in made


def test_notes_of_the_gate_are_printed_once_for_all_cases() -> None:
    runs = []
    for name in ("mid", "large"):
        of = measurement({"inhouse.k": Arm(1.5)}, of=case(name))
        noted = tuple(
            arm.model_copy(update={"gate": arm.gate.model_copy(update={"notes": ("raises on: empty",)})})
            if arm.id == "inhouse.k" and arm.gate
            else arm
            for arm in of.arms
        )
        runs.append(of.model_copy(update={"arms": noted}))
    made = page_of(*runs)
    assert made.count("raises on: empty") == 1
    assert "- `inhouse.k`: raises on: empty (2 measurements)" in made


def test_what_a_context_does_to_a_gain() -> None:
    arm = ArmVerdict(
        id="k",
        kind=Kind.TRITON,
        role=Role.CANDIDATE,
        contract=Contract.TOLERANCE,
        provider_version=None,
        status=ArmStatus.OK,
        outcome=Outcome.FASTER,
        reason="",
    )
    tie, slower = (arm.model_copy(update={"outcome": outcome}) for outcome in (Outcome.TIE, Outcome.SLOWER))
    assert context_flag(arm, slower) == "**wins alone, loses in context**"
    assert context_flag(arm, tie) == "**gain is gone in context**"
    assert context_flag(arm, arm) == context_flag(tie, slower) == context_flag(None, slower) == ""


def test_measurements_without_cross_checks_say_so() -> None:
    of = measurement({"inhouse.k": Arm(1.5)})
    arms = tuple(one.model_copy(update={"do_bench_us": None}) for one in of.arms)
    assert "These measurements were made without `--cross-checks` (do_bench and CUPTI)." in page_of(
        of.model_copy(update={"arms": arms})
    )


def test_a_card_that_does_not_decide_is_told_in_a_line_under_its_uuid() -> None:
    other = environment(H200.model_copy(update={"uuid": "GPU-2"}))
    made = page_of(measurement({"inhouse.k": Arm(1.5)}), measurement({"inhouse.k": Arm(0.9)}, env=other))
    assert "## NVIDIA H200 (card GPU-11111111-2222-3333-4444-555555555555)" in made
    assert "## NVIDIA H200 (card GPU-2)" not in made
    (line,) = [line for line in made.splitlines() if "card GPU-2" in line]
    assert line.startswith("- On NVIDIA H200 (card GPU-2), no candidate is faster")
    assert "[evidence](../results/" in line


def test_dims_from_memory_are_said_to_be_left_out() -> None:
    runs = [
        measurement({"inhouse.k": Arm(1.5)}),
        measurement({"inhouse.k": Arm(1.5)}, of=case("recalled", confidence=Confidence.MEMORY)),
    ]
    assert "Left out, since their dims are from memory: recalled." in page_of(*runs)


def test_a_rehearsal_has_its_own_report_and_never_enters_the_matrix() -> None:
    of = case().rehearsed()
    arms = {
        "inhouse.k": Arm(status=ArmStatus.REHEARSED, reason="in the interpreter"),
        "torch.r": Arm(1.5, kind=Kind.REWRITE),
        "vllm.k": Arm(status=ArmStatus.INELIGIBLE, reason="needs an NVIDIA GPU", kind=Kind.CUDA),
    }
    verdicts = decided(measurement(arms, of=of, env=environment(LAPTOP)))
    made = rehearsal.render(verdicts)
    assert "not timed: rehearsed in Triton's interpreter" in made
    assert "| `torch.r` | rewrite | 66." in made
    assert "NOT_RUN: needs an NVIDIA GPU" in made
    assert "| 🙋 | 🙋 | 🙋 |" in matrix.matrix_markdown(verdicts)
    assert "Fake CPU" not in matrix.matrix_markdown(verdicts)
    assert "Nothing was rehearsed yet." in rehearsal.render(decided())


def test_templates_are_packed_with_the_package() -> None:
    import tomllib

    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["setuptools"]["package-data"]["harness"] == ["report/templates/*.j2"]


def test_a_measurement_shared_by_cases_is_counted_once_in_wall_time_and_clocks() -> None:
    of = case()
    shared = manifest(of, case("b", model="wan", dims=of.dims))
    row = decided(measurement({"inhouse.k": Arm(1.5)}), of=shared).rows[0]
    made = page.render(row)
    assert "| **all** | **1.5** |" in made
    assert "3 callables" in made
    assert "measured for `mid`, which has the same shape" in made
    twins = decided(measurement({"torch.r": Arm(1.5)}, of=of.rehearsed(), env=environment(LAPTOP)), of=shared)
    rehearsed = rehearsal.render(twins)
    assert rehearsed.count("`torch.r`") == 1
    assert "| `mid` and 1 more |" in rehearsed
