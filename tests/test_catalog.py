"""What the catalog finds, and the sentence it says about everything that is wrong."""

import importlib.metadata
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from harness import catalog, importing
from harness.errors import UserError
from tests.evil import hidden_work

ROOT = Path(__file__).parent.parent


@pytest.fixture
def extra(tmp_path: Path) -> Path:
    """A file of somebody's own candidates."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from torch import Tensor\n"
        "from harness.op import INHOUSE, candidate\n"
        "from harness.schema.vocabulary import Contract, Kind\n\n\n"
        '@candidate(op="rmsnorm", kind=Kind.REWRITE, provider=INHOUSE, kernels=(), contract=Contract.TOLERANCE)\n'
        "def mine(x: Tensor, weight: Tensor, eps: float) -> Tensor:\n"
        "    return x\n"
    )
    return path


def load(*extra: str) -> catalog.Entry:
    return catalog.load("rmsnorm", ROOT, extra)


def ids(entry: catalog.Entry) -> list[str]:
    return [candidate.id for candidate in entry.candidates]


def test_ops_are_the_folders_with_an_op_file(tmp_path: Path) -> None:
    assert {"groupnorm_silu", "rmsnorm"} <= set(catalog.op_ids(ROOT))
    assert not any(op.startswith("_") for op in catalog.op_ids(ROOT))
    assert catalog.op_ids(tmp_path) == ()


def test_candidates_come_sorted_with_their_sources() -> None:
    entry = load()
    assert ids(entry) == sorted(ids(entry))
    assert "inhouse.triton_rmsnorm" in ids(entry)
    assert set(entry.sources) == set(ids(entry))
    assert all(len(sha256) == 64 for sha256 in entry.sources.values())
    assert entry.op.id == "rmsnorm"
    assert entry.problems == ()


def test_missing_op_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no op 'rmsnrom'; choose one of .*groupnorm_silu.*rmsnorm"):
        catalog.load("rmsnrom", ROOT)
    with pytest.raises(UserError, match="none: candidates/ is empty"):
        catalog.load("rmsnorm", tmp_path)


def test_extra_file_and_extra_module(extra: Path) -> None:
    assert "inhouse.mine" in ids(load(str(extra)))
    assert hidden_work.fine.id in ids(load("tests.evil.hidden_work"))


def test_extra_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--candidates .*nowhere\.py: no such file\."):
        load(str(tmp_path / "nowhere.py"))
    with pytest.raises(UserError, match="--candidates no_such_module does not import: ModuleNotFoundError"):
        load("no_such_module")


@pytest.mark.parametrize(
    ("body", "error"), [("1 / 0", "ZeroDivisionError: division by zero"), ("import sys; sys.exit(0)", "SystemExit: 0")]
)
def test_extra_that_does_not_import(tmp_path: Path, body: str, error: str) -> None:
    path = tmp_path / f"broken{len(body)}.py"
    path.write_text(body)
    with pytest.raises(UserError, match=f"does not import: {error}"):
        load(str(path))


def test_one_name_for_two_candidates_is_a_problem(extra: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(extra.read_text())
    entry = load(str(extra), str(other))
    assert ids(entry).count("inhouse.mine") == 1
    (problem,) = entry.problems
    assert problem == f"{other}: candidate inhouse.mine is already defined in {extra}; give it another name."


def test_one_name_alone_and_in_a_context_is_a_problem(extra: Path) -> None:
    text = extra.read_text()
    again = (
        text[text.index("@candidate") :]
        .replace("def mine", "def second")
        .replace("provider", 'context="residual_add", name="mine", provider')
    )
    extra.write_text(f"{text}\n\n{again}")
    signature, problem = load(str(extra)).problems
    assert signature.endswith("inhouse.mine takes (eps, weight, x), rmsnorm gives (eps, residual, weight, x).")
    assert problem.startswith("candidates/rmsnorm: inhouse.mine names two candidates, one alone and one in a context")


def test_unknown_context_is_a_problem(extra: Path) -> None:
    extra.write_text(extra.read_text().replace("provider", 'context="residual_sub", provider'))
    assert load(str(extra)).problems == (
        f"{extra}: inhouse.mine is for context 'residual_sub'; op rmsnorm has residual_add.",
    )


def test_a_module_that_does_not_import_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importing.importlib.import_module

    def failing(name: str) -> ModuleType:
        if name == "candidates.rmsnorm.sglang":
            raise ImportError("libcuda.so.1: cannot open shared object file")
        return real(name)

    monkeypatch.setattr(importing.importlib, "import_module", failing)
    entry = load()
    assert "inhouse.triton_rmsnorm" in ids(entry)
    assert not any(name.startswith("sglang.") for name in ids(entry))
    assert entry.problems == (
        "candidates/rmsnorm/sglang.py does not import: ImportError: libcuda.so.1: cannot open shared object file.",
    )


def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op_py: str) -> Path:
    """A project whose package is called otherwise, so that the real one stays loaded."""
    folder = tmp_path / "toys" / "toy"
    folder.mkdir(parents=True)
    (tmp_path / "toys" / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "op.py").write_text(op_py)
    monkeypatch.setattr(catalog, "PACKAGE", "toys")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "toys"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


@pytest.mark.parametrize(
    ("op_py", "sentence"),
    [
        ("x = 1\nraise RuntimeError('no')", "toys/toy/op.py does not import: RuntimeError: no (toys/toy/op.py:2)."),
        ("OP = 3", "toys/toy/op.py defines no `OP`; add `OP = Op(id='toy', ...)`."),
        (
            "from candidates.rmsnorm.op import OP",
            "toys/toy/op.py: its OP says id='rmsnorm'; the id and the folder's name must agree.",
        ),
    ],
)
def test_op_file_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op_py: str, sentence: str) -> None:
    root = _project(tmp_path, monkeypatch, op_py)
    monkeypatch.chdir(root)
    with pytest.raises(UserError) as raised:
        catalog.load("toy", root)
    assert str(raised.value) == sentence


def test_packages_of_others_bring_candidates_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry_point(name: str, value: str) -> importlib.metadata.EntryPoint:
        return importlib.metadata.EntryPoint(name, value, importing.ENTRY_POINT_GROUP)

    points = [
        entry_point("theirs", "tests.evil.hidden_work"),
        entry_point("broken", "no_such_module"),
        entry_point("function", "os:getcwd"),
    ]
    monkeypatch.setattr(importing.importlib.metadata, "entry_points", lambda group: points)
    entry = load()
    assert hidden_work.never_launches.id in ids(entry)
    assert entry.problems == (
        "entry point broken (no_such_module) does not import: ModuleNotFoundError: No module named 'no_such_module'.",
        "entry point function (os:getcwd) must name a module.",
    )


def test_extra_that_defines_nothing_for_the_op_is_told_once_for_all_ops(extra: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty_kernels.py"
    empty.write_text("")
    entry = load(str(empty), str(extra))
    assert entry.problems == ()
    assert entry.idle == {str(empty)}
    assert catalog.for_other_ops([str(empty)], ["rmsnorm", "groupnorm_silu"]) == [
        f"--candidates {empty}: nothing in it is for rmsnorm or groupnorm_silu; it defines no candidate."
    ]
    assert catalog.for_other_ops([str(extra)], ["groupnorm_silu"]) == [
        f"--candidates {extra}: nothing in it is for groupnorm_silu; its candidates are for rmsnorm."
    ]


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (b"import os\nx = (\n", "SyntaxError: '(' was never closed (latin.py:2)."),
        (b"x = 1\ny = '\xe9'\n", "SyntaxError: (unicode error) 'utf-8' codec can't decode byte 0xe9"),
        (b"x = 1\0\n", "SyntaxError: source code string cannot contain null bytes (latin.py:1)."),
        (b"# coding: klingon\n", "SyntaxError: unknown encoding: klingon (latin.py:1)."),
        (b"def f():\n    1 / 0\n\n\nf()\n", "ZeroDivisionError: division by zero (latin.py:2)."),
        (b"raise ValueError('two\\nlines')", "ValueError: two lines (latin.py:1)."),
    ],
)
def test_file_that_python_cannot_read_is_one_sentence_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: bytes, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("latin.py").write_bytes(source)
    for _ in range(2):
        with pytest.raises(UserError) as raised:
            load("latin.py")
        assert str(raised.value).startswith(f"--candidates latin.py does not import: {sentence}")
        assert "\n" not in str(raised.value)
        assert "latin.py:" in str(raised.value).removeprefix("--candidates latin.py")


def test_encoding_that_python_reads_by_its_cookie_is_read(extra: Path) -> None:
    extra.write_bytes(b"# -*- coding: latin-1 -*-\n# caf\xe9\n" + extra.read_bytes())
    assert "inhouse.mine" in ids(load(str(extra)))


def test_module_known_to_take_its_process_down_is_left_alone() -> None:
    what = "candidates/rmsnorm/sglang.py"
    touched: list[str] = []
    entry = catalog.load(
        "rmsnorm", ROOT, broken={what: f"{what}: importing it ends the process."}, touch=touched.append
    )
    assert entry.problems == (f"{what}: importing it ends the process.",)
    assert not any(name.startswith("sglang.") for name in ids(entry))
    assert "inhouse.triton_rmsnorm" in ids(entry)
    assert "candidates/rmsnorm/op.py" in touched
    assert what not in touched
    key = "provider inhouse"
    without = catalog.load("rmsnorm", ROOT, broken={key: "its provider hangs."})
    assert without.problems == ("its provider hangs.",)
    assert not any(name.startswith("inhouse.") for name in ids(without))


@pytest.mark.defence("settings_import")
def test_import_that_changes_settings_of_the_process_refuses_its_candidates(extra: Path) -> None:
    extra.write_text(f"import torch\ntorch.set_num_threads(torch.get_num_threads() + 1)\n{extra.read_text()}")
    before = torch.get_num_threads()
    entry = load(str(extra))
    assert torch.get_num_threads() == before
    changed = f"its import changes global settings: the number of threads {before} -> {before + 1}"
    assert entry.refused == {"inhouse.mine": changed}
    assert entry.problems == (f"--candidates {extra}: {changed}; leave them as they are.",)
    assert load(str(extra)).refused == {"inhouse.mine": changed}, "also where this process has imported it before"


def test_signature_that_the_op_cannot_call_is_a_problem(extra: Path) -> None:
    extra.write_text(extra.read_text().replace("eps", "epsilon"))
    (problem,) = load(str(extra)).problems
    assert problem.endswith("inhouse.mine takes (epsilon, weight, x), rmsnorm gives (eps, weight, x).")


@pytest.mark.parametrize("kind", ["REWRITE", "TRITON"])
def test_kernel_without_annotations_is_a_problem_and_a_rewrite_needs_none(kind: str, extra: Path) -> None:
    bare = extra.read_text().replace("eps: float", "eps").replace("kernels=()", 'kernels=("k",)')
    extra.write_text(bare.replace("Kind.REWRITE", f"Kind.{kind}"))
    problems = load(str(extra)).problems
    wanted = "inhouse.mine cannot be made a custom op; annotate it as torch wants: infer_schema(func): Parameter eps"
    assert [wanted in problem for problem in problems] == ([] if kind == "REWRITE" else [True])


def test_tensors_by_name_alone_are_a_problem(extra: Path) -> None:
    text = extra.read_text().replace("kernels=()", 'kernels=("k",)').replace("Kind.REWRITE", "Kind.TRITON")
    extra.write_text(text.replace("x: Tensor, weight", "x: Tensor, *, weight"))
    (problem,) = load(str(extra)).problems
    assert "takes weight by name alone; a custom op takes tensors by position, so put no `*` before them." in problem


def test_mutating_what_is_no_argument_is_a_problem(extra: Path) -> None:
    extra.write_text(extra.read_text().replace("kernels=()", 'kernels=(), mutates=("y",)'))
    (problem,) = load(str(extra)).problems
    assert "inhouse.mine mutates y; rmsnorm gives (x, weight, eps" in problem
