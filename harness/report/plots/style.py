"""One look for all pictures: on white and on black, for any colour vision, the same bytes for the same data.

The background is transparent, so every colour must be seen on GitHub's white and on its near-black: the eight of the
arms have a contrast of at least 3 to both, the ink of text and lines the most that one grey can have (4.3). They were
searched for the largest least distance in Oklab between any two, also as seen by protanopes, deuteranopes and
tritanopes; markers differ as well. A test computes all of this.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.paths import keep_whole

COLOURS = ("#3a93fd", "#c30d14", "#ca841d", "#702cf7", "#fa34c4", "#907e76", "#ab09b1", "#725b66")
MARKERS = "os^Dv<>P"
INK = "#767676"
BACKGROUNDS = ("#ffffff", "#0d1117")
"""GitHub's light and dark pages."""
DPI = 150
WIDTH_IN = 9.4
"""Of every picture: about the width of a page on GitHub, so that its text is as large as the page's."""
_LOOK: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that everybody draws the same
    "font.size": 8,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.titlesize": 10,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "grid.color": INK,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "harness",
    "svg.fonttype": "path",
    "path.simplify": False,
}


def style(index: int) -> tuple[str, str]:
    """Colour and marker of the index-th arm; markers move on by one with each round of colours."""
    return COLOURS[index % len(COLOURS)], MARKERS[(index + index // len(COLOURS)) % len(MARKERS)]


@contextmanager
def look() -> Iterator[None]:
    """matplotlib's settings while a figure is made or saved; whatever the user's own are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_LOOK)  # type: ignore[arg-type]  # its keys are a Literal of 300
        yield


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty figure, to be filled inside `look`."""
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def band(ax: Axes, low: float, high: float, label: str, *, vertical: bool = True) -> None:
    """The span in which a difference is none."""
    span = ax.axvspan if vertical else ax.axhspan
    span(low, high, color=INK, alpha=0.2, linewidth=0, zorder=0, label=label)


def hollow(colour: str, valid: bool) -> str:
    """Face of a marker: nothing where the figure does not count, so that a picture never hides a doubt."""
    return colour if valid else "none"


def legend(figure: Figure, columns: int = 2) -> None:
    """Every label of every panel once, below."""
    entries: dict[str, Any] = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write `<stem>.svg` and `<stem>.png`, whole or not at all; the files. Nothing in them says when or by whom."""
    paths = []
    with look():
        for suffix, metadata in ((".svg", {"Date": None, "Creator": None}), (".png", {"Software": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=suffix[1:], dpi=DPI, metadata=metadata)
            path = stem.with_name(stem.name + suffix)
            keep_whole(path, buffer.getvalue())
            paths.append(path)
    return paths
