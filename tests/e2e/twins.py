"""The rehearsal twins of the workloads, built once per test session."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from harness.e2e.build import build
from harness.e2e.models import Family, family
from harness.measure.inputs import SeededDraw
from harness.schema.workload import Workload, load_workloads, merged

ROOT = Path(__file__).parent.parent.parent
CPU = torch.device("cpu")


@cache
def workloads() -> dict[str, Workload]:
    """The project's workloads."""
    return load_workloads(ROOT / "shapes" / "workloads")


@cache
def twin(name: str, dtype: torch.dtype = torch.bfloat16) -> tuple[Family, nn.Module, dict[str, Any]]:
    """Family, model and inputs of a workload's first component at its rehearsal sizes."""
    return component_twin(name, workloads()[name].components[0].id, dtype)


def component_twin(
    name: str, component_id: str, dtype: torch.dtype = torch.bfloat16
) -> tuple[Family, nn.Module, dict[str, Any]]:
    """The same of one of its components, built anew."""
    workload = workloads()[name]
    component = workload.component(component_id)
    config = merged(workload.config, component.config, component.rehearsal.config)
    of = family(workload.family)
    model = build(of, config, dtype, CPU, seed=1)
    return of, model, of.inputs(model, component.rehearsal.inputs, SeededDraw(1, dtype, CPU))
