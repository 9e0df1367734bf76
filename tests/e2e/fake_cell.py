"""A cell's process without a model: speaks the real protocol and answers with made-up records.

`CellJob.checkpoint` names a JSON file: gains by arm, per process number what becomes of it (`die ARM`, `refuse`,
`throttle`), the status of arms that process 0 finds wanting, and seconds of compiling by arm.
"""

import json
import os
import sys
from pathlib import Path

from harness.e2e.before import told
from harness.e2e.protocol import CellDone, CellHello, CellJob, CellRefused, to_cell
from harness.pipe_link import PipeLink
from harness.schema.vocabulary import ArmStatus, RunStatus
from tests.builders import LAPTOP, environment
from tests.e2e_builders import CEILING, DYNAMIC, process


def main() -> None:
    """Entry point."""
    link = PipeLink(int(sys.argv[1]), int(sys.argv[2]), to_cell)
    job = link.receive(CellJob)
    plan = json.loads(Path(job.checkpoint or "").read_text())
    device = LAPTOP.model_copy(update={"uuid": plan["uuid"]})
    env = environment(device)
    link.send(CellHello(environment=env, e2e_sha256=plan.get("e2e", "e2e"), wiring_sha256="wirings"))
    link.begin("", "building the model", 60.0)
    fate = plan.get("fates", {}).get(str(job.process), "")
    if fate.startswith("die ") and (arm := fate.removeprefix("die ")) not in job.left_out:
        link.begin(arm, "compiling", 60.0)
        os._exit(3)
    if fate == "refuse":
        link.send(CellRefused(reason="the wiring sees 7 calls where the model makes 8"))
        return
    beaten = told(job, env, process({}).library, plan.get("e2e", "e2e")) if job.process == 0 else ""
    out = job.left_out | ({DYNAMIC: (ArmStatus.BEATEN, beaten)} if beaten else {})
    gains = {name: gain for name, gain in plan["gains"].items() if job.process == 0 or name != CEILING}
    assert link.block_void(0.0, 1.0) == ""
    record = process(
        gains,
        job.process,
        op=job.op,
        workload=job.workload,
        pairs=job.pairs or 16,
        sequence=job.sequence,
        env=env,
        statuses={name: status for name, (status, _) in out.items()}
        | ({arm: ArmStatus(status) for arm, status in plan.get("found", {}).items()} if job.process == 0 else {}),
        status=RunStatus.THROTTLED if fate == "throttle" else RunStatus.MEASURED,
    )
    reasons = {name: reason for name, (_, reason) in out.items()}
    compiles_s = plan.get("compiles_s", {})
    changed = {
        "arms": tuple(
            arm.model_copy(update={"reason": reasons.get(arm.id, arm.reason), "compile_s": compiles_s.get(arm.id, 0.0)})
            for arm in record.arms
        ),
        "p_max": job.p_max,
        "seed": job.settings.seed,
        "settings": job.settings.stored(),
        "component": job.component,
        "checkpoint": "made up",
        "upstream": plan.get("upstream", {}),
    }
    link.send(CellDone(record=record.model_copy(update=changed)))


if __name__ == "__main__":
    main()
