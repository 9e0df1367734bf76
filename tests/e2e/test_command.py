"""What `harness e2e` refuses before anything runs."""

from pathlib import Path

import pytest

from harness.e2e.command import Request, planned
from harness.e2e.protocol import CellSettings
from harness.errors import UserError
from harness.provision.providers import REPOSITORY


def test_an_op_whose_families_have_no_workload_is_told_so(tmp_path: Path) -> None:
    for name in ("candidates", "constraints-gpu.txt", "reports", "results"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    (tmp_path / "shapes").mkdir()
    (tmp_path / "shapes" / "rope_wan.yaml").symlink_to(REPOSITORY / "shapes" / "rope_wan.yaml")
    (tmp_path / "shapes" / "workloads").mkdir()
    request = Request(("rope_wan",), (), "cpu", CellSettings(), False, (), None, (), {})
    with pytest.raises(UserError, match=r"rope_wan is wired into .*wan.*, of which shapes/workloads/ has no"):
        planned(request, tmp_path)


def asked_for(*arms: str, model: str) -> list[tuple[str | None, tuple[str, ...]]]:
    """Per cell, its wiring's context and the candidates it takes."""
    request = Request(("groupnorm_silu",), (model,), "cpu", CellSettings(), False, arms, None, (), {})
    return [(cell.wiring.context, chosen) for cell, _, chosen in planned(request, REPOSITORY)]


def test_an_arm_asked_for_goes_where_its_wiring_calls_it() -> None:
    padded, alone = "inhouse.triton_groupnorm_silu_pad", "inhouse.triton_groupnorm_silu"
    assert asked_for(padded, model="hunyuanvideo-vae") == [("pad", (padded,))]
    assert asked_for(alone, padded, model="hunyuanvideo-vae") == [(None, (alone,)), ("pad", (alone, padded))]


def test_an_arm_that_no_wiring_of_the_models_calls_is_told_so() -> None:
    with pytest.raises(UserError, match=r"no wiring of groupnorm_silu in the models asked for calls inhouse\S+_pad"):
        asked_for("inhouse.triton_groupnorm_silu_pad", model="flux.1-vae")
