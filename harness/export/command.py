"""`harness export`: evidence for pytest-benchmark and the actions that read its format, as CSV, or as Parquet."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.errors import UserError
from harness.paths import keep_whole, project_root

if TYPE_CHECKING:
    from harness.store import Stored


class Format(StrEnum):
    """What to write."""

    PYTEST_BENCHMARK = "pytest-benchmark"
    CSV = "csv"
    PARQUET = "parquet"


def export(
    output: Annotated[Path, typer.Option("--output", "-o", help="file to write")],
    format_: Annotated[Format, typer.Option("--format", help="what to write")],
    path: Annotated[
        Path | None, typer.Argument(help="results/, a device's folder in it, or a .jsonl file [results/]")
    ] = None,
    device: Annotated[str | None, typer.Option(help="only this folder of results/", metavar="KEY")] = None,
) -> None:
    """Write the evidence for pytest-benchmark, as CSV or as Parquet; `harness.frame` says what the columns are."""
    source = path if path is not None else project_root() / "results"
    if output.is_dir() or not output.parent.is_dir():
        what = "is a folder" if output.is_dir() else "lies in a folder that is not there"
        raise UserError(f"--output {output} {what}; name a file in a folder that is.")
    if format_ is Format.PYTEST_BENCHMARK:
        keep_whole(output, _pytest_benchmark(source, device))
        return
    import io

    from harness import load

    frame = load(source)
    if device is not None:
        frame = frame[frame["device_key"] == device]
        if frame.empty:
            raise UserError(f"{source}: holds no evidence of --device {device}.")
    buffer = io.BytesIO()
    if format_ is Format.CSV:
        frame.to_csv(buffer, index=False)
    else:
        try:
            frame.to_parquet(buffer, engine="pyarrow", index=False)
        except ImportError:
            raise UserError(
                "Parquet is written by the package pyarrow, which is not installed: pip install 'pyarrow>=18', or "
                "write --format csv."
            ) from None
    keep_whole(output, buffer.getvalue())


def _pytest_benchmark(source: Path, device: str | None) -> bytes:
    from harness.export.pytest_benchmark import document
    from harness.frame import evidence

    measurements, _ = evidence(source)
    keys = sorted({one.summary.device_key for one in measurements})
    if device is None and len(keys) > 1:
        raise UserError(
            f"{source}: holds {', '.join(keys)}, and pytest-benchmark's format is of one machine; choose with --device."
        )
    chosen: list[Stored] = [one for one in measurements if device is None or one.summary.device_key == device]
    try:
        found = document(chosen)
    except ValueError as error:
        raise UserError(f"{source}: {error}{f' of --device {device}' if device else ''}.") from None
    return (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode()
