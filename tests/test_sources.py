"""Content hashes change with what shaped a number and with nothing else."""

import ast
import re
from pathlib import Path

import pytest

import harness
from harness import imported, sources
from harness.errors import UserError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    texts = {
        "candidates/rmsnorm/op.py": "from candidates._providers import sglang\nfrom ._kernels import tile",
        "candidates/rmsnorm/_kernels.py": "import candidates.layernorm.kernels as rows",
        "candidates/layernorm/kernels.py": "",
        "candidates/_providers/__init__.py": "",
        "candidates/_providers/sglang.py": "from candidates._providers.unpacked import folder",
        "candidates/_providers/unpacked.py": "",
        "candidates/_providers/vllm.py": "",
        "harness/op.py": "",
        "harness/store.py": "",
    }
    for name, text in texts.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("candidates/rmsnorm/op.py", True),
        ("candidates/rmsnorm/deep/kernel.cu", True),
        ("candidates/rmsnorm/broken.py", True),
        ("candidates/rmsnorm/wiring.py", False),
        ("candidates/_providers/sglang.py", True),
        ("candidates/_providers/__init__.py", True),
        ("candidates/_providers/unpacked.py", True),
        ("candidates/_providers/vllm.py", False),
        ("candidates/layernorm/kernels.py", True),
        ("candidates/layernorm/op.py", False),
        ("candidates/rmsnorm/__pycache__/op.cpython-312.pyc", False),
        ("candidates/rmsnorm/.swap", False),
        ("harness/op.py", False),
    ],
)
def test_op_hash_covers_the_op_and_what_it_imports(root: Path, name: str, changes: bool) -> None:
    before = imported.op_sha256(root, "rmsnorm", {"atol": 0.01})
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("changed here")
    assert (imported.op_sha256(root, "rmsnorm", {"atol": 0.01}) != before) is changes


def test_op_hash_changes_with_the_tolerance_and_with_a_rename(root: Path) -> None:
    before = imported.op_sha256(root, "rmsnorm", {"atol": 0.01})
    assert imported.op_sha256(root, "rmsnorm", {"atol": 0.02}) != before
    (root / "candidates/rmsnorm/op.py").rename(root / "candidates/rmsnorm/main.py")
    assert imported.op_sha256(root, "rmsnorm", {"atol": 0.01}) != before


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("candidates/rmsnorm/wiring.py", True),
        ("candidates/rmsnorm/wiring_norms.py", True),
        ("candidates/_providers/sglang.py", True),
        ("candidates/_providers/unpacked.py", True),
        ("candidates/_providers/vllm.py", False),
        ("candidates/rmsnorm/op.py", False),
    ],
)
def test_wiring_hash_covers_the_wirings_and_what_they_import(root: Path, name: str, changes: bool) -> None:
    (root / "candidates/rmsnorm/wiring.py").write_text("from candidates._providers.sglang import attention")
    before = imported.wiring_sha256(root, "rmsnorm")
    (root / name).write_text("changed here")
    assert (imported.wiring_sha256(root, "rmsnorm") != before) is changes


@pytest.mark.parametrize(
    ("name", "changes"),
    [("harness/op.py", True), ("harness/measure/clock.py", True), ("harness/report/page.py", False)],
)
def test_harness_hash_covers_what_shapes_a_number(root: Path, name: str, changes: bool) -> None:
    before = sources.harness_sha256(root)
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("changed")
    assert (sources.harness_sha256(root) != before) is changes


@pytest.mark.parametrize(
    ("name", "changes"), [("harness/wiring.py", True), ("harness/e2e/process.py", True), ("harness/store.py", False)]
)
def test_end_to_end_hash_covers_that_stage(root: Path, name: str, changes: bool) -> None:
    before = sources.harness_sha256(root, sources.MEASURING_E2E)
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("changed")
    assert (sources.harness_sha256(root, sources.MEASURING_E2E) != before) is changes


PASSIVE = re.compile(
    r"harness\.(schema\b.*|errors|paths|sources|store|jsonl|catalog|device_lock|imported|importing|survey)$"
)
"""Modules that define records, find candidates or report errors; they shape no number."""


def test_every_module_that_measuring_uses_is_counted() -> None:
    root = Path(harness.__file__).parent.parent
    counted = {file.relative_to(root) for pattern in sources.MEASURING for file in root.glob(pattern)}
    assert len(counted) > 10
    for file in counted:
        for node in ast.walk(ast.parse((root / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("harness."):
                module = Path(*str(node.module).split("."))
                used = {module.with_suffix(".py"), *(module / f"{alias.name}.py" for alias in node.names)}
                assert PASSIVE.match(str(node.module)) or used & counted, f"{file} uses {node.module}"


def test_pins_are_read_by_normal_name(tmp_path: Path) -> None:
    file = tmp_path / "constraints.txt"
    file.write_text("# pins\ntorch==2.11.0  # from cu130\nFlashInfer_Python==0.6.13\nnumpy>=2\n\n")
    assert sources.pins(file) == {"torch": "2.11.0", "flashinfer-python": "0.6.13"}
    with pytest.raises(UserError, match="no such file"):
        sources.pins(tmp_path / "absent.txt")
