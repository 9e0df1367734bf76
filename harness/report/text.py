"""How reports write numbers, names and tables in GitHub's Markdown."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.schema.case import Case, Dtype, Layout
from harness.schema.figures import Evidence, RankFigures, Span
from harness.schema.vocabulary import Cache, Kind, Method, Outcome

NOTHING = "–"
"""A cell for which there is no figure."""

_MARKUP = re.compile(r"([\\`*<>|~&$]|\](?=[(\[:])|(?<![^\W_])_|_(?![^\W_]))")
"""What GitHub would read as markup; an underscore inside a word and a bracket that opens no link are left alone."""
_CALLS = re.compile(r"(?<![^\W_])@(?=[A-Za-z0-9])|(?:#|\bGH-)(?=\d)")
"""What GitHub makes a mention or a reference to an issue of, escaped or not: it looks at the text as shown."""
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\s]+")

_DTYPES = {Dtype.BF16: "bf16", Dtype.FP16: "fp16", Dtype.FP32: "fp32"}
_METHODS = {
    Method.CUDA_GRAPH: "CUDA-graph replay",
    Method.EVENTS: "events around queued launches",
    Method.WALL: "wall clock",
}

LEGEND = (
    (
        "✅",
        "µbench: some candidate is FASTER on a deciding model's step; E2E: it wins ≥ 1 % of a measured request and "
        "slows no tested model",
    ),
    ("❌", "every deciding model is measured and no candidate is FASTER (µbench) or can win (E2E)"),
    ("⏳", "in progress: claimed, or measured and open; the note says what is missing"),
    ("🙋", "unclaimed"),
    ("—", "no candidate"),
)
OUTCOMES = (
    (Outcome.FASTER, "the whole 95 % interval is at or beyond a gain of 1 % of the baseline's time"),
    (Outcome.TIE, "the whole interval lies inside ±1 %"),
    (Outcome.SLOWER, "the whole interval is at or beyond a loss of 1 %"),
    (Outcome.INCONCLUSIVE, "the interval reaches over a bound"),
    (Outcome.INVALID, "no comparison can be made; the reason is given"),
    (Outcome.NOT_RUN, "not timed; the reason is given"),
)


def plain(text: str) -> str:
    """Text as Markdown shows it literally, on one line: markup escaped, control characters and newlines as a space.

    A mention and the number of an issue are parted by a space of no width, so that nobody is called and nothing linked.
    """
    return _literal(_flat(text))


def _flat(text: str) -> str:
    return _UNPRINTABLE.sub(" ", text).strip()


def _literal(flat: str) -> str:
    return _CALLS.sub(r"\g<0>&#8203;", _MARKUP.sub(r"\\\1", flat))


def spans(text: str) -> str:
    """Text of which only code between backticks is meant as Markdown; the rest is shown literally."""
    parts = _flat(text).split("`")
    if len(parts) % 2 == 0:
        return plain(text)
    return "".join(code(part) if index % 2 else _literal(part) for index, part in enumerate(parts))


def code(text: str) -> str:
    """Text as a code span that may stand in a table cell."""
    flat = _flat(text).replace("`", "'").replace("\\", "/")
    return f"`{flat}`".replace("|", "\\|") if flat else ""


def kernel_name(name: str) -> str:
    """A device kernel's name without its template and call arguments, which run to a thousand characters in aten."""
    bare, functor = (
        re.split(r"[<(]", name.removeprefix("void ").replace("(anonymous namespace)::", ""), maxsplit=1)[0],
        "",
    )
    if inner := re.search(r"(\w+(?:Impl\w*|Functor|KernelImpl\w*))", name[len(bare) :]):
        functor = f"<{inner.group(1)}>"
    return f"{bare}{functor}"


def link(text: str, target: str) -> str:
    """A link; the text is Markdown already."""
    return f"[{text}]({target})"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A table whose cells are Markdown already; columns in `right` (indices) are aligned right."""
    aligned = set(right)
    rule = ["---:" if column in aligned else "---" for column in range(len(headers))]
    lines = [headers, rule, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def significant(value: float, digits: int = 4) -> str:
    """At least that many significant digits, no exponent: 4 resolve 0.1 %."""
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def us(time_us: float | None) -> str:
    """A time in µs without its unit."""
    return NOTHING if time_us is None else significant(time_us)


def us_span(span: Span | None) -> str:
    """A time in µs with its interval."""
    return NOTHING if span is None else f"{us(span.estimate)} [{us(span.lower)}, {us(span.upper)}]"


def ratio(value: float | None) -> str:
    """A ratio of times, to 0.1 %."""
    return NOTHING if value is None else f"{value:.3f}×"


def ratio_span(span: Span | None) -> str:
    """A ratio of times with its interval."""
    return NOTHING if span is None else f"{ratio(span.estimate)} [{span.lower:.3f}, {span.upper:.3f}]"


def log_span(span: Span | None) -> str:
    """A log-ratio in percent with its interval."""
    return NOTHING if span is None else f"{span.estimate:+.2f} % [{span.lower:+.2f}, {span.upper:+.2f}]"


def share(value: float | None) -> str:
    """A share in percent."""
    return NOTHING if value is None else f"{100 * value:.1f} %"


def mib(size_bytes: float) -> str:
    """A size in MiB."""
    return f"{significant(size_bytes / 2**20, 3)} MiB" if size_bytes else "0 MiB"


def shape(case: Case) -> str:
    """`N×C×T×H×W = 1×512×5×32×32 bf16 channels_last`."""
    names, sizes = "×".join(case.dims), "×".join(map(str, case.dims.values()))
    layout = "" if case.layout is Layout.CONTIGUOUS else f" {case.layout}"
    return f"{names} = {sizes} {_DTYPES[case.dtype]}{layout}"


def short_shape(case: Case) -> str:
    """`1×512×5×32×32 bf16`."""
    return shape(case).split(" = ")[1]


def kind(value: Kind) -> str:
    """A kind in the reader's words."""
    return {Kind.COMPILE: "torch.compile", Kind.NATIVE: "eager"}.get(value, str(value))


def mode(method: Method, cache: Cache) -> str:
    """Execution mode, e.g. `cold L2, CUDA-graph replay`."""
    return f"{cache} L2, {_METHODS[method]}"


@dataclass(frozen=True)
class Links:
    """Where evidence and pages lie: seen from `reports/`, or below the URL of the project's root at some commit."""

    base_url: str = ""

    def results(self, file: str, line: int | None = None) -> str:
        """A file of `results/`, or one line of it."""
        return f"{self.base_url or '..'}/results/{file}" + (f"#L{line}" if line is not None else "")

    def report(self, name: str) -> str:
        """A file of `reports/`."""
        return f"{self.base_url}/reports/{name}" if self.base_url else name


HERE = Links()


def evidence_link(evidence: Evidence, links: Links = HERE) -> str:
    """A link to the line, named by the beginning of its checksum: an altered sample changes it."""
    return link(f"`{evidence.sha256[:12]}`", links.results(evidence.file, evidence.line))


def together(
    of: RankFigures, what: str, shown: Callable[[float], str], named: Callable[[str], str], doubt: str = ""
) -> str:
    """How ranks were timed together, and what each saw for itself: `what`, an arm as `named`, a time as `shown`."""
    seen = "; ".join(f"{named(arm)} {' / '.join(map(shown, times))}" for arm, times in of.seen_us.items())
    return (
        "one device each: times are from the last rank's entry to the last rank's exit; entries lay "
        f"{us(of.skew_us_median)} µs apart (median; {us(of.skew_us_max)} at most){doubt}; each rank's own {what}, "
        f"waiting for others included: {seen}"
    )


def listed(values: Iterable[str]) -> str:
    """Values after one another; more than one is worth seeing."""
    return " / ".join(values)


def some(names: Sequence[str], most: int = 3) -> str:
    """The first few of many names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
