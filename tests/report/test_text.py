"""What a report prints is what was meant, whatever the text holds, and no figure loses 0.1 %."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.report import text
from harness.schema.case import Dtype, Layout
from harness.schema.figures import Evidence, Span
from harness.schema.vocabulary import Cache, Kind, Method
from tests.builders import case
from tests.report.rendered import ANY_TEXT, GITHUB, cells, flat, shown


@pytest.mark.defence("report_escaping")
@given(first=ANY_TEXT, second=ANY_TEXT)
def test_any_text_is_one_cell_and_reads_as_written(first: str, second: str) -> None:
    made = text.table(("a", "b"), [(text.plain(first), text.plain(second)), ("end", "x")])
    assert cells(made) == [["a", "b"], [flat(first), flat(second)], ["end", "x"]]


@given(ANY_TEXT)
def test_any_text_is_one_code_span(value: str) -> None:
    made = text.table(("a", "b"), [(text.code(value), "x"), ("end", "x")])
    expected = flat(value).replace("`", "'").replace("\\", "/")
    assert [row[0].strip() for row in cells(made)] == ["a", expected.strip(), "end"]


@given(ANY_TEXT)
def test_text_with_code_between_backticks_is_one_cell(value: str) -> None:
    """Nothing but code spans is read as markup."""
    rows = cells(text.table(("a", "b"), [(text.spans(value), "x"), ("end", "x")]))
    assert [row[1] for row in rows] == ["b", "x", "x"]


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        ("sglang `rms_norm_fn`, `a|b`", "sglang `rms_norm_fn`, `a\\|b`"),
        ("<b>x</b> `k`", "\\<b\\>x\\</b\\> `k`"),
        ("half `open", "half \\`open"),
    ],
)
def test_references_keep_their_code(raw: str, kept: str) -> None:
    assert text.spans(raw) == kept


@pytest.mark.parametrize(
    ("raw", "printed"),
    [
        ("@ada and (@ada)", "@&#8203;ada and (@&#8203;ada)"),
        ("_@ada", "\\_@&#8203;ada"),
        ("ada@example.com 5 @ 6", "ada@example.com 5 @ 6"),
        ("sglang #22814, o/r#7, GH-9, C# 3", "sglang #&#8203;22814, o/r#&#8203;7, GH-&#8203;9, C# 3"),
    ],
)
def test_nobody_is_called_and_no_issue_is_linked(raw: str, printed: str) -> None:
    """An escape would not help: GitHub looks for these in the text as shown."""
    assert text.plain(raw) == printed


@given(ANY_TEXT)
def test_a_note_is_one_list_item(value: str) -> None:
    tokens = GITHUB.parse(f"1. note {text.plain(value)}\n2. next")
    assert [shown(token).strip() for token in tokens if token.type == "inline"] == [
        f"note {flat(value)}".strip(),
        "next",
    ]


@pytest.mark.parametrize(
    ("raw", "escaped"),
    [("two_pass", "two_pass"), ("[1.2, 1.3]", "[1.2, 1.3]"), ("a|b\nc", "a\\|b c"), ("_x_", "\\_x\\_"), ("", "")],
)
def test_ordinary_text_stays_legible(raw: str, escaped: str) -> None:
    assert text.plain(raw) == escaped


@given(st.floats(1e-4, 1e7))
def test_a_time_resolves_a_tenth_of_a_percent(value: float) -> None:
    assert float(text.us(value)) == pytest.approx(value, rel=5.1e-4)
    assert "e" not in text.us(value)


@pytest.mark.parametrize(
    ("value", "said"),
    [(17.2, "17.20"), (331.64, "331.6"), (4846.2, "4846"), (12345.6, "12346"), (0.0, "0"), (None, "–")],
)
def test_times(value: float | None, said: str) -> None:
    assert text.us(value) == said


def test_ratios_and_intervals_carry_their_marks() -> None:
    span = Span(estimate=1.3506, lower=1.3449, upper=1.36)
    assert text.ratio_span(span) == "1.351× [1.345, 1.360]"
    assert text.us_span(span) == "1.351 [1.345, 1.360]"
    assert text.log_span(Span(estimate=0.2, lower=-0.101, upper=0.5)) == "+0.20 % [-0.10, +0.50]"
    assert (text.ratio_span(None), text.share(0.9512), text.share(None)) == ("–", "95.1 %", "–")
    assert (text.mib(0), text.mib(3 * 2**20), text.mib(2**30)) == ("0 MiB", "3.00 MiB", "1024 MiB")


def test_shapes_name_their_dims_in_order() -> None:
    of = case().model_copy(update={"layout": Layout.CHANNELS_LAST, "dtype": Dtype.FP16})
    assert text.shape(of) == "N×C×T×H×W = 1×512×5×32×32 fp16 channels_last"
    assert text.short_shape(case()) == "1×512×5×32×32 bf16"
    assert text.mode(Method.CUDA_GRAPH, Cache.COLD) == "cold L2, CUDA-graph replay"
    assert (text.kind(Kind.NATIVE), text.kind(Kind.TRITON)) == ("eager", "triton")


def test_evidence_links_to_its_line_and_can_be_made_absolute() -> None:
    evidence = Evidence(file="gpu/op.jsonl", line=7, sha256="abcdef0123456789")
    assert text.evidence_link(evidence) == "[`abcdef012345`](../results/gpu/op.jsonl#L7)"
    made = text.evidence_link(evidence, text.Links("https://x/blob/main"))
    assert made == "[`abcdef012345`](https://x/blob/main/results/gpu/op.jsonl#L7)"
    assert text.Links().report("op.md") == "op.md"
    assert text.Links("https://x").report("op.md") == "https://x/reports/op.md"


def test_every_symbol_and_outcome_is_explained() -> None:
    from harness.schema.vocabulary import Outcome, Tracker

    assert [symbol for symbol, _ in text.LEGEND] == ["✅", "❌", "⏳", "🙋", "—"]
    assert {symbol for symbol, _ in text.LEGEND} == set(Tracker)
    assert {outcome for outcome, _ in text.OUTCOMES} == set(Outcome)
    assert all(unicodedata.name(symbol) for symbol, _ in text.LEGEND)
