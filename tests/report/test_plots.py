"""The picture shows every ratio with its interval, hollow where it does not count."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from harness.report import plots
from harness.schema.measurement import Measurement
from harness.schema.vocabulary import RunStatus
from tests.builders import H200, Arm, case, decided, environment, manifest, measurement


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure that is saved."""
    seen: list[Figure] = []
    save = Figure.savefig

    def spy(self: Figure, *args: object, **kwargs: object) -> None:
        seen.append(self)
        save(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Figure, "savefig", spy)
    return seen


def draw(file: Path, *measurements: Measurement) -> None:
    cases = {one.case.id: one.case for one in measurements}
    plots.draw(decided(*measurements, of=manifest(*cases.values())).rows[0], file)


def points(figure: Figure, axis: int, name: str) -> list[tuple[float, str]]:
    """x and face colour of a candidate's markers in one panel, from the top."""
    ax = figure.axes[axis]
    index = next(i for i, c in enumerate(plots.COLOURS) if c == name)
    marked = [line for line in ax.lines if line.get_marker() == plots.MARKERS[index] and line.get_color() == name]
    return [(float(np.asarray(line.get_xdata())[0]), str(line.get_markerfacecolor())) for line in marked]


def test_each_case_and_candidate_has_its_point(tmp_path: Path, figures: list[Figure]) -> None:
    arms = {"inhouse.k": Arm(1.5), "sglang.k": Arm(0.8)}
    second = case("b", dims={"N": 1, "C": 512, "T": 5, "H": 32, "W": 64})
    draw(tmp_path / "a.png", measurement(arms), measurement(arms, of=second, twin_speedup=1.05))
    first = points(figures[0], 0, plots.COLOURS[0])
    assert [x for x, _ in first] == pytest.approx([1.5, 1.5], rel=0.01)
    assert [face for _, face in first] == [plots.COLOURS[0], "white"], "hollow where the A/A failed"
    assert [x for x, _ in points(figures[0], 0, plots.COLOURS[1])] == pytest.approx([0.8, 0.8], rel=0.01)
    labels = [label.get_text() for label in figures[0].axes[0].get_yticklabels()]
    assert labels == ["mid\n1×512×5×32×32 bf16", "b\n1×512×5×32×64 bf16"]
    legend = [entry.get_text() for entry in figures[0].legends[0].get_texts()]
    assert {"inhouse.k", "sglang.k", "±1 % (TIE)", "equally large copy"} <= set(legend)
    assert imread(tmp_path / "a.png").shape[1] >= 1200


def test_each_card_has_its_panel_and_untimed_cards_do_not_break_it(tmp_path: Path, figures: list[Figure]) -> None:
    other = environment(H200.model_copy(update={"uuid": "GPU-2"}))
    draw(
        tmp_path / "a.png",
        measurement({"inhouse.k": Arm(1.5)}),
        measurement({"inhouse.k": Arm(1.5)}, env=other, status=RunStatus.CRASHED, reason="bus error"),
    )
    assert len(figures[0].axes) == 2
    assert points(figures[0], 1, plots.COLOURS[0]) == []
    assert "card GPU-2" in figures[0].axes[1].get_title()


def test_colours_and_markers_never_repeat_together() -> None:
    assert len({plots.style(index) for index in range(64)}) == 64
