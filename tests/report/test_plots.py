"""Pictures show each figure with its interval, hollow where it does not count, and are read on white and on black."""

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread

from harness.history import history
from harness.report.pictures import Picture, pictures_of, shown
from harness.report.plots import draw_row
from harness.report.plots.forest import draw_forest
from harness.report.plots.history import draw_history
from harness.report.plots.roofline import draw_roofline
from harness.report.plots.run import draw_run
from harness.report.plots.speedup import draw_speedup
from harness.report.plots.style import BACKGROUNDS, COLOURS, INK, save, style
from harness.schema.measurement import Measurement
from harness.schema.verdict import RowVerdict
from harness.verdict.e2e import judge_cells
from tests.builders import H200, PRESENT, Arm, case, decided, environment, manifest, measurement
from tests.e2e_builders import process, stored, workload
from tests.history.nights import nights

ARMS = {"inhouse.k": Arm(1.5), "sglang.k": Arm(0.8)}
OTHER = case("b", dims={"N": 1, "C": 512, "T": 5, "H": 32, "W": 64})


def row_of(*measurements: Measurement) -> RowVerdict:
    cases = {one.case.id: one.case for one in measurements}
    return decided(*measurements, of=manifest(*cases.values())).rows[0]


def points(ax: Axes, index: int) -> list[tuple[float, float, str]]:
    """x, y and face colour of the index-th candidate's markers."""
    colour, marker = style(index)
    marked = [line for line in ax.lines if line.get_marker() == marker and line.get_color() == colour]
    return [
        (
            float(np.asarray(line.get_xdata())[0]),
            float(np.asarray(line.get_ydata())[0]),
            str(line.get_markerfacecolor()),
        )
        for line in marked
    ]


def labels_of(figure: Figure) -> list[str]:
    return [entry.get_text() for legend in figure.legends for entry in legend.get_texts()]


def test_each_case_and_candidate_has_its_point() -> None:
    row = row_of(measurement(ARMS), measurement(ARMS, of=OTHER, twin_speedup=1.05))
    figure = draw_speedup(row)
    (ax,) = figure.axes
    first = points(ax, 0)
    assert [x for x, _, _ in first] == pytest.approx([1.5, 1.5], rel=0.01)
    assert [face for _, _, face in first] == [COLOURS[0], "none"], "hollow where the A/A failed"
    assert [x for x, _, _ in points(ax, 1)] == pytest.approx([0.8, 0.8], rel=0.01)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["mid\n1×512×5×32×32 bf16", "b\n1×512×5×32×64 bf16"]
    assert {"inhouse.k", "sglang.k", "±1 % (TIE)", "equally large copy"} <= set(labels_of(figure))


def test_the_roofline_is_the_copy_of_the_run() -> None:
    row = row_of(measurement(ARMS), measurement(ARMS, of=OTHER, base_us=200.0))
    (ax,) = draw_roofline(row).axes
    (line,) = (one for one in ax.lines if len(np.asarray(one.get_xdata())) == 2)
    mib = [4 * one.case.numel / 2**20 for one in row.cards[0].comparisons]
    assert np.asarray(line.get_xdata()).tolist() == pytest.approx(mib)
    assert np.asarray(line.get_ydata()).tolist() == pytest.approx([45.0, 90.0])
    assert [(x, y) for x, y, _ in points(ax, 0)] == [
        pytest.approx((mib[0], 100 / 1.5), rel=0.01),
        pytest.approx((mib[1], 200 / 1.5), rel=0.01),
    ]


def test_a_run_shows_what_the_same_code_differed_by_and_what_the_gpu_did() -> None:
    row = row_of(
        measurement(ARMS, control_speedup=1.0, twin_speedup=1.004, started_at="2026-12-01T10:00:00Z"),
        measurement(ARMS, of=OTHER, control_speedup=1.03, started_at="2026-12-01T09:00:00Z"),
    )
    figure = draw_run(row)
    differences, _, clock, power, hottest = figure.axes
    control = [line for line in differences.lines if line.get_marker() == "o"]
    assert [float(np.asarray(line.get_ydata())[0]) for line in control] == pytest.approx([2.96, 0.0], abs=0.15)
    assert [float(value) for value in np.asarray(power.lines[0].get_ydata())] == [412.0, 412.0]
    assert [float(value) for value in np.asarray(hottest.lines[0].get_ydata())] == [51.0, 51.0]
    assert len(clock.lines) == 2
    assert {"the same code again", "a second compile of the same formula"} <= set(labels_of(figure))


def cells_row() -> RowVerdict:
    gains = {"inhouse.k": 1.8, "flashinfer.k": 6.2, "do_nothing": 4.0}
    workloads = {"toy-dit": workload(), "toy-vae": workload("toy-vae")}
    cells = judge_cells(stored(*(process(gains, number) for number in range(4))), workloads, PRESENT)
    return row_of(measurement(ARMS)).model_copy(update={"cells": tuple(cells)})


def test_the_forest_has_the_bar_the_twin_the_ceiling_and_hollow_what_is_invalid() -> None:
    figure = draw_forest(cells_row())
    (ax,) = figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "toy-dit, denoise step: WIN",
        "A/A twin",
        "inhouse.k",
        "flashinfer.k",
        "do nothing (ceiling)",
    ]
    bars = [float(np.asarray(line.get_xdata())[0]) for line in ax.lines if line.get_linestyle() == "--"]
    assert bars == [1.0]
    ((x, _, face),) = points(ax, 0)
    assert (x, face) == (pytest.approx(1.8, abs=0.2), COLOURS[0])
    assert [face for _, _, face in points(ax, 1)] == ["none"], "it gains more than leaving the op out"
    assert [text.get_text() for text in ax.texts] == [
        "must not be told from 0",
        "WIN",
        "INVALID",
        "all there is to gain",
    ]


def test_the_forest_tells_contexts_apart_and_leaves_out_what_another_card_finished() -> None:
    row = cells_row()
    (whole,) = (cell.model_copy(update={"context": "pad", "finished": True}) for cell in row.cells)
    alone = whole.model_copy(update={"context": None})
    elsewhere = environment(H200.model_copy(update={"uuid": "GPU-other"})).device
    half = whole.model_copy(update={"device": elsewhere, "finished": False})
    (ax,) = draw_forest(row.model_copy(update={"cells": (half, alone, whole)})).axes
    headings = [label.get_text() for label in ax.get_yticklabels() if label.get_fontweight() == "bold"]
    assert headings == ["toy-dit, denoise step: WIN", "toy-dit, pad, denoise step: WIN"]


def test_history_marks_a_change_as_far_as_it_is_believed(tmp_path: Path) -> None:
    nights(tmp_path, 24, 16, 0.97)
    series, changes = history(tmp_path)
    figure = draw_history(row_of(measurement({"inhouse.k": Arm(1.3)})), series, changes)
    assert "suspected change, not confirmed" in labels_of(figure)
    assert not any("regression" in label for label in labels_of(figure))
    (ax,) = figure.axes
    curve = next(line for line in ax.lines if line.get_marker() == "o" and len(np.asarray(line.get_ydata())) == 24)
    assert np.asarray(curve.get_ydata(), dtype=float)[[0, -1]].tolist() == pytest.approx([1.3, 1.3 * 0.97], rel=0.01)


def test_an_op_has_the_pictures_its_evidence_gives() -> None:
    assert pictures_of(row_of(measurement(ARMS))) == [Picture.SPEEDUP, Picture.ROOFLINE, Picture.RUN]
    assert Picture.E2E in pictures_of(cells_row())
    thrice = [measurement(ARMS, seed=seed) for seed in range(3)]
    assert Picture.HISTORY in pictures_of(row_of(*thrice))
    assert Picture.HISTORY not in pictures_of(row_of(*thrice[:2]))
    row = row_of(measurement(ARMS))
    assert shown(row, Picture.SPEEDUP) == "![Ratio to torch.compile, by case and candidate](groupnorm_silu.svg)"
    assert shown(row, Picture.E2E) == ""


def test_the_same_verdicts_are_the_same_bytes_without_date_or_author(tmp_path: Path) -> None:
    row = row_of(measurement(ARMS))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        draw_row(row, tmp_path / name, [], [])
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == sorted(
        f"groupnorm_silu{end}.{kind}" for end in ("", "-roofline", "-run") for kind in ("svg", "png")
    )
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    svg = (tmp_path / "a" / "groupnorm_silu.svg").read_text(encoding="utf-8")
    assert "dc:date" not in svg
    assert "dc:creator" not in svg
    assert imread(tmp_path / "a" / "groupnorm_silu.png").shape[1] >= 1200


def luminance(colour: Any) -> float:
    """Relative luminance of WCAG 2."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_every_colour_is_seen_on_light_and_on_dark(background: str) -> None:
    assert contrast(INK, background) >= 4.1
    assert min(contrast(colour, background) for colour in COLOURS) >= 3.0


def test_nothing_drawn_has_another_colour_or_a_background(tmp_path: Path) -> None:
    row = cells_row()
    for number, figure in enumerate((draw_speedup(row), draw_roofline(row), draw_run(row), draw_forest(row))):
        svg, png = save(figure, tmp_path / str(number))
        used = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", svg.read_text(encoding="utf-8")))
        assert used <= {INK, *COLOURS, "#000000"}, "black is matplotlib's default of shapes that have no ink"
        picture = imread(png)
        assert picture[0, 0, 3] == 0.0, "the page shines through"


_MACHADO = {
    "normal": np.eye(3),
    "protanope": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranope": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanope": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB."""


@pytest.mark.parametrize("vision", _MACHADO)
def test_colours_are_told_apart_with_any_colour_vision(vision: str) -> None:
    """In Oklab (Ottosson 2020); 0.02 is a just noticeable difference."""

    def seen(colour: str) -> Any:
        rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        linear = np.clip(np.array(_MACHADO[vision]) @ linear, 0, 1)
        lms = np.cbrt(
            np.array(
                [
                    [0.4122214708, 0.5363325363, 0.0514459929],
                    [0.2119034982, 0.6806995451, 0.1073969566],
                    [0.0883024619, 0.2817188376, 0.6299787005],
                ]
            )
            @ linear
        )
        return (
            np.array(
                [
                    [0.2104542553, 0.7936177850, -0.0040720468],
                    [1.9779984951, -2.4285922050, 0.4505937099],
                    [0.0259040371, 0.7827717662, -0.8086757660],
                ]
            )
            @ lms
        )

    distances = [float(np.linalg.norm(seen(a) - seen(b))) for a, b in itertools.combinations(COLOURS, 2)]
    assert min(distances) > 0.1


def test_colours_and_markers_never_repeat_together() -> None:
    assert len({style(index) for index in range(64)}) == 64
