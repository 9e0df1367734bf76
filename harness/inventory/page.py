"""`reports/inventory.md` from the facts: by op, contract, model, provider; how to enable, query and pin."""

from __future__ import annotations

from collections.abc import Iterable

from harness.inventory.facts import CandidateFacts, Domain, Facts, OpFacts, WiringFacts
from harness.report.text import NOTHING, code, link, plain, spans, table
from harness.schema.vocabulary import Contract, Kind

CONTRACTS = {Contract.BIT_EXACT: "bit-exact", Contract.TOLERANCE: "tolerance (request-gated)"}

INTRO = """\
# Inventory of fused ops

Every op of this repository with every callable that claims to compute it: by where models call it, by the numerical
contract it claims, by provider, with how it is enabled, queried and pinned. Made by `harness inventory` from the
declarations in `candidates/`, `shapes/` and `harness/provision/packages.py`; not edited by hand, and a test compares it
with them. **It says what there is, not what is faster**: that is the [matrix](matrix.md)."""

CONTRACT_TEXT = """\
## Two contracts

* **Bit-exact**: `torch.equal` to eager native, in every variant that the gate draws. Such a candidate changes no
  output, so a serving framework can mount it always.
* **Tolerance**: within the manifest's tolerance of native, or no farther from the fp64 oracle than native is. Many
  denoising steps amplify a different rounding, so a serving framework mounts it on request alone (request-gated: the
  request allows less than lossless).

The contract is a claim; the gate checks it on the very callable that is timed, and a broken claim is `GATE_FAILED`. The
end-to-end stage reports the tier that was measured: lossless, extra-high or high
([verdicts](../docs/verdicts.md))."""

ENABLE_TEXT = """\
## How a candidate is enabled

Nothing is patched at import, and no class or global is touched. A **wiring** replaces an op's call sites in one model
instance for as long as a context is open, and puts the model back: `wiring.apply(model, implementation)`. Kernels from
Triton and CUDA are registered with `torch.library.custom_op` and `register_fake`, so that `torch.compile` keeps one
graph. A candidate's **guard** declines a case with a reason; native then computes it.

* `harness e2e OP --model MODEL --arm CANDIDATE` wires one and measures the model with it.
* `harness bench OP` measures all of them alone and in their contexts.
* Upstream packages come from `make providers`, each in its pinned version and without its dependencies;
  `HARNESS_PROVIDERS` names their folder when it lies elsewhere."""


def render(facts: Facts) -> str:
    """The page."""
    parts = [INTRO, "## By domain and contract", _overview(facts), "## By op and provider", _by_provider(facts)]
    parts += [CONTRACT_TEXT, ENABLE_TEXT, _query(facts)]
    parts += ["## Providers and pins", _providers(facts), "## Op by op"]
    parts += [part for op in facts.ops for part in _op(op)]
    return "\n\n".join(parts) + "\n"


def _overview(facts: Facts) -> str:
    """One line per domain, one column per contract: op with its number of candidates."""
    rows = []
    for domain in Domain:
        ops = [op for op in facts.ops if domain in op.models]
        if ops and domain is not Domain.SINGLE:
            columns = [_counted(ops, contract) for contract in CONTRACTS]
            rows.append((str(domain), *columns, ", ".join(_models(ops, domain))))
    return table(("domain", *CONTRACTS.values(), "models"), rows)


def _counted(ops: Iterable[OpFacts], contract: Contract) -> str:
    counted = [(op, len(op.of_contract(contract))) for op in ops]
    return ", ".join(f"{link(code(op.op), f'#{op.op}')} {count}" for op, count in counted if count) or NOTHING


def _by_provider(facts: Facts) -> str:
    """Candidates of each provider; of them, how many are bit-exact."""
    rows = []
    for op in facts.ops:
        cells = [link(code(op.op), f"#{op.op}")]
        for provider in facts.providers:
            of_both = [one for one in op.candidates if one.id.split(".")[0] == provider.id]
            exact = sum(one.contract is Contract.BIT_EXACT for one in of_both)
            cells.append(f"{len(of_both)}{f' ({exact} exact)' if exact else ''}" if of_both else NOTHING)
        rows.append(cells)
    providers = [code(provider.id) for provider in facts.providers]
    return table(("op", *providers), rows, right=range(1, len(providers) + 1))


def _models(ops: Iterable[OpFacts], domain: Domain) -> list[str]:
    return [plain(model) for model in dict.fromkeys(model for op in ops for model in op.models[domain])]


def _query(facts: Facts) -> str:
    op = next(op for op in facts.ops if op.of_contract(Contract.BIT_EXACT) and op.wirings)
    timed = next(op for op in facts.ops if any(one.kind is Kind.REWRITE for one in op.candidates))
    return f"""\
## Query and pin

`harness list {op.op}` prints this table for one op, with what each candidate lacks on this machine; `harness doctor`
does so for all. From Python, what there is:

```python
from harness import catalog
from harness.paths import project_root
from harness.schema.vocabulary import Contract

entry = catalog.load("{op.op}", project_root())
exact = [one.id for one in entry.candidates if one.contract is Contract.BIT_EXACT]
lacking = {{one.id: one.provider.missing() for one in entry.candidates}}  # None where it can run here
assert exact and not entry.problems
```

Whether a case is eligible, with the reason when it is not:

```python
from harness.op import Device
from harness.schema.manifest import load_manifest

case = load_manifest(project_root() / "shapes/{op.op}.yaml").cases[0]
h200 = Device("cuda", "NVIDIA H200", (9, 0), sm_count=132, l2_bytes=60 << 20, memory_bytes=140 << 30)
reasons = {{one.id: one.declines(case, h200) for one in entry.candidates if one.context is None}}
```

A candidate is a function of native's arguments:

```python
import torch

from harness.measure.inputs import SeededDraw
from harness.schema.vocabulary import Kind

entry = catalog.load("{timed.op}", project_root())
case = load_manifest(project_root() / "shapes/{timed.op}.yaml").cases[0].rehearsed()
cpu = Device("cpu", "a CPU", (0, 0), sm_count=1, l2_bytes=1 << 20, memory_bytes=1 << 34)
rewrite = next(one for one in entry.candidates if one.kind is Kind.REWRITE and one.declines(case, cpu) is None)
arguments = entry.op.inputs(case, SeededDraw(1, torch.bfloat16, torch.device("cpu")))
with torch.no_grad():
    torch.testing.assert_close(rewrite(**arguments), entry.op.native(**arguments), atol=1e-2, rtol=1e-2)
```

Where it is mounted:

```python
from harness.e2e.wirings import wirings_of

families = {{(wiring.family, wiring.context) for wiring in wirings_of("{op.op}")}}
```

**Pins.** Evidence is made with these versions; a measurement stores those it really saw, and evidence of other versions
prints as *(stale)*:

```python
from harness.provision.packages import PACKAGES

pinned = {{package.requirement: package.sha256 for package in PACKAGES}}
```

To pin another version, change it and its digest there (`constraints-gpu.txt` for what pip installs), run
`make providers`, and measure again. A wiring also pins the upstream source it binds to: the first 16 digits of its
SHA-256 in `pinned`; `harness e2e` says when that has changed."""


def _providers(facts: Facts) -> str:
    rows = [
        (
            code(one.id),
            str(one.candidates),
            "<br>".join(code(pin) for pin in one.pins) or "this repository",
            "<br>".join(code(digest) for digest in one.digests) or NOTHING,
            plain(one.note),
        )
        for one in facts.providers
    ]
    return table(("provider", "candidates", "pinned version", "SHA-256 begins", "what is taken"), rows, right=(1,))


def _op(op: OpFacts) -> list[str]:
    models = "\n".join(
        f"* {domain}: {', '.join(f'**{plain(m)}**' if m in op.deciding else plain(m) for m in found)}"
        for domain, found in op.models.items()
    )
    parts = [
        f"### {op.op}",
        f"{plain(op.title)} ({op.type}). {spans(op.formula)} Formula: "
        f"{link(code('op.py'), f'../candidates/{op.op}/op.py')}; cases: "
        f"{link(code(f'shapes/{op.op}.yaml'), f'../shapes/{op.op}.yaml')}. Models (bold: the row waits for them):",
        models,
    ]
    if op.contexts:
        parts.append(
            "In context:\n\n" + "\n".join(f"* {code(name)}: {plain(what)}" for name, what in op.contexts.items())
        )
    ordered = sorted(op.candidates, key=lambda one: (list(CONTRACTS).index(one.contract), one.context or "", one.id))
    parts.append(table(("candidate", "kind", "contract", "in context", "what"), [_candidate(one) for one in ordered]))
    if op.wirings:
        parts.append(table(("wired into", "in context", "binds to"), [_wiring(one) for one in op.wirings]))
    else:
        parts.append("No wiring: nothing says yet where a model calls it.")
    return parts


def _candidate(one: CandidateFacts) -> tuple[str, ...]:
    notes = " In place." if one.in_place and "in place" not in one.what.lower() else ""
    return (
        link(code(one.id), f"../{one.source}"),
        one.kind,
        CONTRACTS[one.contract].split(" ")[0],
        code(one.context) if one.context else NOTHING,
        spans(one.what) + notes,
    )


def _wiring(one: WiringFacts) -> tuple[str, ...]:
    return (
        link(", ".join(plain(model) for model in one.models) or code(one.family), f"../{one.source}"),
        code(one.context) if one.context else NOTHING,
        "<br>".join(code(name) for name in one.upstream) or NOTHING,
    )
