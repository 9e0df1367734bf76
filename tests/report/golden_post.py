"""What is posted, kept in `tests/data/post`: `python -m tests.report.golden_post`; look at the difference.

`measured.md` is of two lines of the project's own evidence, copied beside it; the others are of synthetic rows.
"""

from pathlib import Path

from harness.report.post import post_markdown
from harness.report.pr import CallSite, ModelSites, PatchPlan, pr_markdown
from harness.report.subissue import subissue_markdown
from harness.schema.manifest import Manifest, Row, RowType, Tolerance
from harness.schema.verdict import RowVerdict, Verdicts
from harness.schema.vocabulary import Contract, Kind
from harness.store import Store
from harness.verdict import Present, decide
from tests.builders import NO_CLAIMS
from tests.report.rows import K, verdicts

FOLDER = Path(__file__).parent.parent / "data" / "post"
URL = "https://github.com/o/r/blob/0123456"
PLAN = PatchPlan(
    candidate=K,
    kind=Kind.TRITON,
    provider="inhouse",
    contract=Contract.TOLERANCE,
    context=None,
    files=("candidates/groupnorm_silu/inhouse.py", "candidates/groupnorm_silu/kernels.py"),
    name="k",
    signature="(x: Tensor, weight: Tensor, eps: float) -> Tensor",
    mutates=(),
    kernels=("k_rows|k_flat",),
    prepared=False,
    fake="def fake(x: Tensor, weight: Tensor, eps: float) -> Tensor:\n    return torch.empty_like(x)",
    guards=("def contiguous(case: Case, device: Device) -> str | None:\n    return None",),
    models=(
        ModelSites(
            "toy-dit",
            "diffusers 0.42.1",
            (CallSite("diffusers.models.toy.Block", "blocks.N.norm", 8),),
            ("diffusers.models.toy:Block.forward",),
        ),
    ),
    tests=("tests/candidates/test_groupnorm_silu.py",),
)


def measured() -> Verdicts:
    """One case of the HunyuanVideo VAE's decode, alone and before its convolution, and one that nobody measured."""
    lines = Store(FOLDER / "results").load()
    case = lines[0].measurement.case
    other = case.model_copy(update={"id": "other", "model": "flux.1-vae", "dims": {**case.dims, "W": 512}})
    of = Manifest(
        op="groupnorm_silu",
        row=Row(title="GroupNorm + SiLU", type=RowType.FUSED, order=1, triton_ref="sglang `group_norm_silu`"),
        tolerance=Tolerance(atol=1e-2, rtol=1e-2),
        deciding_models=("hunyuanvideo-vae", "flux.1-vae"),
        cases=(case, other),
    )
    sources = lines[0].measurement.environment.op_sha256
    now = Present(op_sha256={of.op: sources}, wiring_sha256={}, pins={"torch": "2.11.0"})
    return decide(lines, {of.op: of}, NO_CLAIMS, now)


def row(gain_pct: float, **more: tuple[str, ...]) -> RowVerdict:
    """A synthetic row whose candidate gains so many percent."""
    (made,) = verdicts(gain_pct, **more).rows  # type: ignore[arg-type]
    return made


def posts() -> dict[str, str]:
    """Every kept post by its file's name."""
    return {
        "measured.md": post_markdown(measured().rows[0], URL),
        "won.md": post_markdown(row(3.0)),
        "open.md": post_markdown(row(1.0, deciding=("toy-dit", "toy-video"))),
        "subissue.md": subissue_markdown(row(0.0)),
        "pr.md": pr_markdown(row(3.0), PLAN, URL),
    }


if __name__ == "__main__":
    for name, content in posts().items():
        (FOLDER / name).write_text(content, encoding="utf-8")
