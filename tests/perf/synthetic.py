"""A large made-up store below a project of its own: `python -m tests.perf.synthetic FOLDER [LINES]`.

Nightly runs of every case and context of the real manifests on one made-up GPU, lines as long as real ones (25 kB).
No figure in it was measured anywhere.
"""

import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

from harness.imported import op_sha256
from harness.paths import package_root
from harness.schema.manifest import load_manifests
from harness.schema.measurement import Measurement
from harness.schema.vocabulary import Kind
from harness.sources import compact_json, text_sha256
from tests.builders import H200, Arm, environment, measurement

GPU = H200.model_copy(update={"name": "Made-up GPU", "key": "made-up-gpu-132sm-141gib-driver570"})
ARMS = {
    "inhouse.fused": Arm(1.2),
    "torch.two_stage": Arm(1.01, kind=Kind.REWRITE),
    "flashinfer.fused": Arm(1.1, kind=Kind.CUDA),
    "sglang.fused": Arm(0.97),
    "vllm.fused": Arm(1.05, kind=Kind.CUDA),
}
BLOCKS = 60
_NIGHT, _COMMIT = "2026-01-01T02:00:00Z", "0123456789abcdef0123456789abcdef01234567"


def build(root: Path, lines: int) -> None:
    """Make a project of `lines` measurements below `root`: the real shapes and candidates, made-up evidence."""
    for name in ("shapes", "candidates"):
        shutil.copytree(package_root() / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(package_root() / "constraints-gpu.txt", root)
    texts = [(op, _text(of)) for op, of in _measurements(root)]
    folder = root / "results" / GPU.key
    folder.mkdir(parents=True)
    files = {op: (folder / f"{op}.jsonl").open("w", encoding="utf-8") for op in dict(texts)}
    try:
        left = lines
        for night in count():
            for op, text in texts[:left]:
                record = _on_night(text, night)
                files[op].write(f'{{"record":{record},"sha256":"{text_sha256(record)}"}}\n')
            left -= len(texts)
            if left <= 0:
                break
    finally:
        for file in files.values():
            file.close()


def _measurements(root: Path) -> Iterator[tuple[str, Measurement]]:
    for op, manifest in load_manifests(root / "shapes").items():
        sources = op_sha256(root, op, manifest.tolerance.model_dump(mode="json"))
        env = environment(GPU, sources).model_copy(update={"packages": {"numpy": "2.4.0"}, "git_sha": _COMMIT})
        for case in manifest.cases:
            for context in (None, *case.contexts):
                yield op, measurement(ARMS, op=op, of=case, context=context, env=env, blocks=BLOCKS, started_at=_NIGHT)


def _text(of: Measurement) -> str:
    return compact_json(of.model_dump(mode="json"))


def _on_night(text: str, night: int) -> str:
    """Another night's measurement, of another commit: the times are the same, which no reader looks at twice."""
    started = datetime(2026, 1, 1, 2, tzinfo=UTC) + timedelta(days=night)
    commit = f"{night:040x}"
    return text.replace(_NIGHT, started.strftime("%Y-%m-%dT%H:%M:%SZ")).replace(_COMMIT, commit)


if __name__ == "__main__":
    build(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 100_000)
