"""Turns declarations into the callables that are gated and timed: one object per arm, the same one throughout.

The baseline, its twin, rewrites and everything in a context are compiled by `torch.compile(fullgraph=True,
dynamic=False)`, each from its own code object (Dynamo's cache is per code object, so arms that shared one would share
its recompile limit and its guards). Triton and CUDA candidates are registered as custom ops.
"""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.measure.global_state import watched
from harness.measure.ranks import ALONE, Team, first_told
from harness.op import Args, Candidate, Context, Device, Impl, Op
from harness.protocol import Task
from harness.schema.case import Case
from harness.schema.vocabulary import ArmStatus, Contract, Kind, Role

BASELINE_ID = "torch.compile"
CONTROL_ID = "torch.compile_control"
TWIN_ID = "torch.compile_twin"
NATIVE_ID = "torch.native"
NO_MULTICAST = "needs NVLink multicast, which stays off here"

_serial = itertools.count()
_registered: dict[tuple[str, str], tuple[Impl, Impl]] = {}


class GraphCounter:
    """A Dynamo backend that is Inductor and counts the graphs it is given: 1 and no more is a certified compile."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: list[Tensor]) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx

        self.graphs += 1
        return compile_fx(graph_module, example_inputs)  # type: ignore[return-value]


@dataclass
class Arm:
    """One thing timed in a comparison."""

    id: str
    kind: Kind
    role: Role
    contract: Contract
    call: Impl
    """Takes the prepared arguments by keyword; what the gate checks and the clock times."""
    registration: str
    candidate: Candidate | None = None
    counter: GraphCounter | None = None
    cache_tag: str = ""
    """Salt of the compile cache key, so that the twin never reuses the baseline's artefact."""
    mutates: tuple[str, ...] = ()
    returns: tuple[str, ...] = ()

    def prepared(self, args: Args) -> Args:
        """The arguments the callable takes: what the candidate's untimed `prepare` makes of a copy of the op's."""
        if self.candidate is None or self.candidate.prepare is None:
            return args
        return self.candidate.prepare(dict(args))

    def outputs(self, args: Args) -> tuple[Tensor, ...]:
        """Call once on prepared arguments; the outputs as a tuple, mutated arguments included."""
        with torch.compiler.config.patch(cache_key_tag=self.cache_tag):  # type: ignore[attr-defined]
            result = self.call(**args)
        if self.returns:
            return tuple(args[name] for name in self.returns)
        return result if isinstance(result, tuple) else (result,)


def own_code(function: Impl, label: str) -> Impl:
    """A copy of a Python function with a code object of its own (Dynamo caches per code object)."""
    inner = function
    code = inner.__code__.replace(co_name=f"{inner.__code__.co_name}_{label}_{next(_serial)}")
    copy = types.FunctionType(code, inner.__globals__, inner.__name__, inner.__defaults__, inner.__closure__)
    copy.__kwdefaults__ = inner.__kwdefaults__
    return copy


def _compiled(function: Impl, label: str) -> tuple[Impl, GraphCounter]:
    counter = GraphCounter()
    return torch.compile(own_code(function, label), fullgraph=True, dynamic=False, backend=counter), counter


def registered_op(candidate: Candidate, op: Op) -> Impl:
    """The candidate as a custom op (`torch.library.custom_op` + `register_fake`), registered once per process.

    Raises ValueError when another kernel has that name already: the first would be timed under the second's name.

    `flexible_layout`: Inductor hands over tensors with the strides they have instead of copying them back to eager's.
    """
    key = (candidate.op, candidate.id)
    if key in _registered and _registered[key][0] is not candidate.run:
        raise ValueError(f"{candidate.op}: two kernels are called {candidate.id} in one process; give one another name")
    if key not in _registered:
        name = f"dit_harness::{candidate.op}_{candidate.provider.id}_{candidate.name}"
        custom = torch.library.custom_op(
            name, candidate.run, mutates_args=candidate.mutates, tags=(torch.Tag.flexible_layout,)
        )
        custom.register_fake(candidate.fake or _default_fake(candidate, op))
        namespace, _, op_name = name.partition("::")
        _registered[key] = candidate.run, getattr(getattr(torch.ops, namespace), op_name).default
    return _registered[key][1]


def _default_fake(candidate: Candidate, op: Op) -> Impl:
    """Nothing returned in place; the op's fake; in a context, that between the neighbours themselves."""
    if candidate.returns:
        return lambda *args, **kwargs: None
    whole = op.fake if candidate.context is None else op.context(candidate.context).compose(op.fake)
    names = inspect.signature(candidate.run)

    def fake(*args: Any, **kwargs: Any) -> Any:
        # torch calls it in the candidate's order of arguments, those that equal their defaults left out
        given = names.bind(*args, **kwargs)
        given.apply_defaults()
        return whole(**given.arguments)

    return fake


def _implementation(candidate: Candidate, op: Op) -> Impl:
    return candidate.run if candidate.kind is Kind.REWRITE else registered_op(candidate, op)


def baseline_arms(op: Op, context: Context | None) -> list[Arm]:
    """Native (eager), the compiled baseline, the same code once more as its A/A control, and its twin."""
    function = op.native if context is None else context.compose(op.native)
    baseline, counter = _compiled(function, "baseline")
    twin, twin_counter = _compiled(function, "twin")
    exact, tolerance = Contract.BIT_EXACT, Contract.TOLERANCE
    return [
        Arm(NATIVE_ID, Kind.NATIVE, Role.CANDIDATE, exact, function, "function"),
        Arm(BASELINE_ID, Kind.COMPILE, Role.BASELINE, tolerance, baseline, "compiled", counter=counter),
        Arm(CONTROL_ID, Kind.COMPILE, Role.CONTROL, tolerance, baseline, "compiled", counter=counter),
        Arm(TWIN_ID, Kind.COMPILE, Role.TWIN, tolerance, twin, "compiled", counter=twin_counter, cache_tag="twin"),
    ]


def candidate_arm(candidate: Candidate, op: Op, context: Context | None) -> Arm:
    """The arm of one candidate: alone, or composed with the context's neighbours and compiled with them."""
    counter = None
    implementation = _implementation(candidate, op)
    registration = "custom_op"
    whole = candidate.context is not None
    mutates, returns, contract = candidate.mutates, candidate.returns, candidate.contract
    if context is not None and not whole:
        # Inductor does not round between the neighbours' steps as eager does: the claim is about the kernel alone.
        contract = Contract.TOLERANCE
        implementation, counter = _compiled(context.compose(_returning(implementation, returns)), candidate.name)
        mutates, returns = (*mutates, *context.scratch) if mutates else (), ()
        registration = "compiled" if candidate.kind is Kind.REWRITE else "custom_op in compiled context"
    elif candidate.kind is Kind.REWRITE:
        implementation, counter = _compiled(implementation, candidate.name)
        registration = "compiled"
    return Arm(
        candidate.id,
        candidate.kind,
        Role.CANDIDATE,
        contract,
        implementation,
        registration,
        candidate=candidate,
        counter=counter,
        mutates=mutates,
        returns=returns,
    )


def _returning(implementation: Impl, names: tuple[str, ...]) -> Impl:
    """An implementation that writes its outputs into its arguments `names`, as one that returns them."""
    if not names:
        return implementation

    def returning(**args: Any) -> Any:
        implementation(**args)
        outputs = tuple(args[name] for name in names)
        return outputs if len(outputs) > 1 else outputs[0]

    return returning


@dataclass(frozen=True)
class Declined:
    """A candidate that gets no arm in a comparison, with why."""

    candidate: Candidate
    status: ArmStatus
    reason: str


def arms_of(
    op: Op, candidates: Iterable[Candidate], task: Task, device: Device, team: Team = ALONE
) -> tuple[list[Arm], list[Declined]]:
    """The arms of a task, native and the baseline with its controls first, and the candidates that get none.

    What is refused on one rank is refused on all.
    """
    context = op.context(task.context) if task.context else None
    arms, declined = baseline_arms(op, context), []
    for candidate in candidates:
        if candidate.context not in (None, task.context):
            continue
        if task.only is not None and candidate.id not in task.only:
            continue
        with watched() as settings:
            refusal = _refusal(candidate, task.case, device)
        if settings.changed:
            refusal = ArmStatus.GATE_FAILED, f"its guard or provider {settings.changed}"
        refusal = _of_any(team.gather(refusal, f"refusal of {candidate.id}"))
        if refusal is not None:
            declined.append(Declined(candidate, *refusal))
        else:
            arms.append(candidate_arm(candidate, op, context))
    return arms, declined


def _of_any(refusals: list[tuple[ArmStatus, str] | None]) -> tuple[ArmStatus, str] | None:
    """The first rank's refusal that there is."""
    first = next((refusal for refusal in refusals if refusal is not None), None)
    return None if first is None else (first[0], first_told([refusal[1] if refusal else "" for refusal in refusals]))


def _refusal(candidate: Candidate, case: Case, device: Device) -> tuple[ArmStatus, str] | None:
    """Why a candidate gets no arm, asked of its provider and its guard."""
    if candidate.multicast:
        return ArmStatus.INELIGIBLE, NO_MULTICAST
    if device.type == "cpu" and candidate.kind is Kind.CUDA:
        return ArmStatus.INELIGIBLE, "needs an NVIDIA GPU"
    if missing := candidate.provider.missing():
        return ArmStatus.NOT_INSTALLED, missing
    if reason := candidate.declines(case, device):
        return ArmStatus.INELIGIBLE, reason
    return None


def certified(arm: Arm) -> str | None:
    """Why the arm's compile does not count as `native + torch.compile`, or None when it does."""
    if arm.counter is None or arm.counter.graphs == 1:
        return None
    if arm.counter.graphs == 0:
        return "torch.compile ran nothing: it fell back to eager"
    return f"torch.compile made {arm.counter.graphs} graphs where one was expected (graph break or recompile)"


def autotuned_configs(candidate: Candidate) -> dict[str, str]:
    """Configurations that Triton autotuners in the candidate's module settled on, by kernel name."""
    import triton

    chosen: dict[str, str] = {}
    for name, value in getattr(candidate.run, "__globals__", {}).items():
        if isinstance(value, triton.runtime.Autotuner) and getattr(value, "best_config", None) is not None:
            chosen[name] = str(value.best_config)
    return chosen


def inductor_configs(modules: Iterable[types.ModuleType]) -> dict[str, str]:
    """Configurations that Inductor's own tuning settled on, by kernel name: the compile's lottery, on record.

    `modules` are generated ones (`PyCodeCache.modules`). A kernel that was not launched yet has several launchers left.
    """
    chosen: dict[str, str] = {}
    for module in modules:
        for name, value in vars(module).items():
            launchers = getattr(value, "launchers", None)
            if isinstance(launchers, list) and len(launchers) == 1:
                chosen[name] = str(launchers[0].config)
    return chosen
