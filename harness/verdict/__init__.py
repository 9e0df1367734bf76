"""Samples in, verdict out: pure, from the store's measurements, the manifests, the claims and the present sources.

`compare` judges one measurement, `select` says which one counts, `steps` weights cases by calls and finds leaders,
`rows` makes the matrix's cells; `e2e` and `e2e_rows` do the same for processes of the end-to-end stage.
"""

from collections.abc import Mapping, Sequence

from harness.errors import UserError
from harness.schema.claims import Claims, check_rows
from harness.schema.manifest import Manifest
from harness.schema.verdict import Verdicts
from harness.schema.workload import Workload
from harness.store import Line, StoredProcess
from harness.verdict.e2e import judge_cells
from harness.verdict.remembered import Remembered
from harness.verdict.rows import judge_card, judge_row
from harness.verdict.select import Present, choose, present, unjudgeable, wanted

__all__ = ["Present", "decide", "present"]


def decide(
    measurements: Sequence[Line],
    manifests: Mapping[str, Manifest],
    claims: Claims,
    now: Present,
    processes: Sequence[StoredProcess] = (),
    workloads: Mapping[str, Workload] | None = None,
    remembered: Remembered | None = None,
) -> Verdicts:
    """Every verdict there is evidence for, one row for each manifest in the manifests' order.

    What `remembered` holds is not judged again.

    Raises UserError for claims on rows without a manifest and for claims that contradict the evidence.
    """
    if claims.rows and (problems := check_rows(claims, manifests)):
        raise UserError("\n".join(problems))
    set_aside: dict[str, int] = {}
    asked: dict[str, list[Line]] = {op: [] for op in manifests}
    known: dict[tuple[str, str, str, str | None, str], bool] = {}
    for line in measurements:
        of = line.summary
        kind = (of.op, of.case_id, of.content, of.context, of.device_type)
        if kind not in known:
            known[kind] = of.op in manifests and wanted(of, manifests[of.op])
        if known[kind]:
            asked[of.op].append(line)
        else:
            what = f"{line.file}: {of.op} {of.case_id}" + (f" in context {of.context}" if of.context else "")
            set_aside[what] = set_aside.get(what, 0) + 1
    why_not, judge = (
        (remembered.why_not, remembered.judge_card(judge_card)) if remembered else (unjudgeable, judge_card)
    )
    cells = judge_cells([one for one in processes if one.record.op in manifests], workloads or {}, now)
    cards = {
        op: [judge(manifest, chosen) for chosen in choose(asked[op], manifest, now, why_not).values()]
        for op, manifest in manifests.items()
    }
    devices = [*(card.device for of_op in cards.values() for card in of_op), *(cell.device for cell in cells)]
    gpus = sorted({device.key for device in devices if device.type == "cuda"})
    rows = []
    for op, manifest in manifests.items():
        on_gpu, on_cpu = ([card for card in cards[op] if card.device.type == kind] for kind in ("cuda", "cpu"))
        rows.append(judge_row(manifest, claims, on_gpu, on_cpu, [cell for cell in cells if cell.op == op], gpus))
    return Verdicts(
        rows=tuple(rows),
        set_aside=tuple(f"{what} ({count})" for what, count in sorted(set_aside.items())),
    )
