"""The gate over two ranks refuses every fault, for its own reason, beside honest neighbours that it lets through."""

from typing import Any

import pytest

from tests.candidates import ranked

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def judged() -> dict[str, Any]:
    first, second = ranked.run("tests.candidates.allreduce_evil", 2)
    assert first == second
    return first


FAULTS = {
    "forgets_the_last_rank": "fail the element rule",
    "residual_of_every_rank": "fail the element rule",
    "norm_before_sum": "fail the element rule",
    "stale_epoch": "fail the element rule",
    "own_part_first": "the outputs of rank 1 are not those of rank 0",
    "sum_in_live_residual": "Argument residual is not defined as mutable but was mutated",
    "reads_the_weight_as_fp32": "fail the element rule",
    "drops_the_last_tokens": "fail the element rule",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_candidate_is_refused(judged: dict[str, Any], name: str) -> None:
    status, reason = judged[f"evil.{name}"]
    assert status == "GATE_FAILED", reason
    assert FAULTS[name] in reason


def test_honest_neighbours_pass(judged: dict[str, Any]) -> None:
    for name in ("honest", "honest_in_place"):
        status, reason = judged[f"evil.{name}"]
        assert status != "GATE_FAILED", reason
    assert len(judged) == 4 + len(FAULTS) + 2
