"""Rows of the matrix with end-to-end evidence, for tests of what is posted. No figure here was measured anywhere."""

from collections.abc import Mapping, Sequence

from harness.schema.claims import Claims
from harness.schema.measurement import EnvironmentRecord, Measurement
from harness.schema.process import ProcessRecord
from harness.schema.verdict import Verdicts
from harness.verdict import decide
from tests.builders import NO_CLAIMS, PRESENT, Arm, case, environment, manifest, measurement, stored
from tests.e2e_builders import CEILING, sequence, workload
from tests.e2e_builders import stored as stored_processes

K = "inhouse.k"
CASE = case("a", model="toy-dit")
MANIFEST = manifest(CASE, deciding=("toy-dit",))


def verdicts(
    gain_pct: float | None,
    *measurements: Measurement,
    claims: Claims = NO_CLAIMS,
    env: EnvironmentRecord | None = None,
    others: Mapping[str, float] | None = None,
    more: Sequence[ProcessRecord] = (),
    deciding: tuple[str, ...] = ("toy-dit",),
) -> Verdicts:
    """One row whose candidate gains so many percent of the toy model's step; None leaves the models out."""
    of = MANIFEST.model_copy(update={"deciding_models": deciding})
    env = env or environment()
    micro = measurements or (measurement({K: Arm(1.5, provider_version="1.2")}, of=CASE, env=env),)
    named = {"toy-dit": workload(), "toy-vae": workload("toy-vae", steps=()), "other": workload("other")}
    processes: list[ProcessRecord] = list(more)
    if gain_pct is not None:
        gains = {K: gain_pct, CEILING: max(gain_pct, 0.0) + 2.0, **(others or {})}
        processes += sequence(gains, env=env, op_bytes=4_000_000_000)
        processes += sequence({}, workload="toy-vae", base_ms=200.0, env=env)
    return decide(stored(*micro), {of.op: of}, claims, PRESENT, stored_processes(*processes), named)


def loaded(markdown: str) -> str:
    """Text on one line, for looking for sentences that the layout broke."""
    return " ".join(markdown.split())
