"""Reports are the same bytes wherever they are made from the same evidence, and other bytes from other evidence."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from harness.jsonl import encode
from harness.report import recompute, render, to_json, verify, write_all
from tests.report.golden import ROOT

EVIDENCE = "results/made-up-gpu-132sm-141gib-driver570/groupnorm_silu.jsonl"
COUNTING = (1, 2, 3, 4)
"""Lines (from 0) of measurements that count and have samples."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT, tmp_path / "root"))


def test_the_kept_reports_are_what_the_kept_evidence_says() -> None:
    assert verify(ROOT) == []


def test_nothing_is_written_by_verifying(root: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in root.rglob("*")}
    assert verify(root) == []
    assert {file: file.stat().st_mtime_ns for file in root.rglob("*")} == before


def alter(file: Path, line: int, arm: int, block: int, way: int, factor: float) -> None:
    """Multiply one raw sample and redo the line's checksum."""
    lines = file.read_bytes().split(b"\n")
    record = json.loads(lines[line])["record"]
    samples = [arm for arm in record["arms"] if arm["samples_us"]]
    samples[arm % len(samples)]["samples_us"][block][way] *= factor
    lines[line] = encode(record).rstrip(b"\n")
    file.write_bytes(b"\n".join(lines))


@pytest.mark.defence("verify_one_sample")
@settings(
    max_examples=15, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    line=st.sampled_from(COUNTING),
    arm=st.integers(0, 9),
    block=st.integers(0, 23),
    way=st.integers(0, 1),
    factor=st.sampled_from([0.5, 0.999, 1.000001, 3.0]),
)
def test_one_altered_sample_changes_a_page_and_the_json(
    tmp_path_factory: pytest.TempPathFactory, line: int, arm: int, block: int, way: int, factor: float
) -> None:
    root = Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("altered") / "root"))
    alter(root / EVIDENCE, line, arm, block, way, factor)
    kept, made = render(recompute(ROOT)), render(recompute(root))
    assert made["groupnorm_silu.md"] != kept["groupnorm_silu.md"]
    assert made["verdicts.json"] != kept["verdicts.json"]


def test_a_sample_that_matters_changes_the_matrix(root: Path) -> None:
    for block in range(24):
        for way in (0, 1):
            alter(root / EVIDENCE, 3, 2, block, way, 1.5)
    assert any(difference.startswith("reports/matrix.md:7 ") for difference in verify(root))


@pytest.mark.defence("verify_compares")
@pytest.mark.parametrize("name", ["matrix.md", "rehearsal.md", "verdicts.json", "groupnorm_silu.md"])
def test_an_edited_report_is_named_with_its_line(root: Path, name: str) -> None:
    file = root / "reports" / name
    lines = file.read_text(encoding="utf-8").split("\n")
    lines[2] += " "
    file.write_text("\n".join(lines), encoding="utf-8")
    assert verify(root) == [f"reports/{name}:3 is not what results/ say; run `harness decide`."]
    file.unlink()
    assert verify(root) == [f"reports/{name} is missing; run `harness decide`."]


def test_a_cut_report_and_other_line_ends_are_noticed(root: Path) -> None:
    file = root / "reports" / "matrix.md"
    content = file.read_bytes()
    file.write_bytes(content + b"\n")
    assert len(verify(root)) == 1
    file.write_bytes(content.replace(b"\n", b"\r\n"))
    assert len(verify(root)) == 1


def test_a_page_without_evidence_is_noticed(root: Path) -> None:
    shutil.rmtree(root / "results")
    differences = verify(root)
    for name in ("groupnorm_silu.md", "matrix-made-up-gpu-132sm-141gib-driver570.md"):
        assert f"reports/{name} has no evidence under results/; remove it." in differences


def test_changed_sources_make_every_verdict_stale(root: Path) -> None:
    (root / "candidates/groupnorm_silu/op.py").write_text('"""Changed."""\n')
    made = render(recompute(root))
    assert "✅ (stale)" in made["matrix.md"]
    assert "Stale: the op's sources have changed since." in made["groupnorm_silu.md"]
    assert "FASTER (stale)" in made["groupnorm_silu.md"]


def test_writing_gives_what_verifying_expects_and_a_picture(root: Path) -> None:
    shutil.rmtree(root / "reports")
    written = write_all(recompute(root), root / "reports")
    assert {file.name for file in written} == {
        "matrix.md",
        "matrix-made-up-gpu-132sm-141gib-driver570.md",
        "rehearsal.md",
        "verdicts.json",
        "groupnorm_silu.md",
        *(f"groupnorm_silu{end}.{kind}" for end in ("", "-roofline", "-run") for kind in ("svg", "png")),
    }
    assert all(file.stat().st_size > 0 for file in written)


def test_json_is_strict_and_resolves_a_tenth_of_a_percent() -> None:
    verdicts = recompute(ROOT)
    made = to_json(verdicts)
    read = json.loads(made, parse_constant=lambda constant: pytest.fail(constant))
    exact = verdicts.rows[0].cards[0].comparisons[0].arms[0].time_us
    printed = read["rows"][0]["cards"][0]["comparisons"][0]["arms"][0]["time_us"]["estimate"]
    assert exact is not None
    assert printed == pytest.approx(exact.estimate, rel=5e-6)
    assert made.endswith("}\n")


def test_verifying_needs_neither_torch_nor_a_plot() -> None:
    code = (
        "import sys, harness.report.console\n"
        "from pathlib import Path\n"
        "from harness.report import verify\n"
        "assert verify(Path(sys.argv[1])) == []\n"
        "print([name for name in ('torch', 'triton', 'matplotlib', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(ROOT)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
