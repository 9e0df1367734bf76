"""Contract probes of one candidate, on the op's small shapes, once per worker: strides, empties, fakes, registration.

A layout is right, or declared ineligible by the guard with a reason, or refused with an exception; never silently
wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from harness.measure.arms import Arm, own_code
from harness.measure.gate import ArmGate, Gate, as_tuple, copied_args
from harness.measure.link import Link, first_line, recovered
from harness.measure.ranks import ALONE, Team
from harness.op import Args, Candidate, Context, Device, Op
from harness.schema.case import Case, Layout
from harness.schema.manifest import Tolerance
from harness.schema.vocabulary import Kind

_SEED = 20_260
"""Probes only ask right or wrong; their seed need not vary with the run's."""


def _probe_cases(case: Case) -> list[tuple[str, Case]]:
    """The small twin in every layout its rank allows, with a first dim of 2 or more, of 1, and empty."""
    small = case.rehearsed()
    first = next(iter(small.dims))
    probes = []
    for layout in Layout:
        if layout is Layout.CHANNELS_LAST and len(small.dims) not in (4, 5):
            continue
        # Two batches at least: a kernel that gives every batch the first one's result is right on one.
        size = max(small.dims[first], 2) if layout is Layout.CONTIGUOUS else small.dims[first]
        update = {"layout": layout, "dims": {**small.dims, first: size}}
        probes.append((f"layout {layout}", small.model_copy(update=update)))
    one = small.model_copy(update={"dims": {**small.dims, first: 1}, "layout": Layout.ODD_STRIDE})
    probes.append((f"{first} = 1 with an odd stride", one))
    probes.append((f"empty ({first} = 0)", small.model_copy(update={"dims": {**small.dims, first: 0}})))
    return probes


class ContractProbe:
    """Probes one candidate of an op (or of one context of it)."""

    def __init__(
        self, op: Op, context: Context | None, tolerance: Tolerance, device: Device, link: Link | None = None
    ) -> None:
        """`link` tells the ranks of each other; without one this process is alone."""
        self.link = link
        self.team: Team = link.team if link is not None else ALONE
        self.op = op
        self.context = context
        self.tolerance = tolerance
        self.device = device
        self.torch_device = torch.device(device.type)

    def run(self, candidate: Candidate, arm: Arm, case: Case) -> tuple[str, tuple[str, ...]]:
        """(why it breaks its contract or "", notes on what was probed and what its guard declined)."""
        notes: list[str] = []
        args: Args | None = None
        if candidate.kind in (Kind.TRITON, Kind.CUDA):
            if candidate.declines(case.rehearsed(), self.device) is None:
                args = arm.prepared(self._gate(case.rehearsed()).draw())
                for check in (self._fake_agrees, self._operator_check):
                    if reason := check(candidate, arm, args):
                        return reason, tuple(notes)
            else:
                notes.append("registration not probed: ineligible at the probe's size")
        declined: list[str] = []
        refused: list[str] = []
        for what, probe in _probe_cases(case):
            if (why := candidate.declines(probe, self.device)) is not None:
                declined.append(f"{what}: {why}")
                continue
            reason = refusal = ""
            try:
                reason = self._right(candidate, arm, probe)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                # Loud refusal is allowed; what must not happen is a wrong answer in silence, or a lost device.
                if recovered(self.device.type):
                    raise
                refusal = f"{type(error).__name__}: {first_line(error)[:80]}"
            if self.link is not None:
                self.link.ended(refusal)
            if reason := self.team.told(reason, f"{what} wrong"):
                return f"{what}: {reason}", tuple(notes)
            if refusal := self.team.told(refusal, f"{what} refused"):
                refused.append(f"{what}: {refusal}")
        if refused:
            notes.append("raises on: " + "; ".join(refused))
        if declined:
            notes.append("declined by its guard: " + "; ".join(declined))
        # After the layouts: only what is right in eager mode can be said to differ from it.
        return self._compiled_agrees(candidate, arm, args) if args is not None else "", tuple(notes)

    def _gate(self, case: Case) -> Gate:
        return Gate(self.op, case, self.context, self.tolerance, self.torch_device, _SEED, self.team.seat)

    def _right(self, candidate: Candidate, arm: Arm, case: Case) -> str:
        gate = self._gate(case)
        # Rewrites are probed uncompiled: they have no strides of their own, and the compiled form is gated per case.
        call = candidate.run if candidate.kind is Kind.REWRITE else arm.call
        probed = Arm(**{**arm.__dict__, "call": call, "counter": None})
        if arm.mutates:
            # The first call at a shape may tune, and tuning runs an in-place kernel on its input many times.
            probed.outputs(probed.prepared(gate.draw()))
        # In the interpreter programs run one after another: the gate's own repeat tells what a second run would here.
        probe = ArmGate(gate, probed, thorough=not gate.interpreted(arm))
        probe.see(gate.reference(gate.draw()))
        return probe.reason.removeprefix("normal: ")

    def _fake_agrees(self, candidate: Candidate, arm: Arm, args: Args) -> str:
        real_args = copied_args(args)
        real = as_tuple(arm.call(**real_args) if not arm.returns else ())
        with FakeTensorMode() as mode:
            fake_args = {k: mode.from_tensor(v) if isinstance(v, Tensor) else v for k, v in args.items()}
            fake = as_tuple(arm.call(**fake_args) if not arm.returns else ())
        for got, said in zip(real, fake, strict=True):
            if got.shape != said.shape or got.dtype != said.dtype:
                return f"its fake says {tuple(said.shape)} {said.dtype}, it returns {tuple(got.shape)} {got.dtype}"
            if got.numel() and got.stride() != said.stride():
                return f"its fake says strides {said.stride()}, it writes {got.stride()}"
        return ""

    def _operator_check(self, candidate: Candidate, arm: Arm, args: Args) -> str:
        overload: Any = arm.call
        schema = overload._schema
        mine = copied_args(args)
        given = {argument.name: mine.get(argument.name, argument.default_value) for argument in schema.arguments}
        by_name = {argument.name: given.pop(argument.name) for argument in schema.arguments if argument.kwarg_only}
        results = torch.library.opcheck(
            overload,
            tuple(given.values()),
            by_name,
            test_utils=("test_schema", "test_faketensor"),
            raise_exception=False,
        )
        for test, result in results.items():
            if result != "SUCCESS":
                return f"torch.library.opcheck {test}: {str(result).splitlines()[0]}"
        return ""

    def _compiled_agrees(self, candidate: Candidate, arm: Arm, args: Args) -> str:
        """`fullgraph` compile of a call with neighbours must give what eager gives."""
        if arm.returns or not candidate.deterministic:
            return ""
        overload = arm.call

        def neighboured(**kwargs: Any) -> tuple[Tensor, ...]:
            return tuple(output * 2 for output in as_tuple(overload(**kwargs)))

        compiled: Callable[..., Any] = torch.compile(own_code(neighboured, "probe"), fullgraph=True, dynamic=False)
        eager = neighboured(**copied_args(args))
        for got, want in zip(compiled(**copied_args(args)), eager, strict=True):
            if not torch.equal(got, want):
                return "right in eager mode, different inside torch.compile"
        return ""
