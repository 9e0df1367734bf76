"""The command line as a person meets it: verbs, exit codes, resuming, interrupting. All in processes of their own.

A project of one toy op in a temporary folder; compilers are spared and the probe is quiet in the processes started.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.errors import ExitCode
from harness.store import Store

ROOT = Path(__file__).parent.parent
OP = '''"""y = x * w."""
import torch
from torch import Tensor
from harness.op import Op


def native(x: Tensor, w: Tensor) -> Tensor:
    return x * w


OP = Op(
    id="toy",
    dims=(("T", "D"),),
    params={},
    native=native,
    fake=lambda x, w: torch.empty(x.shape, dtype=x.dtype, device=x.device),
    inputs=lambda case, draw: {"x": draw.activation("x", case.shape), "w": draw.weight("w", (case.dims["D"],))},
    bytes_moved=lambda case: 2 * case.numel * case.dtype.bytes,
)
'''
CANDIDATES = '''"""Two ways."""
import ctypes
import os
from torch import Tensor
from harness.op import INHOUSE, candidate
from harness.schema.vocabulary import Contract, Kind


@candidate(op="toy", kind=Kind.REWRITE, provider=INHOUSE, kernels=(), contract=Contract.TOLERANCE)
def flipped(x: Tensor, w: Tensor) -> Tensor:
    return w * x


if os.environ.get("TOY_CRASHES"):

    @candidate(op="toy", kind=Kind.TRITON, provider=INHOUSE, kernels=("k",), contract=Contract.TOLERANCE)
    def crashing(x: Tensor, w: Tensor) -> Tensor:
        raise RuntimeError("no kernel image")
'''
MANIFEST = """op: toy
row: {title: Toy, type: Single, order: 1}
tolerance: {atol: 1e-2, rtol: 1e-2}
deciding_models: [toy-model]
cases:
"""
CASE = """  - id: {id}
    model: toy-model
    step: a step of the toy
    calls: 1
    dims: {{T: {rows}, D: 16384}}
    dtype: bfloat16
    confidence: quoted
    source: made up for a test of the harness
    rehearsal: {{T: {rows}, D: 16384}}
"""
ENVIRONMENT = {
    "PYTHONPATH": f"{ROOT / 'tests/worker_site'}{os.pathsep}{ROOT}",
    "HARNESS_TEST_QUIET": "1",
    "HARNESS_TEST_NO_INDUCTOR": "1",
    "COLUMNS": "200",
    # Beside other runs, threads that wait for one another make every kernel many times slower.
    "OMP_NUM_THREADS": "1",
}


def project(folder: Path, cases: int = 2) -> Path:
    """A project with one op, a candidate and so many cases."""
    (folder / "shapes").mkdir(parents=True)
    text = MANIFEST + "".join(CASE.format(id=f"t{rows}", rows=rows) for rows in range(8, 8 + cases))
    (folder / "shapes" / "toy.yaml").write_text(text)
    package = folder / "candidates" / "toy"
    package.mkdir(parents=True)
    (folder / "candidates" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "op.py").write_text(OP)
    (package / "mine.py").write_text(CANDIDATES)
    shutil.copy(ROOT / "constraints-gpu.txt", folder)
    return folder


def harness(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the command line there."""
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT, **_locks(folder), **more},
        capture_output=True,
        text=True,
        timeout=200,
    )


def _locks(folder: Path) -> dict[str, str]:
    """Locks on devices lie in the project's own folder: a run beside the tests does not stop them."""
    return {"HARNESS_TEST_LOCKS": str(folder)}


def lines(folder: Path) -> list[str]:
    """Case ids in the store, in order."""
    return [stored.measurement.case.id for stored in Store(folder / "results").load()]


# -- without measuring -------------------------------------------------------------------------------------------------


def test_output_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    folder = project(tmp_path)
    started = [sys.executable, "-m", "harness", "matrix"]
    environment = {**os.environ, **ENVIRONMENT}
    with Path("/dev/full").open("w") as full:
        lost = subprocess.run(started, cwd=folder, env=environment, stdout=full, stderr=subprocess.PIPE, text=True)
    assert lost.returncode == ExitCode.UNFIT
    assert "cannot be written (No space left on device)" in lost.stderr
    narrow = harness(folder, "matrix", PYTHONIOENCODING="ascii")
    assert narrow.returncode == ExitCode.UNFIT
    assert "encoding ascii lacks" in narrow.stderr
    for done in (lost, narrow):
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("name", [os.fsdecode(b"\xff\xfe"), "a" * 5000], ids=["bytes", "long"])
def test_names_that_no_file_can_have_are_bad_input(tmp_path: Path, name: str) -> None:
    folder = project(tmp_path)
    for verb in ("bench", "list"):
        done = harness(folder, verb, name)
        assert done.returncode == ExitCode.BAD_INPUT
        assert "Traceback" not in done.stderr


@pytest.mark.defence("help_without_torch")
def test_help_imports_no_torch_and_names_the_verbs() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "harness", "--help"], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, **ENVIRONMENT},
    )  # fmt: skip
    assert done.returncode == ExitCode.DONE
    for verb in ("list", "check", "schema", "bench", "decide", "matrix", "post", "subissue", "pr", "verify", "doctor"):
        assert f" {verb} " in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & {"torch", "triton", "numpy", "scipy", "pandas", "matplotlib"}
    assert "130" in done.stdout or "interrupted" in done.stdout


@pytest.mark.parametrize("verb", ["verify", "matrix", "decide"])
def test_deciding_and_reporting_import_no_torch(tmp_path: Path, verb: str) -> None:
    project(tmp_path)
    (tmp_path / "no_torch").mkdir()
    (tmp_path / "no_torch" / "torch.py").write_text("raise ImportError('a machine without torch')\n")
    path = f"{tmp_path / 'no_torch'}{os.pathsep}{ROOT}"
    done = harness(tmp_path, "decide", PYTHONPATH=path)
    assert done.returncode == ExitCode.DONE, done.stderr
    done = harness(tmp_path, verb, PYTHONPATH=path)
    assert done.returncode == ExitCode.DONE, done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("bench", "tyo"), ExitCode.BAD_INPUT, "there is no manifest shapes/tyo.yaml; the ops with one are toy."),
        (("bench",), ExitCode.BAD_INPUT, "Missing argument"),
        (("bench", "toy", "--seconds", "0"), ExitCode.BAD_INPUT, "0.05"),
        (("bench", "toy", "--case", "x*"), ExitCode.BAD_INPUT, "--case 'x*' matches no case of toy; there are t8, t9"),
        (("bench", "toy", "--context", "c"), ExitCode.BAD_INPUT, "--context 'c' is in no case of toy; there are none"),
        (("bench", "toy", "--candidates", "no_such"), ExitCode.BAD_INPUT, "--candidates no_such does not import"),
        (("list", "tyo"), ExitCode.BAD_INPUT, "there is no op 'tyo'; choose one of toy."),
        (("bench", "../toy"), ExitCode.BAD_INPUT, "there is no manifest shapes/../toy.yaml; the ops with one are toy."),
        (("bench", "töy"), ExitCode.BAD_INPUT, "there is no manifest shapes/töy.yaml; the ops with one are toy."),
        (("list", ""), ExitCode.BAD_INPUT, "there is no op ''; choose one of toy."),
        (("bench", "toy", "--candidates", "."), ExitCode.BAD_INPUT, "--candidates .: is neither a .py file nor a mod"),
        (("frobnicate",), ExitCode.BAD_INPUT, "No such command"),
    ],
)
def test_bad_input_is_one_sentence_and_runs_nothing(
    tmp_path: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    project(tmp_path)
    done = harness(tmp_path, *arguments)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == "harness: exit 2 (bad input)", "make hides the code"
    assert not (tmp_path / "results").exists()


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU here")
def test_cuda_where_there_is_none(tmp_path: Path) -> None:
    done = harness(project(tmp_path), "bench", "toy", "--device", "cuda")
    assert done.returncode == ExitCode.BAD_INPUT
    assert "--device cuda: torch sees no NVIDIA GPU here; use --device cpu" in done.stderr


def test_check_says_what_is_wrong_with_file_and_line(tmp_path: Path) -> None:
    project(tmp_path)
    assert harness(tmp_path, "check").returncode in (ExitCode.DONE, ExitCode.BAD_INPUT)
    manifest = tmp_path / "shapes" / "toy.yaml"
    manifest.write_text(manifest.read_text().replace("dims: {T: 8, D: 16384}", "dims: {R: 8, D: 16384}", 1))
    done = harness(tmp_path, "check")
    assert done.returncode == ExitCode.BAD_INPUT
    assert "toy.yaml:" in done.stderr
    assert "Traceback" not in done.stderr


def test_one_ops_errors_neither_hide_nor_falsify_the_others(tmp_path: Path) -> None:
    project(tmp_path)
    other = tmp_path / "candidates/other"
    other.mkdir()
    (other / "__init__.py").touch()
    (other / "op.py").write_text("import os\nos._exit(1)\n")
    (tmp_path / "candidates/toy/latin.py").write_bytes(b"x = '\xe9'\n")
    manifest = (tmp_path / "shapes/toy.yaml").read_text()
    (tmp_path / "shapes/other.yaml").write_text(
        manifest.replace("op: toy", "op: other").replace("calls: 1", "calls: yes", 1).replace("order: 1", "order: 0")
    )
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/claims.yaml").write_text('rows:\n  other:\n    e2e: {owner: "@ada", state: claimed}\n')
    done = harness(tmp_path, "check", COLUMNS="400")
    assert done.returncode == ExitCode.BAD_INPUT
    errors = [line.removeprefix("error ") for line in done.stderr.splitlines() if line.startswith("error ")]
    assert [error.split(" ")[0] for error in errors] == [
        "shapes/other.yaml:2:", "shapes/other.yaml:9:", "candidates/other/op.py:", "candidates/toy/latin.py",
    ]  # fmt: skip
    assert "claims" not in done.stderr
    listed = harness(tmp_path, "list")
    assert listed.returncode == ExitCode.DONE
    assert "inhouse.flipped" in listed.stdout
    assert "problem candidates/other/op.py: importing it ends the process (exit code 1)" in listed.stderr
    for verb in ("matrix", "decide", "verify"):
        done = harness(tmp_path, verb)
        assert done.returncode == ExitCode.BAD_INPUT
        assert "shapes/other.yaml:9: `yes` means" in done.stderr
    assert not (tmp_path / "reports/matrix.md").exists(), "a matrix without a row is not written"


def test_check_takes_files_of_ones_own(tmp_path: Path) -> None:
    project(tmp_path)
    mine = tmp_path / "mine.py"
    mine.write_text((tmp_path / "candidates/toy/mine.py").read_text().replace("flipped", "own"))
    assert harness(tmp_path, "check", "--candidates", "mine.py").returncode == ExitCode.DONE
    mine.write_text(mine.read_text().replace("w: Tensor", "weight: Tensor").replace('op="toy"', 'op="toy"', 1))
    done = harness(tmp_path, "check", "--candidates", "mine.py")
    assert done.returncode == ExitCode.BAD_INPUT
    assert "inhouse.own takes (weight, x), toy gives (w, x)." in done.stderr
    mine.write_text("import torch\n")
    done = harness(tmp_path, "check", "--candidates", "mine.py")
    assert "--candidates mine.py: nothing in it is for toy; it defines no candidate." in done.stderr


@pytest.mark.parametrize("columns", ["80", "60"])
def test_list_is_whole_on_a_narrow_terminal(tmp_path: Path, columns: str) -> None:
    project(tmp_path)
    mine = tmp_path / "candidates/toy/mine.py"
    long = "a_kernel_with_a_name_as_long_as_upstream_packages_give_them_at_times"
    mine.write_text(mine.read_text().replace("flipped", long))
    done = harness(tmp_path, "list", COLUMNS=columns)
    assert done.returncode == ExitCode.DONE
    lines = done.stdout.splitlines()
    assert all(len(line) <= int(columns) for line in lines)
    assert "…" not in done.stdout
    first, *rest = (line.split(" ")[0] for line in lines[2:] if line.strip())
    assert "".join([first, *rest]) == f"inhouse.{long}"
    assert "tolerance" in lines[2]
    assert lines[2].rstrip().endswith("yes")


def test_results_that_cannot_be_written_are_told_before_anything_is_measured(tmp_path: Path) -> None:
    project(tmp_path)
    (tmp_path / "results").write_text("a file where the folder should be")
    done = harness(tmp_path, "bench", "toy", "--device", "cpu")
    assert done.returncode == ExitCode.UNFIT
    assert "results: cannot be written (File exists); nothing was measured." in done.stderr
    assert not (tmp_path / ".bench").exists()


def test_schema_is_json() -> None:
    done = harness(ROOT, "schema")
    assert done.returncode == ExitCode.DONE
    assert json.loads(done.stdout)["title"] == "Manifest"


def test_cases_and_context_that_never_meet_select_nothing(tmp_path: Path) -> None:
    project(tmp_path)
    op = tmp_path / "candidates/toy/op.py"
    op.write_text(
        op.read_text()
        .replace("from harness.op import Op", "from harness.op import Context, Op")
        .replace("    bytes_moved", '    contexts=(Context("c", "x * w", None, None, None),),\n    bytes_moved')
    )
    manifest = tmp_path / "shapes/toy.yaml"
    manifest.write_text(manifest.read_text() + "    contexts: [c]\n")
    done = harness(tmp_path, "bench", "toy", "--case", "t8", "--context", "c")
    assert done.returncode == ExitCode.NOTHING_SELECTED, done.stderr
    assert "nothing selected" in done.stderr
    assert not (tmp_path / "results").exists()


def test_bench_says_what_cases_of_several_ranks_need(tmp_path: Path) -> None:
    manifest = project(tmp_path) / "shapes" / "toy.yaml"
    manifest.write_text(manifest.read_text().replace("calls: 1\n", "calls: 1\n    ranks: 64\n", 1))
    done = harness(tmp_path, "bench", "toy", "--ranks", "64")
    assert done.returncode == ExitCode.UNFIT, done.stderr
    assert "toy: cases of 64 ranks were not run (1 to measure): they need 64 cores, here are " in done.stderr
    assert lines(tmp_path) == []
    done = harness(tmp_path, "bench", "toy", "--ranks", "2")
    assert done.returncode == ExitCode.BAD_INPUT
    assert "--ranks 2: no case of toy has so many; there are 1, 64." in done.stderr


# -- measuring ---------------------------------------------------------------------------------------------------------


@pytest.mark.defence("resume")
@pytest.mark.timeout(280)
def test_measure_then_resume_then_start_over(tmp_path: Path) -> None:
    project(tmp_path)
    first = harness(tmp_path, "bench", "toy", "--device", "cpu", "--seconds", "0.05")
    assert first.returncode == ExitCode.DONE, first.stderr
    assert "toy: 2 comparisons to measure" in first.stderr
    assert lines(tmp_path) == ["t8", "t9"]
    measurement = Store(tmp_path / "results").load()[0].measurement
    arm = measurement.arm("inhouse.flipped")
    assert arm is not None
    assert len(arm.samples_us) == len(measurement.orders) >= 8
    assert "flipped" in first.stdout
    reports = {path.name for path in (tmp_path / "reports").iterdir()}
    assert {"matrix.md", "verdicts.json", "rehearsal.md"} <= reports
    assert harness(tmp_path, "verify").returncode == ExitCode.DONE

    again = harness(tmp_path, "bench", "toy", "--device", "cpu", "--seconds", "0.05")
    assert again.returncode == ExitCode.DONE, again.stderr
    assert "toy: 0 comparisons to measure, 2 already in results/" in again.stderr
    assert lines(tmp_path) == ["t8", "t9"]

    source = tmp_path / "candidates/toy/mine.py"
    source.write_text(source.read_text().replace("return w * x", "return (w * x) * 1"))
    changed = harness(tmp_path, "bench", "toy", "--device", "cpu", "--seconds", "0.05", "--case", "t8")
    assert changed.returncode == ExitCode.DONE, changed.stderr
    assert lines(tmp_path) == ["t8", "t9", "t8"], "a candidate that changed is measured again"

    fresh = harness(tmp_path, "bench", "toy", "--device", "cpu", "--seconds", "0.05", "--case", "t9", "--fresh")
    assert fresh.returncode == ExitCode.DONE, fresh.stderr
    assert lines(tmp_path) == ["t8", "t9", "t8", "t9"]


@pytest.mark.timeout(200)
def test_rows_that_break_are_told_and_the_rest_is_kept(tmp_path: Path) -> None:
    project(tmp_path, cases=1)
    done = harness(tmp_path, "bench", "toy", "--device", "cpu", "--seconds", "0.05", TOY_CRASHES="1")
    assert done.returncode == ExitCode.SOME_FAILED, done.stderr
    assert "failed toy/t8: inhouse.crashing: CRASHED: in contract: RuntimeError: no kernel image" in done.stderr
    (stored,) = Store(tmp_path / "results").load()
    assert "inhouse.flipped" in stored.measurement.timed_arms


@pytest.mark.timeout(280)
def test_interrupt_keeps_what_is_measured_and_the_next_run_goes_on(tmp_path: Path) -> None:
    project(tmp_path, cases=3)
    arguments = [sys.executable, "-m", "harness", "bench", "toy", "--device", "cpu", "--seconds", "0.5"]
    process = subprocess.Popen(
        arguments, cwd=tmp_path, env={**os.environ, **ENVIRONMENT, **_locks(tmp_path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    limit = time.monotonic() + 150
    while not (tmp_path / "results").exists() or not lines(tmp_path):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.05)
    second_run = harness(tmp_path, "bench", "toy", "--device", "cpu", "--seconds", "0.5")
    if process.poll() is None:
        assert second_run.returncode == ExitCode.UNFIT
        assert "another run of this harness holds the device" in second_run.stderr
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    kept = lines(tmp_path)
    if process.returncode == ExitCode.INTERRUPTED:
        assert "interrupted: what was measured is in results/" in err
        assert (tmp_path / "reports" / "matrix.md").exists()
    assert "Traceback" not in err
    done = harness(tmp_path, "bench", "toy", "--device", "cpu", "--seconds", "0.5")
    assert done.returncode == ExitCode.DONE, done.stderr
    assert f"{3 - len(kept)} comparisons to measure" in done.stderr
    assert sorted(lines(tmp_path)) == ["t10", "t8", "t9"]
