"""The verbs `matrix`, `post`, `subissue` and `pr` as a person meets them: what they print, write, check and refuse."""

import shutil
from pathlib import Path

import pytest

from harness import posting
from harness.errors import UserError
from harness.store import Store
from tests.builders import H200, Arm, environment, measurement
from tests.report.golden import ROOT

KEY = "made-up-gpu-132sm-141gib-driver570"
OP = "groupnorm_silu"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copied = Path(shutil.copytree(ROOT, tmp_path / "root"))
    monkeypatch.chdir(copied)
    return copied


def test_the_matrix_is_printed_whole_or_for_one_gpu(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    posting.matrix()
    told = capsys.readouterr()
    assert told.err.splitlines()[-1].startswith("links are relative and break where this is pasted: give --base-url ")
    assert told.out == (root / "reports" / "matrix.md").read_text(encoding="utf-8")
    posting.matrix(device=KEY)
    assert capsys.readouterr().out == (root / "reports" / f"matrix-{KEY}.md").read_text(encoding="utf-8")
    posting.matrix(base_url="https://example.com/x/")
    told = capsys.readouterr()
    assert "(https://example.com/x/reports/groupnorm_silu.md)" in told.out
    assert "--base-url" not in told.err


def test_checking_names_file_line_and_what_the_evidence_says(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    posting.matrix(check=True)
    assert capsys.readouterr().out == (
        f"reports/matrix.md, reports/matrix-{KEY}.md: every symbol is what the evidence says\n"
    )
    kept = root / "reports" / "matrix.md"
    kept.write_text(kept.read_text(encoding="utf-8").replace("✅ [1", "❌ [1"), encoding="utf-8")
    says = "GroupNorm + SiLU, µbench: says ❌ and must say ✅, since the evidence on Made-up GPU is: faster on 1 of 1"
    with pytest.raises(UserError, match=rf"^reports/matrix\.md:5: {says.replace('+', '.')}"):
        posting.matrix(check=True)
    posting.matrix(check=True, device=KEY)
    pasted = root.parent / "pasted.md"
    shutil.move(kept, pasted)
    with pytest.raises(UserError, match=rf"^{pasted}:5: "):
        posting.matrix(pasted, check=True)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: posting.matrix(Path("x.md")), "x.md: a file is only checked; write `harness matrix --check x.md`."),
        (lambda: posting.matrix(Path("x.md"), check=True), "x.md: no such file; name a matrix as pasted, or run"),
        (lambda: posting.matrix(Path("reports"), check=True), "reports: is no text file; name a file with the matrix"),
        (
            lambda: posting.matrix(device="h100"),
            f"--device h100: there is no evidence of such a GPU; results/ has {KEY}.",
        ),
        (lambda: posting.matrix(base_url="x y"), "--base-url x y: is no URL; write e.g. https://github.com/OWNER"),
        (lambda: posting.post("nope"), "there is no manifest shapes/nope.yaml; the ops with one are groupnorm_silu."),
        (
            lambda: posting.subissue(OP),
            "groupnorm_silu: a sub-issue is for a row that is ❌ end to end; its µbench is ✅",
        ),
        (lambda: posting.pr(OP), "groupnorm_silu: a PR is for a row that is ✅ end to end; its µbench is ✅"),
        (lambda: posting.post(OP, output=Path("no/x.md")), "--output no/x.md: No such file or directory; name a file"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(root: Path, call, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError) as caught:
        call()
    assert str(caught.value).startswith(says)


def test_a_post_is_printed_or_written_the_same(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    posting.post(OP)
    told = capsys.readouterr()
    printed = told.out
    assert "give --base-url " in told.err
    posting.post(OP, device=KEY, output=Path("x.md"))
    assert "give --base-url " in capsys.readouterr().err
    assert (root / "x.md").read_text(encoding="utf-8") == printed
    assert printed.startswith("## GroupNorm + SiLU on Made-up GPU\n\n**On Made-up GPU, taken alone (cold L2, ")


def test_a_row_of_two_kinds_of_gpus_asks_which(root: Path) -> None:
    lines = Store(root / "results").load(OP, KEY)
    env = lines[-1].measurement.environment
    device = H200.model_copy(update={"key": "other-gpu-1sm-1gib-driver570", "name": "Other GPU", "sm_count": 1})
    other = environment(device, env.op_sha256).model_copy(update={"packages": env.packages})
    case = lines[-1].measurement.case
    Store(root / "results").append(measurement({"inhouse.gn": Arm(0.9)}, of=case, env=other))
    with pytest.raises(UserError, match=f"a post is of one; add --device {KEY} or other-gpu-1sm-1gib-driver570"):
        posting.post(OP)
    posting.post(OP, device="other-gpu-1sm-1gib-driver570", output=Path("x.md"))
    assert (root / "x.md").read_text(encoding="utf-8").startswith("## GroupNorm + SiLU on Other GPU\n")
