"""Two runs beside each other: what takes how much longer, and what differs between them.

Two runs are two processes at least, at two times, so their blocks are not pairs: the difference of two log-times has
the variance of both, within each process (trimmed-mean standard error, as the Hodges-Lehmann estimate has it) and
between processes, for which the rule's tau0 stands. The interval is Welch's. It compares; it confirms nothing, which is
for `harness confirm`.
"""

from __future__ import annotations

import io
import math
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.errors import UserError
from harness.frame import evidence
from harness.history.series import build_of
from harness.schema.measurement import DeviceRecord, Measurement
from harness.schema.vocabulary import Role
from harness.stats.distributions import t_quantile
from harness.stats.estimators import Interval, hl_interval
from harness.stats.rule import DEFAULT_TAU0_LOG_PCT
from harness.store import Stored
from harness.verdict.compare import train_times_us, why_invalid, why_untrusted

_NAME_ONE = "name a results/ folder, a .jsonl file in one, or a commit that has results/."

Slot = tuple[str, str, str | None, str, str]
"""Op, what a kernel sees of the case, context, method and cache."""


@dataclass(frozen=True)
class ArmComparison:
    """One arm of one case in both runs."""

    op: str
    case: str
    context: str | None
    arm: str
    a_us: float
    b_us: float
    effect_log_pct: Interval
    """100 ln(t_A / t_B): positive means that B takes less time."""

    @property
    def ratio(self) -> tuple[float, float, float]:
        """t_A / t_B with its limits: over 1 means that B is faster."""
        found = self.effect_log_pct
        return math.exp(found.estimate / 100), math.exp(found.lower / 100), math.exp(found.upper / 100)


@dataclass(frozen=True)
class TwoRuns:
    """Two runs of one kind of GPU."""

    device: str
    arms: tuple[ArmComparison, ...]
    differs: tuple[str, ...]
    """Versions, driver, sources, commits and cards that are not the same on both sides."""
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    """Cases that the other side lacks."""


def measurements_of(what: str, root: Path) -> list[Stored]:
    """The valid measurements below a path, or those of `results/` at a git revision of the project.

    Raises UserError where `what` is neither, or holds none.
    """
    path = Path(what)
    if path.exists():
        found, _ = evidence(path)
    else:
        found = _at_revision(what, root)
    valid = [one for one in found if not why_invalid(one.measurement)]
    if not valid:
        raise UserError(f"{what}: holds no valid measurement.")
    return valid


def _at_revision(revision: str, root: Path) -> list[Stored]:
    if revision.startswith("-"):
        raise UserError(f"{revision}: neither a path nor a git revision; {_NAME_ONE}")
    done = subprocess.run(
        ["git", "archive", "--format=tar", revision, "results"], cwd=root, capture_output=True, check=False
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise UserError(f"{revision}: neither a path nor a git revision with results/ ({''.join(last)}); {_NAME_ONE}")
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
        return evidence(Path(folder) / "results")[0]


def compare_runs(a: Sequence[Stored], b: Sequence[Stored]) -> TwoRuns:
    """The newest valid measurement of each case on each side, arm by arm.

    Raises UserError for runs of different GPUs, and where no case was measured on both sides.
    """
    of_a, of_b = _newest(a), _newest(b)
    gpus_a, gpus_b = ({_gpu(one.environment.device) for one in side.values()} for side in (of_a, of_b))
    common = gpus_a & gpus_b
    if not common:
        raise UserError(
            f"A was measured on {_listed(gpus_a)} and B on {_listed(gpus_b)}: times of different GPUs are not compared."
        )
    if len(common) > 1:
        raise UserError(f"both sides hold {_listed(common)}; name one device's folder on each side.")
    (gpu,) = common
    of_a, of_b = (
        {slot: one for slot, one in side.items() if _gpu(one.environment.device) == gpu} for side in (of_a, of_b)
    )
    both = [slot for slot in of_a if slot in of_b]
    if not both:
        raise UserError(f"no case was measured on both sides on {gpu}.")
    return TwoRuns(
        device=gpu,
        arms=tuple(one for slot in both for one in _arms(of_a[slot], of_b[slot])),
        differs=_differences([(of_a[slot], of_b[slot]) for slot in both]),
        only_a=_names(of_a[slot] for slot in of_a if slot not in of_b),
        only_b=_names(of_b[slot] for slot in of_b if slot not in of_a),
    )


def _newest(side: Sequence[Stored]) -> dict[Slot, Measurement]:
    found: dict[tuple[str, Slot], Measurement] = {}
    for stored in sorted(side, key=lambda one: (one.measurement.started_at, one.line)):
        of = stored.measurement
        slot = (of.op, of.case.content, of.context, str(of.method), str(of.cache))
        found[_gpu(of.environment.device), slot] = of
    gpus = {gpu for gpu, _ in found}
    if len(gpus) == 1:
        return {slot: of for (_, slot), of in found.items()}
    return {(*slot[:3], slot[3], f"{slot[4]} {gpu}"): of for (gpu, slot), of in found.items()}


def _gpu(device: DeviceRecord) -> str:
    """What must be the same for times to be compared; the driver may differ, and is said to."""
    return f"{device.name} ({device.sm_count} SM, {device.memory_gib} GiB)"


def _listed(names: Iterable[str]) -> str:
    return " and ".join(sorted(names))


def _arms(a: Measurement, b: Measurement) -> Iterable[ArmComparison]:
    for arm in a.arms:
        other = b.arm(arm.id)
        if other is None or arm.role in (Role.CONTROL, Role.TWIN):
            continue
        if arm.id not in a.timed_arms or arm.id not in b.timed_arms or why_untrusted(a, arm) or why_untrusted(b, other):
            continue
        of_a, of_b = (hl_interval(100 * np.log(train_times_us(one))) for one in (arm, other))
        yield ArmComparison(
            op=a.op,
            case=a.case.id,
            context=a.context,
            arm=arm.id,
            a_us=math.exp(of_a.estimate / 100),
            b_us=math.exp(of_b.estimate / 100),
            effect_log_pct=welch(of_a, of_b),
        )


def welch(a: Interval, b: Interval, tau_log_pct: float = DEFAULT_TAU0_LOG_PCT) -> Interval:
    """95 % interval of a - b, two estimates of a process each: within-process variance of both, and 2 tau² between.

    Welch-Satterthwaite degrees of freedom, the between-process part counted as known.
    """
    parts = (a.se**2, b.se**2)
    variance = sum(parts) + 2 * tau_log_pct**2
    df = variance**2 / sum(part**2 / one.df for part, one in zip(parts, (a, b), strict=True))
    estimate, se = a.estimate - b.estimate, math.sqrt(variance)
    half_width = t_quantile(0.025, df) * se
    return Interval(estimate, estimate - half_width, estimate + half_width, se, df)


def _differences(pairs: Sequence[tuple[Measurement, Measurement]]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for a, b in pairs:
        old, new = (_recorded(of) for of in (a, b))
        for name in {**old, **new}:
            if old.get(name) != new.get(name):
                found[f"{name}: {old.get(name, 'none')} → {new.get(name, 'none')}"] = None
    return tuple(found)


def _recorded(of: Measurement) -> dict[str, str]:
    environment = of.environment
    build = {name: value for name, value in build_of(environment, None).items() if name != "sources of the op"}
    arms = {f"sources of {of.op} {arm.id}": arm.source_sha256[:12] for arm in of.arms if arm.role is Role.CANDIDATE}
    packages = {f"package of {arm.id}": arm.provider_version for arm in of.arms if arm.provider_version is not None}
    return {
        **build,
        f"sources of {of.op}": environment.op_sha256[:12],
        **arms,
        **packages,
        "commit": environment.git_sha or "none",
        "card": environment.device.uuid,
    }


def _names(measurements: Iterable[Measurement]) -> tuple[str, ...]:
    return tuple(f"{of.op} {of.case.id}" + (f" in {of.context}" if of.context else "") for of in measurements)
