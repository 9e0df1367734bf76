"""The op's calls inside a model: counted on the unwired model, seen through the wiring, judged one by one."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from harness.e2e.arms import Signature, call_case, signature
from harness.measure.accuracy import Comparison
from harness.measure.gate import as_tuple, copied_args, tensors_of
from harness.measure.inputs import storage_fingerprint
from harness.measure.ranks import ALONE, Team
from harness.op import Args, Candidate, Impl
from harness.schema.case import Case
from harness.schema.manifest import Tolerance
from harness.schema.measurement import GateRecord
from harness.schema.vocabulary import Contract
from harness.wiring import Wiring

if TYPE_CHECKING:
    from harness.e2e.workbench import Workbench


@contextmanager
def counting_native(model: nn.Module, wiring: Wiring) -> Iterator[Counter[str]]:
    """Counts the op's calls in the unwired model by hooks on the modules that hold its sites."""
    seen: Counter[str] = Counter()
    modules = dict(model.named_modules())
    handles = []
    for site in wiring.sites(model):

        def hook(*_: Any, path: str = site.module, calls: int = site.calls) -> None:
            seen[path] += calls

        handles.append(modules[site.module].register_forward_hook(hook))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@dataclass
class Calls:
    """What one eager run of the wired model called."""

    count: int = 0
    bytes_moved: int = 0
    """Bytes that all the calls must move."""
    kinds: dict[Signature, int] = field(default_factory=dict)
    """Calls by signature."""
    declined: dict[str, dict[Signature, str]] = field(default_factory=dict)
    """By candidate, the kinds of calls that its guard declines, with the reason."""


def seen_calls(bench: Workbench, model: nn.Module) -> tuple[Calls, Tensor]:
    """One eager run of the model wired with its own native formula: the calls, and the output.

    The output must equal the unwired model's to the bit, or the wiring's native is not the model's own formula.
    """
    op, wiring = bench.op, bench.wiring
    calls = Calls(declined={candidate.id: {} for candidate in bench.candidates})
    bytes_moved = op.bytes_moved if wiring.context is None else op.context(wiring.context).bytes_moved
    cases: dict[Signature, Case] = {}

    def note(**args: Any) -> Any:
        key = signature(args)
        if key not in cases:
            activation = next(value for value in args.values() if isinstance(value, Tensor))
            cases[key] = call_case(wiring.described(**args), activation, bench.job.workload, bench.team.ranks)
            for candidate in bench.candidates:
                if reason := candidate.declines(cases[key], bench.device):
                    calls.declined[candidate.id][key] = reason
        calls.count += 1
        calls.bytes_moved += bytes_moved(cases[key])
        calls.kinds[key] = calls.kinds.get(key, 0) + 1
        return wiring.native(**args)

    with wiring.apply(model, note):
        output = bench.family.run(model, bench.inputs)
    return calls, output


class Shadow:
    """Calls native and a candidate side by side in an eager run and judges each call by the gate's element rule.

    A team judges together: native and the oracle may be collectives, which all ranks must take part in.
    """

    def __init__(
        self,
        wiring: Wiring,
        candidate: Candidate,
        implementation: Impl,
        tolerance: Tolerance,
        granted_ulp: int,
        team: Team = ALONE,
    ) -> None:
        self.wiring = wiring
        self.candidate = candidate
        self.implementation = implementation
        self.team = team
        self.granted_ulp = granted_ulp
        """What Triton's interpreter needs: it truncates to 16-bit types where the hardware rounds."""
        self.comparison = Comparison(atol=tolerance.atol, rtol=tolerance.rtol)
        self.calls = 0
        self.reason = ""

    def __call__(self, **args: Any) -> Any:
        """Judge the candidate's outputs and return native's: every call sees what the model would give it."""
        expected = self.wiring.native(**args)
        given = copied_args(args)
        before = {name: storage_fingerprint(tensor) for name, tensor in tensors_of(given).items()}
        got = as_tuple(self.implementation(**given))
        self.calls += 1
        if not self.reason:
            upcast = {
                name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
                for name, value in args.items()
            }
            oracle = as_tuple(self.wiring.native(**upcast))
            reason = self._judge(got, as_tuple(expected), oracle) or self._mutated(given, before)
            self.reason = self.team.told(reason, f"call {self.calls} of {self.candidate.id}")
        return expected

    def _judge(self, got: tuple[Tensor, ...], expected: tuple[Tensor, ...], oracle: tuple[Tensor, ...]) -> str:
        for index, (one, native) in enumerate(zip(got, expected, strict=True)):
            if one.shape != native.shape or one.dtype != native.dtype:
                return (
                    f"call {self.calls}: output {index} is {tuple(one.shape)} {one.dtype}, the model's is "
                    f"{tuple(native.shape)} {native.dtype}"
                )
        here = Comparison(atol=self.comparison.atol, rtol=self.comparison.rtol)
        for one, native, true in zip(got, expected, oracle, strict=True):
            here.add(one, native, true.double(), against_native=True, extra_ulp=self.granted_ulp)
            self.comparison.add(one, native, true.double(), against_native=True, extra_ulp=self.granted_ulp)
        if self.candidate.contract is Contract.BIT_EXACT and not here.bit_exact:
            return f"call {self.calls}: claims bit_exact, but {here.max_ulp} ULP from the model's own"
        reason = here.verdict()
        return f"call {self.calls}: {reason}" if reason else ""

    def _mutated(self, given: Args, before: dict[str, str]) -> str:
        for name, tensor in tensors_of(given).items():
            if name not in self.candidate.mutates and storage_fingerprint(tensor) != before[name]:
                return f"call {self.calls}: writes to its input {name!r} without declaring it (mutates=...)"
        return ""

    def record(self) -> GateRecord:
        """What was seen here, for the store."""
        seen = self.comparison
        return GateRecord(
            passed=not self.reason,
            reason=self.reason,
            oracle="float64",
            elements=seen.elements,
            literal_failures=seen.literal_failures,
            rule_failures=seen.rule_failures,
            max_abs_error_native=seen.max_abs_error_native,
            rms_error_oracle=seen.rms_error,
            rms_error_native_oracle=seen.rms_error_native,
            max_ulp=seen.max_ulp,
            p999_ulp=seen.p999_ulp,
            bit_exact=seen.bit_exact,
            deterministic=True,
            variants=(f"{self.calls} calls of one run",),
        )


def upstream_sources(wiring: Wiring) -> dict[str, str]:
    """First 16 digits of the SHA-256 of the present source of every upstream object it binds to, or `missing`."""
    found = {}
    for name in wiring.pinned:
        module_name, _, path = name.partition(":")
        try:
            value: Any = importlib.import_module(module_name)
            for part in path.split("."):
                value = getattr(value, part)
            found[name] = hashlib.sha256(inspect.getsource(value).encode()).hexdigest()[:16]
        except (ImportError, AttributeError, OSError, TypeError):
            found[name] = "missing"
    return found
