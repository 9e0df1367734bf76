"""A tiny project whose evidence and reports are kept in `tests/data/report/root`: `python -m tests.report.golden`.

Run it after a change to a report and look at the difference; its evidence is synthetic and says so.
"""

import shutil
from pathlib import Path

from harness.imported import op_sha256
from harness.paths import WORK_FOLDER
from harness.report import recompute, write_all
from harness.schema.manifest import load_manifest
from harness.schema.measurement import EnvironmentRecord, Measurement
from harness.schema.vocabulary import ArmStatus, Kind, RunStatus
from harness.store import Store
from tests.builders import H200, LAPTOP, Arm, environment, measurement

ROOT = Path(__file__).parent.parent / "data" / "report" / "root"

_CASE = """
  - id: {id}
    model: {model}
    step: decode of one 4x32x32 latent tile
    calls: {calls}
    dims: {{N: 1, C: {C}, T: {T}, H: {H}, W: {H}}}
    params: {{groups: 32, eps: 1e-6}}
    dtype: bfloat16
    layout: {layout}
    confidence: {confidence}
    source: made up for a test of the reports, no model calls this
    rehearsal: {{N: 1, C: 32, T: 1, H: 8, W: 8}}
    contexts: [{contexts}]
"""
_CASES = (
    {"id": "small", "model": "toy-vae", "calls": 10, "C": 512, "T": 4, "H": 32, "layout": "channels_last"},
    {"id": "large", "model": "toy-vae", "calls": 6, "C": 128, "T": 17, "H": 256, "layout": "contiguous"},
    {"id": "recalled", "model": "toy-image", "calls": 4, "C": 512, "T": 1, "H": 128, "layout": "contiguous"},
)
_MANIFEST = """# A made-up row for tests of the reports.
op: groupnorm_silu
row: {title: GroupNorm + SiLU, type: Fused, order: 7, triton_ref: "upstream `group_norm_silu`"}
tolerance: {atol: 1e-2, rtol: 1e-2}
deciding_models: [toy-vae]
cases:"""

_CLAIMS = """rows:
  groupnorm_silu:
    e2e:
      owner: "@ada"
      state: claimed
      note: on a made-up GPU
"""


def _environment(op_sources: str, gpu: bool) -> EnvironmentRecord:
    """Without provider packages, whose pins move with the project's."""
    toy = H200.model_copy(update={"name": "Made-up GPU", "key": "made-up-gpu-132sm-141gib-driver570"})
    env = environment(toy if gpu else LAPTOP, op_sources)
    torch = "2.11.0+cu130" if gpu else "2.13.0+cpu"
    return env.model_copy(update={"packages": {"torch": torch, "triton": "3.6.0"}})


def _measurements(root: Path) -> list[Measurement]:
    manifest = load_manifest(root / "shapes" / "groupnorm_silu.yaml")
    small, large, recalled = manifest.cases
    sources = op_sha256(root, manifest.op, manifest.tolerance.model_dump(mode="json"))
    gpu = _environment(sources, gpu=True)
    absent = Arm(status=ArmStatus.NOT_INSTALLED, reason="other.gn is not installed; run `make providers`")
    odd = Arm(status=ArmStatus.INELIGIBLE, reason="contiguous | packed\nonly", provider_version="1.2")
    failed = Arm(status=ArmStatus.GATE_FAILED, reason="12 elements beyond the rule", provider_version="1.2")
    wide = Arm(1.28, provider_version="1.2", tags={"BLOCK": "4096"})
    rewrite = Arm(1.02, kind=Kind.REWRITE)
    rehearsed = Arm(status=ArmStatus.REHEARSED, reason="passed the gate in Triton's interpreter; never timed")
    return [
        measurement({"inhouse.gn": Arm(1.3)}, of=small, env=gpu, status=RunStatus.THROTTLED, reason="5 blocks void"),
        measurement(
            {"inhouse.gn": Arm(1.3), "demo.gn": odd, "torch.two_stage": rewrite, "other.gn": absent},
            of=small,
            env=gpu,
            base_us=17.2,
            started_at="2026-12-01T10:01:00Z",
        ),
        measurement({"inhouse.gn": Arm(0.9)}, of=small, context="conv", env=gpu, base_us=44.0),
        measurement(
            {"inhouse.gn": Arm(1.36), "demo.gn": wide, "torch.two_stage": rewrite, "other.gn": absent},
            of=large,
            env=gpu,
            base_us=549.6,
            floor_bytes=6 * large.numel,
        ),
        measurement({"inhouse.gn": Arm(1.005), "demo.gn": failed}, of=recalled, env=gpu, base_us=33.0),
        measurement(
            {"inhouse.gn": rehearsed, "torch.two_stage": Arm(0.97, kind=Kind.REWRITE)},
            of=small.rehearsed(),
            env=_environment(sources, gpu=False),
            base_us=410.0,
        ),
    ]


def build(root: Path) -> None:
    """Write manifest, sources, pins, evidence and reports below `root`."""
    files = {
        "shapes/groupnorm_silu.yaml": _MANIFEST
        + "".join(
            _CASE.format(
                **case,
                confidence="memory" if case["id"] == "recalled" else "quoted",
                contexts="conv" if case["id"] == "small" else "",
            )
            for case in _CASES
        ),
        "candidates/groupnorm_silu/op.py": '"""Stands for the sources of an op."""\n',
        "constraints-gpu.txt": "torch==2.11.0\ntriton==3.6.0\n",
        "reports/claims.yaml": _CLAIMS,
    }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content, encoding="utf-8")
    store = Store(root / "results")
    for one in _measurements(root):
        store.append(one)
    for lock in root.glob("results/*/*.lock"):
        lock.unlink()
    write_all(recompute(root), root / "reports")
    for picture in [*root.glob("reports/*.png"), *root.glob("reports/*.svg")]:
        picture.unlink()
    shutil.rmtree(root / WORK_FOLDER, ignore_errors=True)


if __name__ == "__main__":
    shutil.rmtree(ROOT, ignore_errors=True)
    build(ROOT)
