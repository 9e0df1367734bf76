"""What the catalog, the manifests, the wirings and the pins say of every op: the facts of the inventory."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from harness import catalog
from harness.e2e.wirings import wirings_of
from harness.errors import UserError
from harness.op import INHOUSE, TORCH, Candidate, always
from harness.provision.packages import PACKAGES, Package
from harness.schema.case import Case
from harness.schema.manifest import Manifest, load_manifests
from harness.schema.vocabulary import Contract, Kind
from harness.schema.workload import load_workloads
from harness.sources import pins
from harness.verdict.select import PINS_FILE


class Domain(StrEnum):
    """Where a model calls an op, told from the manifests' `step`."""

    DENOISER = "diffusion transformer"
    VAE = "VAE"
    LANGUAGE = "language model"
    SINGLE = "single calls"
    """Shapes of kernel benchmarks and single blocks, of no model's whole step."""


_BEGINNINGS = (
    ("denoise step", Domain.DENOISER),
    ("decode of one token", Domain.LANGUAGE),
    ("prefill", Domain.LANGUAGE),
    ("decode", Domain.VAE),
    ("upsample", Domain.VAE),
)


def domain_of(case: Case) -> Domain:
    """By what the case's step begins with."""
    return next((domain for beginning, domain in _BEGINNINGS if case.step.startswith(beginning)), Domain.SINGLE)


@dataclass(frozen=True)
class CandidateFacts:
    """One candidate as declared."""

    id: str
    kind: Kind
    contract: Contract
    context: str | None
    what: str
    """First paragraph of its docstring."""
    source: str
    """Its file, below the project's root."""
    kernels: tuple[str, ...]
    guarded: bool
    in_place: bool


@dataclass(frozen=True)
class WiringFacts:
    """One op's call sites in one family of models."""

    family: str
    """Of models, or of a framework's layers."""
    context: str | None
    models: tuple[str, ...]
    """Workloads of the family."""
    upstream: tuple[str, ...]
    """Objects it binds to, by digest."""
    source: str


@dataclass(frozen=True)
class OpFacts:
    """One op as declared."""

    op: str
    title: str
    type: str
    formula: str
    """First paragraph of native's docstring."""
    models: dict[Domain, tuple[str, ...]]
    """By domain, in the manifest's order."""
    deciding: tuple[str, ...]
    contexts: dict[str, str]
    """Id to what it is."""
    candidates: tuple[CandidateFacts, ...]
    wirings: tuple[WiringFacts, ...]

    def of_contract(self, contract: Contract) -> tuple[CandidateFacts, ...]:
        """The candidates that promise it."""
        return tuple(one for one in self.candidates if one.contract is contract)


@dataclass(frozen=True)
class ProviderFacts:
    """Where candidates come from, and which version evidence is made with."""

    id: str
    pins: tuple[str, ...]
    """`name==version`; none for what is part of this repository."""
    digests: tuple[str, ...]
    """First digits of the SHA-256 of each file that is taken."""
    note: str
    candidates: int


@dataclass(frozen=True)
class Facts:
    """Everything on the page."""

    ops: tuple[OpFacts, ...]
    providers: tuple[ProviderFacts, ...]


def collect(root: Path) -> Facts:
    """Read every declaration below the project's root; imports candidates, and so torch.

    Raises UserError where a manifest, a module or a wiring is not in order: a page with holes would not say so.
    """
    workloads = load_workloads(root / "shapes" / "workloads")
    models = {name: workload.family for name, workload in workloads.items()}
    ops = tuple(_op(root, op, manifest, models) for op, manifest in load_manifests(root / "shapes").items())
    return Facts(ops, _providers(root, ops))


def _op(root: Path, op: str, manifest: Manifest, families: dict[str, str]) -> OpFacts:
    entry = catalog.load(op, root)
    if entry.problems:
        raise UserError("\n".join(entry.problems))
    domains: dict[Domain, dict[str, None]] = {domain: {} for domain in Domain}
    for case in manifest.cases:
        domains[domain_of(case)][case.model] = None
    source = root / "candidates" / op / "wiring.py"
    return OpFacts(
        op=op,
        title=manifest.row.title,
        type=manifest.row.type,
        formula=_paragraph(entry.op.native),
        models={domain: tuple(found) for domain, found in domains.items() if found},
        deciding=manifest.deciding_models,
        contexts={context.id: context.what for context in entry.op.contexts},
        candidates=tuple(_candidate(one) for one in entry.candidates),
        wirings=tuple(
            WiringFacts(
                family=wiring.family,
                context=wiring.context,
                models=tuple(name for name, family in families.items() if family == wiring.family),
                upstream=tuple(wiring.pinned),
                source=source.relative_to(root).as_posix(),
            )
            for wiring in wirings_of(op)
        ),
    )


def _candidate(one: Candidate) -> CandidateFacts:
    return CandidateFacts(
        id=one.id,
        kind=one.kind,
        contract=one.contract,
        context=one.context,
        what=_paragraph(one.run),
        source=_file_of(one),
        kernels=one.kernels,
        guarded=one.guard is not always,
        in_place=bool(one.mutates),
    )


def _file_of(candidate: Candidate) -> str:
    """The module that the catalog found it in, as a file below the root."""
    for name, module in sorted(sys.modules.items()):
        if name.startswith(f"candidates.{candidate.op}.") and any(
            value is candidate for value in vars(module).values()
        ):
            return name.replace(".", "/") + ("/__init__.py" if hasattr(module, "__path__") else ".py")
    return ""


def _paragraph(function: object) -> str:
    """The first paragraph of its docstring, on one line."""
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())


def packages_of(provider: str) -> tuple[Package, ...]:
    """The pinned packages that a provider's id stands for: by name, else by folder, else by the name's first word."""
    named = (
        [one for one in PACKAGES if one.name.replace("-", "_") == provider],
        [one for one in PACKAGES if any(pattern.split("/")[0] == provider for pattern in one.keep)],
        [one for one in PACKAGES if one.name.split("-")[0] == provider and not one.distribution],
    )
    return tuple(next((found for found in named if found), ()))


def _providers(root: Path, ops: tuple[OpFacts, ...]) -> tuple[ProviderFacts, ...]:
    counts: dict[str, int] = {}
    for op in ops:
        for one in op.candidates:
            provider = one.id.split(".")[0]
            counts[provider] = counts.get(provider, 0) + 1
    return tuple(_provider(root, provider, count) for provider, count in sorted(counts.items()))


def _provider(root: Path, provider: str, count: int) -> ProviderFacts:
    if provider == INHOUSE.id:
        return ProviderFacts(provider, (), (), "kernels of this repository", count)
    if provider == TORCH.id:
        pinned = pins(root / PINS_FILE)
        return ProviderFacts(
            provider, (f"torch=={pinned['torch']}",), (), "rewrites that are compiled, and aten's own kernels", count
        )
    packages = packages_of(provider)
    return ProviderFacts(
        provider,
        tuple(package.requirement for package in packages),
        tuple(digest[:12] for package in packages for digest in package.sha256.values()),
        "; ".join(package.note for package in packages if package.note),
        count,
    )
