"""`harness doctor`: the environment, what each candidate lacks here, and the clock's controls."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness import catalog
from harness.measure import environment
from harness.measure.clock import clock_for
from harness.measure.controls import read_controls
from harness.op import Device
from harness.schema.measurement import ControlsRecord
from harness.schema.vocabulary import Kind
from harness.survey import Listed, survey


def examine(console: Console, root: Path) -> bool:
    """Print what is found; whether the clock's controls pass."""
    device_type = environment.current_device_type()
    device = environment.device(device_type)
    record = environment.device_record(device_type)
    facts = Table(title="device", title_justify="left", title_style="bold", show_header=False)
    rows = {
        "device": f"{record.name} ({record.type})",
        "key in results/": record.key,
        "L2": f"{record.l2_bytes / 2**20:.0f} MiB",
        "memory": f"{record.memory_gib} GiB",
        **environment.packages(),
    }
    for name, value in rows.items():
        facts.add_row(name, escape(value))
    console.print(facts)
    console.print(_candidates(root, device))
    controls = read_controls(clock_for(device, capturable=True), device)
    console.print(_controls(controls))
    return controls.passed


def _candidates(root: Path, device: Device) -> Table:
    """What can be timed here and what cannot, grouped by what is lacking."""
    table = Table(title="candidates", title_justify="left", title_style="bold")
    for column in ("op", "lacks here", "candidates (version)"):
        table.add_column(column, overflow="fold")
    for one in survey(root, catalog.op_ids(root)).ops:
        groups: dict[str, list[str]] = {}
        for candidate in one.candidates:
            shown = candidate.id + (f" ({candidate.version})" if candidate.version else "")
            groups.setdefault(lacks(candidate, device), []).append(shown)
        if one.error:
            groups[one.error] = ["all"]
        for reason, names in sorted(groups.items()):
            table.add_row(one.op, escape(reason) or "[green]nothing[/]", escape(", ".join(names)))
    return table


def lacks(candidate: Listed, device: Device) -> str:
    """Why the candidate cannot be timed on the device, whatever the case; empty when it can."""
    if candidate.missing:
        return candidate.missing
    if device.type == "cpu" and candidate.kind is Kind.CUDA:
        return "an NVIDIA GPU"
    if device.type == "cpu" and candidate.kind is Kind.TRITON:
        return "an NVIDIA GPU (the gate runs in Triton's interpreter)"
    return ""


def _controls(controls: ControlsRecord) -> Table:
    table = Table(title="clock", title_justify="left", title_style="bold", show_header=False)
    table.add_row("a candidate that does nothing", f"{controls.noop_us:.3f} µs (limit {controls.noop_limit_us} µs)")
    table.add_row("a kernel on one element", f"{controls.launch_floor_us:.2f} µs")
    table.add_row("copy ceiling, read + write", f"{controls.copy_bytes_per_us / 1e6:.3f} TB/s")
    table.add_row("verdict", "[green]fit[/]" if controls.passed else f"[red]unfit[/]: {escape(controls.reason)}")
    return table
