"""Workloads: a stand-in says how much it stands for; deciding models of the manifests are told by the same names."""

from pathlib import Path

import pytest

from harness.errors import UserError
from harness.schema.manifest import load_manifest
from harness.schema.workload import load_workload, load_workloads

SHAPES = Path(__file__).parent.parent.parent / "shapes"
OPS = ["groupnorm_silu", "rmsnorm", "rmsnorm_vae", "qknorm_rope", "adalayernorm", "allreduce_rmsnorm"]


@pytest.mark.parametrize("dropped", ["stands_for: step-480p", "depth_ratio: 10"])
def test_a_stand_in_names_what_it_stands_for_and_how_much_of_it(tmp_path: Path, dropped: str) -> None:
    text = (SHAPES / "workloads" / "wan2.1-t2v-14b.yaml").read_text()
    file = tmp_path / "wan2.1-t2v-14b.yaml"
    file.write_text(text)
    assert load_workload(file).component("step-480p-4-layers").depth_ratio == 10
    assert text.count(f"    {dropped}\n") == 1
    file.write_text(text.replace(f"    {dropped}\n", ""))
    with pytest.raises(UserError, match="write both `stands_for` and `depth_ratio`"):
        load_workload(file)


@pytest.mark.parametrize("op", OPS)
def test_deciding_models_are_workloads(op: str) -> None:
    """By another name a cell would never count for its row."""
    known = load_workloads(SHAPES / "workloads")
    assert set(load_manifest(SHAPES / f"{op}.yaml").deciding_models) <= set(known)
