"""The end-to-end page: every cell with its arms, what was possible, and requests; strings from outside are escaped."""

from harness.report import e2e
from harness.schema.measurement import RanksRecord, RankTimes
from harness.schema.process import QualityRecord
from harness.schema.verdict import Verdicts
from harness.schema.vocabulary import ArmStatus
from harness.verdict.e2e import judge_cells
from harness.verdict.select import Present
from tests.builders import H200, Arm, decided, environment, measurement
from tests.e2e_builders import CEILING, SLOWED, sequence, stored, workload

NOW = Present(op_sha256={"groupnorm_silu": "op-sources"}, wiring_sha256={"groupnorm_silu": "wirings"}, pins={})


def page(*records: object) -> str:
    named = {"toy-dit": workload(), "toy-vae": workload("toy-vae", steps=())}
    cells = judge_cells(stored(*records), named, NOW)  # type: ignore[arg-type]
    row = decided(measurement({"inhouse.k": Arm()})).rows[0]
    return e2e.render(Verdicts(rows=(row.model_copy(update={"cells": cells}),), set_aside=()))


def test_a_cell_shows_its_gain_its_ceiling_and_its_requests() -> None:
    made = page(
        *sequence({"inhouse.k": 3.0, CEILING: 5.0}, op_bytes=4_000_000_000),
        *sequence({}, workload="toy-vae", base_ms=200.0),
    )
    assert "## groupnorm_silu in toy-dit: WIN" in made
    assert "| 50 steps and a decode | 96.2 % | +2." in made
    assert "| roofline of the op |" in made.replace("---: ", "")
    assert "8 of 8" in made
    assert "1.020 (extra-high, claims tolerance)" in made
    assert "PSNR" not in made, "random weights"
    assert "known positive" not in made


def test_real_weights_show_their_figures() -> None:
    real = QualityRecord(
        rms_error=1.0, rms_error_native=1.0, bit_exact=False, psnr_db=46.04, ssim=0.99971, lpips=0.0012
    )
    records = [
        one.model_copy(update={"arms": tuple(arm.model_copy(update={"quality": real}) for arm in one.arms)})
        for one in sequence({"inhouse.k": 3.0})
    ]
    assert "- `inhouse.k` against native's output: PSNR 46.0 dB, SSIM 0.9997, LPIPS 0.0012" in page(*records)


def test_why_the_dynamic_baseline_is_absent_is_said() -> None:
    made = page(*sequence({"inhouse.k": 3.0}, statuses={"torch.compile_dynamic": ArmStatus.BEATEN}))
    (line,) = [line for line in made.splitlines() if line.startswith("| baseline |")]
    assert line.endswith(" ms a run; dynamic=True is clearly beaten and left out: broke |")
    assert "left out: broke" not in page(*sequence({"inhouse.k": 3.0}))


def test_the_known_positive_is_said() -> None:
    made = page(*sequence({"inhouse.k": 0.0, SLOWED: -2.0}, settings={"slowdown_pct": 2.0}))
    (line,) = [line for line in made.splitlines() if line.startswith("| known positive |")]
    assert "the baseline against itself slowed by 2 %: +1.9" in line
    assert line.endswith("WIN |")


def test_a_model_split_over_ranks_says_what_each_saw() -> None:
    pair = ((3000.0, 5000.0), (3000.0, 5000.0))
    seen = RankTimes(durations_us=(pair,) * 8, skews_us=((10.0, 30.0),) * 8, uncertainty_us=0.0)
    records = [
        one.model_copy(
            update={
                "arms": tuple(arm.model_copy(update={"rank_times": seen}) for arm in one.arms),
                "ranks": RanksRecord(devices=("a", "b")),
            }
        )
        for one in sequence({"inhouse.k": 3.0})
    ]
    (line,) = [line for line in page(*records).splitlines() if line.startswith("| ranks |")]
    assert "| 2, one device each: times are from the last rank's entry to the last rank's exit;" in line
    assert "entries lay 20.00 µs apart (median; 30.00 at most)" in line
    assert "inhouse.k 3.00 / 5.00" in line
    alone = sequence({"inhouse.k": 3.0})
    assert "| ranks |" not in page(*alone)
    assert "ranks" not in alone[0].model_dump(), "stored as before"


def test_what_comes_from_a_package_cannot_mark_up_the_page() -> None:
    records = sequence({"inhouse.k": 3.0})
    evil = [one.model_copy(update={"library": "diffusers <b>1</b> | @someone `x`"}) for one in records]
    (line,) = [line for line in page(*evil).splitlines() if line.startswith("| model code |")]
    assert "\\<b\\>" in line
    assert "\\|" in line
    assert "\\`x\\`" in line


def test_an_open_sequence_says_what_would_settle_it() -> None:
    made = page(*sequence({"inhouse.k": 1.3}, 4, noise_pct=0.5))
    assert "INCONCLUSIVE" in made
    assert "more processes would settle it" in made


def test_a_sequence_that_another_card_finished_stands_behind_what_counts() -> None:
    other = environment(H200.model_copy(update={"uuid": "GPU-a-first"}))
    half = [one.model_copy(update={"context": "pad"}) for one in sequence({"inhouse.k": 0.0}, 1, env=other)]
    whole = [one.model_copy(update={"context": "pad"}) for one in sequence({"inhouse.k": 3.0})]
    made = page(*half, *whole)
    counts, _, broken_off = made.partition("# Broken off\n")
    assert "## groupnorm_silu (pad) in toy-dit: WIN" in counts
    assert "GPU-a-first" not in counts
    assert counts.count("| `groupnorm_silu (pad)` |") == 1
    assert "card GPU-a-first" in broken_off
    assert "# Broken off" not in page(*half), "then it is all there is"
