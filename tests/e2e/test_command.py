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
