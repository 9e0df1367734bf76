"""What is printed at the end holds on 80 columns and says the known positive and every reason."""

import io

from rich.console import Console

from harness.e2e.outcome import outcomes
from harness.schema.verdict import Verdicts
from harness.schema.vocabulary import ArmStatus
from harness.verdict.e2e import judge_cells
from harness.verdict.select import Present
from tests.builders import Arm, decided, measurement
from tests.e2e_builders import CEILING, SLOWED, sequence, stored, workload


def printed(*records: object) -> str:
    named = {"toy-dit": workload(), "toy-vae": workload("toy-vae", steps=())}
    cells = judge_cells(stored(*records), named, Present(op_sha256={}, wiring_sha256={}, pins={}))  # type: ignore[arg-type]
    row = decided(measurement({"inhouse.k": Arm()})).rows[0].model_copy(update={"cells": cells})
    console = Console(file=(out := io.StringIO()), width=80)
    for table in outcomes(Verdicts(rows=(row,), set_aside=()), ("groupnorm_silu",), "cuda"):
        console.print(table)
    return out.getvalue()


def test_a_cell_its_positive_and_its_requests() -> None:
    said = printed(
        *sequence({"inhouse.k": 3.0, CEILING: 5.0, SLOWED: -2.0}, settings={"slowdown_pct": 2.0}),
        *sequence({}, workload="toy-vae", base_ms=200.0),
    )
    assert "groupnorm_silu in toy-dit/step; leaving the op out gains +5." in said
    assert "known positive of 2 %" in said
    assert "50 steps and a decode" in said
    (line,) = [line for line in said.splitlines() if "inhouse.k " in line]
    assert "WIN" in line
    assert max(map(len, said.splitlines())) <= 80


def test_why_the_dynamic_baseline_is_absent_stands_below_the_table() -> None:
    said = printed(*sequence({"inhouse.k": 3.0}, statuses={"torch.compile_dynamic": ArmStatus.BEATEN}))
    assert "  dynamic=True is clearly beaten and left out: broke" in said


def test_a_reason_stands_below_the_table() -> None:
    said = printed(*sequence({"inhouse.k": 3.0}, statuses={"inhouse.k": ArmStatus.FELL_BACK}))
    assert "  inhouse.k: FELL_BACK: broke" in said
