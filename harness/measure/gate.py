"""The gate before any timing, and again after it, on the very callables that are timed.

For each input variant the references are computed once and every arm is judged on them:

* seed 0, N(0, 1): the element rule against native and the oracle, two runs with the same bits, no undeclared
  mutation (checksums of whole storages), no output that aliases an input;
* seed 1 written into the same tensors: a result cached by pointer or identity is stale now;
* scaled, small and offset activations: against the oracle only.

Memory that outputs are likely to be allocated in is filled with NaN before every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.measure.accuracy import Comparison
from harness.measure.arms import Arm
from harness.measure.inputs import SeededDraw, Variant, fingerprint, storage_fingerprint
from harness.measure.ranks import ONLY_SEAT, Seat
from harness.op import Args, Context, Op
from harness.schema.case import Case
from harness.schema.manifest import Tolerance
from harness.schema.measurement import GateRecord
from harness.schema.vocabulary import Contract, Kind

Outputs = tuple[Tensor, ...]
_FP64_LIMIT = 1 << 30
"""Elements above which the oracle is fp32: four fp64 temporaries would not fit beside the case."""
_VARIANTS_LIMIT = 1 << 26
"""Elements above which scaled variants are left to the op's smaller cases: the kernel is the same, the time is not."""


def tensors_of(args: Args) -> dict[str, Tensor]:
    """The tensor arguments, by name."""
    return {name: value for name, value in args.items() if isinstance(value, Tensor)}


def as_tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Outputs of an implementation as a tuple."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


def same_strided_copy(tensor: Tensor, storage: torch.UntypedStorage | None = None) -> Tensor:
    """A copy with the same strides, gaps included (`clone` would close them), in storage of its own or in `storage`."""
    storage = tensor.untyped_storage().clone() if storage is None else storage
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return copy.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def copied_args(args: Args) -> Args:
    """Arguments whose tensors are copies with the same strides; views of one storage stay views of one storage."""
    storages: dict[int, torch.UntypedStorage] = {}
    copies = dict(args)
    for name, tensor in tensors_of(args).items():
        original = tensor.untyped_storage()
        if (key := original.data_ptr()) not in storages or not key:
            storages[key] = original.clone()
        copies[name] = same_strided_copy(tensor, storages[key])
    return copies


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind tensors, each storage counted once."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def beside(args: Args, names: Iterable[str]) -> list[str]:
    """Fingerprints of the storages behind some arguments with the arguments themselves blanked."""
    blanked = copied_args({name: args[name] for name in names})
    for tensor in blanked.values():
        tensor.zero_()
    return [storage_fingerprint(tensor) for tensor in blanked.values()]


@dataclass
class Reference:
    """One set of inputs with what native and the oracle make of it."""

    variant: Variant
    args: Args
    native: tuple[Tensor, ...]
    oracle: tuple[Tensor, ...]
    fingerprints: dict[str, str]
    seed_offset: int


class Gate:
    """The gate of one case, alone or in one context, on one device."""

    def __init__(
        self,
        op: Op,
        case: Case,
        context: Context | None,
        tolerance: Tolerance,
        device: torch.device,
        seed: int,
        seat: Seat = ONLY_SEAT,
    ) -> None:
        self.op = op
        self.case = case
        self.context = context
        self.tolerance = tolerance
        self.device = device
        self.seed = seed
        self.seat = seat
        self.oracle_dtype = torch.float64 if case.numel <= _FP64_LIMIT else torch.float32

    def variants(self) -> list[tuple[int, Variant]]:
        """(seed offset, variant) in the order tried; the first two share their tensors."""
        plain = [(0, Variant.NORMAL), (1, Variant.NORMAL)]
        if self.case.numel > _FP64_LIMIT:
            return plain[:1]
        if self.case.numel > _VARIANTS_LIMIT:
            return plain
        return [*plain, (0, Variant.LARGE), (0, Variant.SMALL), (0, Variant.OFFSET)]

    def draw(
        self, seed_offset: int = 0, variant: Variant = Variant.NORMAL, *, weights_offset: int | None = None
    ) -> Args:
        """The op's (or context's) arguments from the recorded seed; weights from another offset when one is given."""
        dtype = getattr(torch, self.case.dtype)
        make = self.op.inputs if self.context is None else self.context.inputs
        weight_seed = self.seed + (seed_offset if weights_offset is None else weights_offset)
        draw = SeededDraw(self.seed + seed_offset, dtype, self.device, variant, weight_seed, self.seat)
        return make(self.case, draw)

    @property
    def held_offset(self) -> int:
        """Seed offset of the values that the first reference's tensors hold once all references were seen."""
        return max(offset for offset, variant in self.variants() if variant is Variant.NORMAL)

    def repair(self, reference: Reference) -> None:
        """Draw the reference's inputs again, whole storages: an arm that failed may have written to them."""
        fresh = self.draw(reference.seed_offset, reference.variant)
        for name, tensor in tensors_of(reference.args).items():
            tensor.untyped_storage().copy_(fresh[name].untyped_storage())

    def reference(self, args: Args, variant: Variant = Variant.NORMAL, seed_offset: int = 0) -> Reference:
        """Native and oracle outputs for `args`; both see copies, so an in-place native cannot spoil them."""
        native = self.op.native if self.context is None else self.context.compose(self.op.native)
        upcast = {
            name: value.to(self.oracle_dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
            for name, value in args.items()
        }
        oracle = as_tuple(native(**upcast))
        del upcast
        fingerprints = {name: storage_fingerprint(tensor) for name, tensor in tensors_of(args).items()}
        return Reference(variant, args, as_tuple(native(**args)), oracle, fingerprints, seed_offset)

    def references(self) -> Iterator[Reference]:
        """One reference per variant; seed 1 is written into seed 0's tensors, so their addresses stay."""
        first: Args | None = None
        for seed_offset, variant in self.variants():
            args = self.draw(seed_offset, variant)
            if seed_offset == 1 and first is not None:
                for name, tensor in tensors_of(args).items():
                    first[name].copy_(tensor)
                args = first
            elif first is None:
                first = args
            yield self.reference(args, variant, seed_offset)

    def interpreted(self, arm: Arm) -> bool:
        """Whether the arm's kernels run in Triton's interpreter: program after program in Python, seconds a call."""
        return arm.kind is Kind.TRITON and self.device.type == "cpu"

    def granted_ulp(self, arm: Arm) -> int:
        """Triton's interpreter truncates to 16-bit types where the hardware rounds: one ULP, said in the notes."""
        return int(self.interpreted(arm) and self.case.dtype.bytes == 2)

    def poison(self, reference: Reference) -> None:
        """Leave NaN in the memory that the next outputs will likely be allocated in."""
        for output in reference.native:
            torch.empty_like(output).fill_(float("nan"))

    def compare(self, arm: Arm, comparison: Comparison, outputs: Iterable[Tensor], reference: Reference) -> str:
        """Add outputs to `comparison`; a sentence when they cannot be compared at all (shape, dtype), else empty."""
        outputs = tuple(outputs)
        if len(outputs) != len(reference.native):
            return f"{len(outputs)} outputs where native has {len(reference.native)}"
        for got, native, oracle in zip(outputs, reference.native, reference.oracle, strict=True):
            if not isinstance(got, Tensor):
                return f"output is a {type(got).__name__}, native's a tensor"
            if got.shape != native.shape or got.dtype != native.dtype:
                return f"output is {tuple(got.shape)} {got.dtype}, native's is {tuple(native.shape)} {native.dtype}"
            comparison.add(
                got,
                native,
                oracle,
                against_native=reference.variant is Variant.NORMAL,
                extra_ulp=self.granted_ulp(arm),
            )
        return comparison.verdict()

    def new_comparison(self) -> Comparison:
        """An empty comparison at the manifest's tolerance."""
        return Comparison(atol=self.tolerance.atol, rtol=self.tolerance.rtol)


class ArmGate:
    """Judges one arm over the references it is shown, one after another.

    Not `thorough`, it leaves out the second run on the same inputs and the scaled and shifted inputs, and notes it:
    for interpreted kernels that an earlier comparison, on the same layout and dtype, judged in full.
    """

    def __init__(self, gate: Gate, arm: Arm, *, thorough: bool = True) -> None:
        self.gate = gate
        self.arm = arm
        self.thorough = thorough
        self.plain = gate.new_comparison()
        self.bit_exact = True
        self.deterministic = True
        self.reason = ""
        self.variants: list[str] = []
        self.digests: tuple[str, ...] = ()
        """Fingerprints of the outputs judged last, where the candidate claims them equal on all ranks."""

    def see(self, reference: Reference) -> None:
        """Run the arm on one reference; the first failure sticks."""
        if self.reason or not (self.thorough or reference.variant is Variant.NORMAL):
            return
        label = f"{reference.variant}" if reference.variant not in self.variants else f"{reference.variant}, new values"
        reason = self._run(reference, first=not self.variants)
        self.variants.append(label)
        if reason:
            self.reason = f"{label}: {reason}"

    def judge(self, outputs: tuple[Tensor, ...], given: Args, reference: Reference) -> None:
        """Judge outputs that the timed path made of `given`, which held the reference's values before it."""
        self.variants.append(f"{reference.variant}")
        self._digest(outputs)
        self.reason = self._mutation(given, reference) or self.gate.compare(self.arm, self.plain, outputs, reference)
        self.bit_exact = self.plain.bit_exact
        if not self.reason and self.arm.contract is Contract.BIT_EXACT and not self.bit_exact:
            self.reason = f"claims bit_exact, but {self.plain.max_ulp} ULP from native"

    def _run(self, reference: Reference, *, first: bool) -> str:
        arm, gate = self.arm, self.gate
        # The same tensors in every variant that shares them: only an arm that declares mutation gets copies.
        given = copied_args(reference.args) if arm.mutates else reference.args
        args = arm.prepared(given)
        gate.poison(reference)
        outputs = arm.outputs(args)
        self._digest(outputs)
        # Before the outputs are judged: an earlier call may have spoiled the inputs, and this says so.
        if reason := self._mutation(given, reference):
            return reason
        comparison = self.plain if first else gate.new_comparison()
        reason = gate.compare(arm, comparison, outputs, reference)
        self.bit_exact = self.bit_exact and comparison.bit_exact
        if reason:
            return reason
        if arm.contract is Contract.BIT_EXACT and not comparison.bit_exact:
            return f"claims bit_exact, but {comparison.max_ulp} ULP from native"
        if first:
            if reason := self._aliasing(args, outputs):
                return reason
            return self._repeat(reference, outputs) if self.thorough else ""
        return ""

    def _digest(self, outputs: tuple[Tensor, ...]) -> None:
        if self.arm.candidate is not None and self.arm.candidate.equal_ranks:
            self.digests = tuple(fingerprint(output) for output in outputs)

    def _mutation(self, given: Args, reference: Reference) -> str:
        for name, tensor in tensors_of(given).items():
            if name not in self.arm.mutates and storage_fingerprint(tensor) != reference.fingerprints[name]:
                return f"writes to its input {name!r} without declaring it (mutates=...)"
        declared = [name for name in sorted(tensors_of(given)) if name in self.arm.mutates]
        if declared and beside(given, declared) != beside(reference.args, declared):
            return f"writes beside its inputs {', '.join(map(repr, declared))}, into the rest of their storage"
        return ""

    def _aliasing(self, args: Args, outputs: tuple[Tensor, ...]) -> str:
        if self.arm.returns:
            return ""
        inputs = {t.untyped_storage().data_ptr(): name for name, t in tensors_of(args).items() if t.numel()}
        for output in outputs:
            if output.numel() and (name := inputs.get(output.untyped_storage().data_ptr())):
                return f"returns memory of its input {name!r}"
        return ""

    def _repeat(self, reference: Reference, outputs: tuple[Tensor, ...]) -> str:
        kept = tuple(output.clone() for output in outputs)
        given = copied_args(reference.args) if self.arm.mutates else reference.args
        args = self.arm.prepared(given)
        self.gate.poison(reference)
        again = self.arm.outputs(args)
        if reason := self._mutation(given, reference):
            return reason
        if reason := self._kept(outputs, kept, again):
            return reason
        self.deterministic = all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))
        declared = self.arm.candidate is None or self.arm.candidate.deterministic
        if not self.deterministic and declared:
            return "two runs on the same inputs differ (declare deterministic=False if that is meant)"
        return ""

    def _kept(self, first: Outputs, as_returned: Outputs, second: Outputs) -> str:
        """What becomes of the first call's outputs, which the caller still holds, in the second."""
        if self.arm.returns:
            return ""
        storages = {output.untyped_storage().data_ptr() for output in first if output.numel()}
        if any(output.numel() and output.untyped_storage().data_ptr() in storages for output in second):
            return "returns the memory of an earlier call's output, which its caller still holds"
        if not all(torch.equal(a, b) for a, b in zip(first, as_returned, strict=True)):
            return "writes to an earlier call's output, which its caller still holds"
        return ""

    def record(self, notes: tuple[str, ...] = ()) -> GateRecord:
        """What was seen so far, for the store."""
        granted = self.gate.granted_ulp(self.arm)
        if granted:
            notes = (*notes, f"{granted} ULP granted: Triton's interpreter truncates where the hardware rounds")
        if not self.thorough:
            notes = (*notes, "interpreted: a repeated run and scaled inputs were judged in an earlier comparison")
        plain = self.plain
        return GateRecord(
            passed=not self.reason,
            reason=self.reason,
            oracle=str(self.gate.oracle_dtype).removeprefix("torch."),
            elements=plain.elements,
            literal_failures=plain.literal_failures,
            rule_failures=plain.rule_failures,
            max_abs_error_native=plain.max_abs_error_native,
            rms_error_oracle=plain.rms_error,
            rms_error_native_oracle=plain.rms_error_native,
            max_ulp=plain.max_ulp,
            p999_ulp=plain.p999_ulp,
            bit_exact=self.bit_exact,
            deterministic=self.deterministic,
            variants=tuple(self.variants),
            notes=notes,
        )
