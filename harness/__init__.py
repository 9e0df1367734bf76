"""Decides, with evidence anyone can recompute, whether a fused kernel is worth wiring into a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

__version__ = "0.1.0"


def load(path: Path | str) -> pd.DataFrame:
    """Evidence as a pandas frame: `harness.frame` says what its columns are, with their units.

    `path` is `results/`, a device's folder in it, or one `.jsonl` file. Raises `harness.errors.UserError` for a path
    without evidence and for a damaged line.
    """
    from harness.frame import load as load_frame

    return load_frame(path)
