"""What cells of other ops found of a component's baselines: these run native alone, whatever the op.

The dynamic baseline of one component is compared once for a device, its versions and these sources, not once an op.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.e2e.protocol import BeatenBefore, CellJob
from harness.schema.measurement import EnvironmentRecord
from harness.schema.process import ProcessRecord
from harness.schema.vocabulary import ArmStatus, RunStatus


def beaten_before(stored: Iterable[ProcessRecord], job: CellJob) -> tuple[BeatenBefore, ...]:
    """Of the stored processes of any op those that found the job's component's dynamic baseline beaten themselves."""
    found = []
    for record in stored:
        asked = (job.workload, job.component, job.checkpoint is None, RunStatus.MEASURED)
        if (record.workload, record.component, record.checkpoint is None, record.status) != asked:
            continue
        # one that was told so built no such arm
        reasons = (arm.reason for arm in record.arms if arm.status is ArmStatus.BEATEN and arm.compile_s > 0)
        found += [
            BeatenBefore(
                op=record.op,
                device_key=record.environment.device.key,
                torch=record.environment.packages.get("torch", ""),
                triton=record.environment.packages.get("triton", ""),
                library=record.library,
                e2e_sha256=record.e2e_sha256,
                reason=reason,
            )
            for reason in reasons
        ]
    return tuple(dict.fromkeys(found))


def told(job: CellJob, environment: EnvironmentRecord, library: str, e2e_sha256: str) -> str:
    """Why the dynamic baseline is left out here, with the figures and the op where they were seen, or ""."""
    here = (
        environment.device.key,
        environment.packages.get("torch", ""),
        environment.packages.get("triton", ""),
        library,
        e2e_sha256,
    )
    for one in job.beaten_before:
        if (one.device_key, one.torch, one.triton, one.library, one.e2e_sha256) == here:
            return f"in the cell of {one.op} {one.reason}"
    return ""
