"""A worker without torch that speaks the real protocol and dies as it is told: starts in a fraction of a second.

`Job.extra` holds the path of a template measurement, then `ARM:PHASE:DEATH` or `ARM:PHASE:DEATH:FLAG` for an arm that
dies once (while the file FLAG exists). ARM may be `a+b`: both must run.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from harness.protocol import (
    Begin,
    BlockQuery,
    Done,
    Finished,
    FromWorker,
    Go,
    Hello,
    Job,
    Lost,
    Reply,
    Task,
    TelemetryQuery,
    Unfit,
    to_worker,
)
from harness.schema.measurement import ArmRecord, Measurement
from harness.schema.vocabulary import Role
from harness.store import ArmIdentity

HANG_LIMIT_S = 0.7


def _segfault() -> None:
    ctypes.memset(1, 0, 1)


def _hang() -> None:
    child = subprocess.Popen(["sleep", "600"])
    print(f"child {child.pid}", flush=True)
    time.sleep(600)


DEATHS: dict[str, Callable[[], None]] = {
    "segv": _segfault,
    "abort": os.abort,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit0": lambda: sys.exit(0),
    "exit3": lambda: os._exit(3),
    "hang": _hang,
}


class FakeWorker:
    """Runs one job of pretended measurements."""

    def __init__(self, in_fd: int, out_fd: int) -> None:
        self._in = os.fdopen(in_fd, "r", encoding="utf-8")
        self._out = os.fdopen(out_fd, "w", encoding="utf-8")

    def send(self, message: FromWorker) -> None:
        """One line."""
        self._out.write(message.model_dump_json() + "\n")
        self._out.flush()

    def receive(self) -> Job | Go | Reply:
        """One line; exits when the supervisor has gone."""
        line = self._in.readline()
        if not line:
            sys.exit(0)
        return to_worker.validate_json(line)

    def run(self) -> None:
        """The whole job."""
        job = self.receive()
        assert isinstance(job, Job)
        template_path, *self.deaths = job.extra
        if template_path == "does not start":
            sys.exit("no module named flux_capacitor")
        template = Measurement.model_validate_json(Path(template_path).read_text())
        names = [arm.id for arm in template.arms if arm.role is Role.CANDIDATE]
        identities = {name: ArmIdentity(None, "") for name in names}
        environment = template.environment
        self.send(Hello(environment=environment, identities=tuple(identities for _ in job.tasks), problems=()))
        go = self.receive()
        assert isinstance(go, Go)
        if "unfit" in self.deaths:
            self.send(Unfit(reason="a candidate that does nothing reads 9.00 µs, the limit is 5 µs"))
            return
        for task in go.tasks:
            self.send(Done(measurement=self._measure(task, template)))
        self.send(Finished())

    def _measure(self, task: Task, template: Measurement) -> Measurement:
        arms: list[ArmRecord] = []
        running: list[str] = []
        for arm in template.arms:
            if arm.role is Role.CANDIDATE and task.only is not None and arm.id not in task.only:
                continue
            if arm.id in task.quarantined:
                status, reason = task.quarantined[arm.id]
                arms.append(arm.model_copy(update={"status": status, "reason": reason, "samples_us": ()}))
                continue
            arms.append(arm)
            running.append(arm.id)
        for phase in ("build", "gate", "timing"):
            if phase == "timing":
                self._begin(task, "", phase)
                for arm_id in running:
                    self._die(task, arm_id, phase, running)
                start = time.monotonic()
                self.send(BlockQuery(start_s=start - 1, stop_s=start))
                reply = self.receive()
                assert isinstance(reply, Reply)
                self.send(TelemetryQuery(start_s=start - 1, stop_s=start, void=int(bool(reply.void))))
                self.receive()
                continue
            for arm_id in running:
                self._begin(task, arm_id, phase)
                self._die(task, arm_id, phase, running)
        ids = tuple(arm.id for arm in arms)
        timed = tuple(arm_id for arm_id in template.timed_arms if arm_id in ids and arm_id not in task.quarantined)
        update = {
            "case": task.case,
            "context": task.context,
            "arms": tuple(arms),
            "timed_arms": timed,
            "orders": (tuple(range(len(timed))),) * len(template.orders),
        }
        return template.model_copy(update=update)

    def _begin(self, task: Task, arm: str, phase: str) -> None:
        hangs = any(death.split(":")[2] == "hang" for death in self.deaths)
        self.send(Begin(task=task.name, arm=arm, phase=phase, limit_s=HANG_LIMIT_S if hangs else 30.0))

    def _die(self, task: Task, arm: str, phase: str, running: list[str]) -> None:
        for death in self.deaths:
            who, when, how, *flag = death.split(":")
            only_task = None
            if "@" in who:
                who, only_task = who.split("@")
            together = who.split("+")
            if arm != together[-1] or phase != when or not set(together) <= set(running):
                continue
            if only_task is not None and only_task != task.case.id:
                continue
            if flag and not Path(flag[0]).exists():
                continue
            if flag:
                Path(flag[0]).unlink()
            if how == "lost":
                self.send(Lost(arm=arm, error="in gate: CUDA error: an illegal memory access was encountered"))
                os._exit(1)
            print(f"about to die: {how}", flush=True)
            DEATHS[how]()


if __name__ == "__main__":
    FakeWorker(int(sys.argv[1]), int(sys.argv[2])).run()
