"""A matrix edited by hand is held against the evidence, as kept here or as pasted from an issue."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UserError
from harness.report.matrix import matrix_markdown
from harness.report.matrix_check import contradictions
from harness.schema.verdict import Verdicts
from harness.schema.vocabulary import Tracker
from tests.builders import H200, Arm, decided, environment, measurement
from tests.report.rendered import ANY_TEXT
from tests.report.rows import K, verdicts

HEAD = "| Type | Op | Triton ref | Existing CUDA ref | µbench | E2E | PR |\n|---|---|---|---|---|---|---|\n"
WON = verdicts(3.0)
BENCHED = decided(measurement({K: Arm(1.5)}))
NOTHING = decided()
Cells = tuple[str, str, str]
"""µbench, E2E and PR."""


def pasted(microbench: str, e2e: str, pr: str, title: str = "GroupNorm + SiLU") -> str:
    """As an issue has it, in the words of its author."""
    return f"Hello,\n\n{HEAD}| Fused | {title} (2) | sglang | — | {microbench} | {e2e} | {pr} |\n\nBye.\n"


@pytest.mark.parametrize("of", [WON, BENCHED, NOTHING])
def test_what_is_printed_holds(of: Verdicts) -> None:
    for markdown in (matrix_markdown(of), matrix_markdown(of, "https://example.com/x").replace("\n", "\r\n")):
        assert contradictions(markdown, "m.md", of) == []


@pytest.mark.defence("matrix_check")
@pytest.mark.parametrize(
    ("of", "cells", "wanted"),
    [
        (
            BENCHED,
            ("✅", "✅ @ada", "🙋"),
            "E2E: says ✅ and must say 🙋, since nothing was measured end to end.",
        ),
        (
            BENCHED,
            ("❌ [post](https://x/1)", "🙋", "🙋"),
            "µbench: says ❌ and must say ✅, since the evidence on NVIDIA H200 is: faster on "
            "1 of 1 deciding steps, 1 measured.",
        ),
        (
            BENCHED,
            ("🙋", "🙋", "🙋"),
            "µbench: says 🙋 and must say ✅, since the evidence on NVIDIA H200 is: faster on "
            "1 of 1 deciding steps, 1 measured.",
        ),
        (
            NOTHING,
            ("—", "🙋", "🙋"),
            "µbench: says — and must say 🙋, since nothing was measured on a GPU.",
        ),
        (
            BENCHED,
            ("✅", "🙋", ":white_check_mark: merged"),
            "PR: says ✅ and must say 🙋, since its E2E is 🙋.",
        ),
        (
            BENCHED,
            ("✅ ❌", "🙋", "🙋"),
            "µbench: holds ✅ and ❌; write ✅, since the evidence on NVIDIA H200 is: faster on "
            "1 of 1 deciding steps, 1 measured.",
        ),
        (
            BENCHED,
            ("✅", "yes", "🙋"),
            "E2E: has no symbol; write 🙋, since nothing was measured end to end.",
        ),
        (
            decided(measurement({K: Arm(1.5)}, env=environment(op_sha256="old"))),
            ("✅", "🙋", "🙋"),
            "µbench: does not say that its evidence is stale; write ✅ (stale), since the op's "
            "sources have changed since.",
        ),
    ],
)
def test_a_symbol_that_contradicts_the_evidence_is_named(of: Verdicts, cells: Cells, wanted: str) -> None:
    assert contradictions(pasted(*cells), "m.md", of) == [f"m.md:5: GroupNorm + SiLU, {wanted}"]


@pytest.mark.parametrize(
    "cells",
    [
        ("✅ @bob [post](https://x/1) (1)", "⏳ @bob", "🙋"),
        (":white_check_mark:", ":hourglass_flowing_sand: @bob", ":raising_hand:"),
        ("✅\ufe0f", "🙋", "🙋"),
    ],
)
def test_a_claim_made_in_the_issue_and_other_spellings_contradict_nothing(cells: Cells) -> None:
    assert contradictions(pasted(*cells), "m.md", BENCHED) == []


def test_what_a_symbol_rests_on_is_checked_where_it_is_said() -> None:
    assert contradictions(pasted("✅ [1 of 1 steps](x)", "🙋", "🙋"), "m.md", BENCHED) == []
    assert contradictions(pasted("✅ [8 of 8 steps](x)", "🙋", "🙋"), "m.md", BENCHED) == [
        "m.md:5: GroupNorm + SiLU, µbench: says 8 of 8 steps and the evidence has 1 of 1 steps."
    ]
    assert contradictions(pasted("✅", "⏳ 1 of 2 models", "🙋"), "m.md", BENCHED) == [
        "m.md:5: GroupNorm + SiLU, E2E: says 1 of 2 models and the evidence has none."
    ]


def test_the_end_to_end_verdict_is_quoted() -> None:
    (problem,) = contradictions(pasted("✅", "❌", "🙋"), "m.md", WON)
    assert problem.startswith(
        "m.md:5: GroupNorm + SiLU, E2E: says ❌ and must say ✅, since the evidence is: inhouse.k wins toy-dit, 50"
    )


def test_rows_are_found_by_title_or_id_and_strange_ones_are_named() -> None:
    for title in ("GroupNorm+SiLU", "[GroupNorm + SiLU](x.md)", "`groupnorm_silu`", "**groupnorm + silu** (1)"):
        assert contradictions(pasted("✅", "🙋", "🙋", title), "m.md", BENCHED) == []
    made = contradictions(pasted("✅", "🙋", "🙋", "GroupNorm | SiLU"), "m.md", BENCHED)
    assert made == ["m.md:5: there is no row 'GroupNorm'; the rows are GroupNorm + SiLU."]
    twice = pasted("✅", "🙋", "🙋") + "\n" + pasted("✅", "🙋", "🙋")
    assert contradictions(twice, "m.md", BENCHED) == [
        "m.md:13: GroupNorm + SiLU stands here again (first on line 5); keep one."
    ]


def test_other_tables_are_left_alone_and_a_file_without_a_matrix_is_refused() -> None:
    other = "| Op | time |\n|---|---|\n| x | ❌ |\n\n"
    assert contradictions(other + pasted("✅", "🙋", "🙋"), "m.md", BENCHED) == []
    with pytest.raises(UserError, match=r"m\.md: there is no table with the columns Op and µbench, E2E or PR"):
        contradictions(other, "m.md", BENCHED)


def test_a_gpus_own_matrix_is_held_against_its_own_evidence() -> None:
    b200 = environment(H200.model_copy(update={"key": "b200", "name": "B200"}))
    both = decided(measurement({K: Arm(1.5)}), measurement({K: Arm(0.9)}, env=b200))
    assert contradictions(pasted("❌", "🙋", "🙋"), "m.md", both.on("b200")) == []
    assert len(contradictions(pasted("❌", "🙋", "🙋"), "m.md", both)) == 1


@settings(max_examples=60, deadline=None)
@given(text=ANY_TEXT, symbol=st.sampled_from(Tracker))
def test_whatever_stands_around_it_one_symbol_is_read_or_named(text: str, symbol: Tracker) -> None:
    """Nothing but sentences comes out, and no wrong symbol passes."""
    cell = re.sub(r"[\r\n|]", " ", text)
    problems = contradictions(pasted(f"{symbol} x {cell}", "🙋", "🙋"), "m.md", BENCHED)
    wrong = symbol is not Tracker.POSITIVE
    assert [problem for problem in problems if "µbench: " in problem] if wrong else True


@given(markdown=st.one_of(st.text(max_size=200), st.text(alphabet="|-\n Op✅E2", max_size=200)))
def test_any_file_gives_sentences_or_is_refused(markdown: str) -> None:
    try:
        problems = contradictions(markdown, "m.md", BENCHED)
    except UserError as error:
        problems = [str(error)]
    assert all(problem.startswith("m.md:") for problem in problems)
