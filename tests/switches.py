"""How to switch off each defence of the harness, one at a time; only `python -m tests.defences` does.

A test that is marked `defence(name)` must fail once `switch_off(name)` has run. Switches replace functions, constants,
or a line of a module as it is imported (`tests.edits`), all from outside: the harness itself knows nothing of them.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from tests import edits

OFF_VARIABLE = "HARNESS_TEST_OFF"
"""Environment variable with the name of the defence that is off; workers that tests start inherit it."""

OFF: dict[str, Callable[[], None]] = {name: partial(edits.apply, changes) for name, changes in edits.EDITS.items()}
"""By name, what switches the defence off in the process that calls it, for good; call it before anything else."""


def switch_off(name: str) -> None:
    """Switch one defence off in this process. Raises KeyError for a name without a switch."""
    OFF[name]()


def _off(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(switch: Callable[[], None]) -> Callable[[], None]:
        assert name not in OFF, name
        OFF[name] = switch
        return switch

    return add


def _everywhere(original: Any, replacement: Any) -> None:
    """Replace an object under whatever name the harness's loaded modules know it."""
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == "harness":
            for attribute, value in list(vars(module).items()):
                if value is original:
                    setattr(module, attribute, replacement)


def _says_nothing(*args: Any, **kwargs: Any) -> str:
    """In place of a check that returns a reason."""
    return ""


# -- the gate ----------------------------------------------------------------------------------------------------------


@_off("gate_nan")
def _() -> None:
    """NaN compares as equal, as where a difference is asked to be above the tolerance."""
    import torch

    from harness.measure.accuracy import Comparison

    add = Comparison.add

    def forgiving(self: Comparison, candidate: Any, native: Any, oracle: Any, **more: Any) -> None:
        native = torch.nan_to_num(native)
        add(self, torch.where(torch.isfinite(candidate), candidate, native), native, torch.nan_to_num(oracle), **more)

    Comparison.add = forgiving  # type: ignore[method-assign]


@_off("accuracy_rms")
def _() -> None:
    from harness.measure import accuracy

    accuracy.RMS_FACTOR = float("inf")


@_off("accuracy_each_output")
def _() -> None:
    """Hold all outputs together to native's error."""
    from harness.measure import accuracy

    accuracy.Comparison.rms_failure = property(  # type: ignore[assignment,misc]
        lambda self: self._squared.failure(accuracy.RMS_FACTOR, ""), lambda self, value: None
    )


@_off("accuracy_fp32_rms")
def _() -> None:
    from harness.measure import accuracy

    accuracy.RMS_FACTOR_FP32 = float("inf")


@_off("accuracy_oracle_branch")
def _() -> None:
    """Only allclose against native counts: what is nearer to the truth than native fails."""
    from harness.measure.accuracy import Comparison

    add = Comparison.add

    def literal(self: Comparison, candidate: Any, native: Any, oracle: Any, **more: Any) -> None:
        add(self, candidate, native, oracle, **more)
        self.rule_failures = self.literal_failures

    Comparison.add = literal  # type: ignore[method-assign]


@_off("accuracy_ulp")
def _() -> None:
    """No grain: a tolerance below half a ULP refuses every rounding but native's."""
    import torch

    from harness.measure import accuracy

    accuracy.ulp = lambda magnitude, dtype: torch.zeros_like(magnitude)


@_off("contract_layouts")
def _() -> None:
    from harness.measure import contract

    contract._probe_cases = lambda case: []


@_off("contract_two_batches")
def _() -> None:
    from harness.measure import contract

    contract.max = lambda size, least: size  # type: ignore[attr-defined]


@_off("contract_fake")
def _() -> None:
    """Neither our comparison of the fake nor opcheck's."""
    from harness.measure.contract import ContractProbe

    ContractProbe._fake_agrees = _says_nothing  # type: ignore[method-assign]
    ContractProbe._operator_check = _says_nothing  # type: ignore[method-assign]


@_off("contract_compiled")
def _() -> None:
    from harness.measure.contract import ContractProbe

    ContractProbe._compiled_agrees = _says_nothing  # type: ignore[method-assign]


@_off("gate_scratch")
def _() -> None:
    """What an in-place kernel does while it tunes itself is judged: no first call on scratch."""
    from harness.measure.comparison import _Run
    from harness.measure.gate import ArmGate

    def without_a_first_call(self: Any, state: Any, reference: Any) -> None:
        state.gate = ArmGate(self.gate, state.arm)

    _Run._build = without_a_first_call  # type: ignore[method-assign]


@_off("gate_whole_storage")
def _() -> None:
    from harness.measure import inputs

    _everywhere(inputs.storage_fingerprint, inputs.fingerprint)


@_off("gate_mutation")
def _() -> None:
    from harness.measure.gate import ArmGate

    ArmGate._mutation = _says_nothing  # type: ignore[method-assign]


@_off("gate_repair")
def _() -> None:
    from harness.measure.gate import Gate

    Gate.repair = lambda self, reference: None  # type: ignore[method-assign]


@_off("gate_aliasing")
def _() -> None:
    from harness.measure.gate import ArmGate

    ArmGate._aliasing = _says_nothing  # type: ignore[method-assign]


@_off("gate_poison")
def _() -> None:
    from harness.measure.gate import Gate

    Gate.poison = lambda self, reference: None  # type: ignore[method-assign]


@_off("gate_repeat")
def _() -> None:
    from harness.measure.gate import ArmGate

    ArmGate._repeat = _says_nothing  # type: ignore[method-assign]


@_off("gate_kept_outputs")
def _() -> None:
    from harness.measure.gate import ArmGate

    ArmGate._kept = _says_nothing  # type: ignore[method-assign]


@_off("gate_bit_exact")
def _() -> None:
    from harness.measure.accuracy import Comparison

    add = Comparison.add

    def trusting(self: Comparison, *args: Any, **more: Any) -> None:
        add(self, *args, **more)
        self.bit_exact = True

    Comparison.add = trusting  # type: ignore[method-assign]


@_off("gate_new_values")
def _() -> None:
    """Seed 1 is not written into the tensors of seed 0."""
    from harness.measure.gate import Gate
    from harness.measure.inputs import Variant

    variants = Gate.variants
    Gate.variants = lambda self: [v for v in variants(self) if v != (1, Variant.NORMAL)]  # type: ignore[method-assign]


@_off("gate_scaled_variants")
def _() -> None:
    from harness.measure.gate import Gate
    from harness.measure.inputs import Variant

    variants = Gate.variants
    Gate.variants = lambda self: [v for v in variants(self) if v[1] is Variant.NORMAL]  # type: ignore[method-assign]


@_off("gate_timed_callable")
def _() -> None:
    """The gate calls the candidate's function instead of what is timed."""
    from dataclasses import replace

    from harness.measure.arms import Arm
    from harness.measure.gate import ArmGate

    run = ArmGate._run

    def eager(self: ArmGate, reference: Any, *, first: bool) -> str:
        timed: Arm = self.arm
        if timed.candidate is not None:
            self.arm = replace(timed, call=timed.candidate.run)
        try:
            return run(self, reference, first=first)
        finally:
            self.arm = timed

    ArmGate._run = eager  # type: ignore[method-assign]
    _no_replay()


@_off("inputs_differ_by_batch")
def _() -> None:
    from harness.measure.inputs import SeededDraw

    activation = SeededDraw.activation

    def alike(self: SeededDraw, *args: Any, **more: Any) -> Any:
        tensor = activation(self, *args, **more)
        if tensor.numel():
            tensor.copy_(tensor[:1].clone().expand(tensor.shape))
        return tensor

    SeededDraw.activation = alike  # type: ignore[method-assign]


@_off("inputs_drawn_weights")
def _() -> None:
    from harness.measure.inputs import SeededDraw

    weight = SeededDraw.weight
    SeededDraw.weight = lambda self, *args, **more: weight(self, *args, **more).fill_(1.0)  # type: ignore[method-assign]


@_off("inputs_same_bytes")
def _() -> None:
    """torch's own generator, whose draws depend on the device."""
    import torch

    from harness.measure import inputs

    def drawn(flat: Any, seed: int, name: str, loc: float, scale: float) -> None:
        generator = torch.Generator(flat.device).manual_seed(seed)
        flat.copy_(torch.randn(flat.shape, generator=generator, device=flat.device) * scale + loc)

    _everywhere(inputs.fill_normal, drawn)


# -- the timed path ----------------------------------------------------------------------------------------------------


def _no_replay() -> None:
    from harness.measure.timing import TimedPart

    TimedPart.check_replay = lambda self, seed_offset, *, after: None  # type: ignore[method-assign]


_off("gate_replay")(_no_replay)


@_off("gate_after")
def _() -> None:
    from harness.measure.timing import TimedPart

    check = TimedPart.check_replay
    TimedPart.check_replay = (  # type: ignore[method-assign]
        lambda self, seed_offset, *, after: None if after else check(self, seed_offset, after=after)
    )


@_off("replay_second")
def _() -> None:
    """Judge the first replay after new values: the second call of two in a row does nothing."""
    from harness.measure.clock import WallClock

    ready = WallClock.ready

    def once(self: WallClock, *args: Any) -> Any:
        timed = ready(self, *args)
        replay, replays = timed.replay, [0]

        def odd() -> None:
            replays[0] += 1
            if replays[0] % 2:
                replay()
                kept[:] = [tuple(output.clone() for output in outputs) for outputs in timed.outputs]
            else:
                timed.outputs[:] = kept

        kept: list[Any] = []
        timed.replay = odd
        return timed

    WallClock.ready = once  # type: ignore[method-assign, assignment]


@_off("replay_few_changes")
def _() -> None:
    """All activations of the replay are new."""
    from harness.measure import timing

    timing.keep_most = lambda fresh, held: None


@_off("replay_new_activations")
def _() -> None:
    """The replay sees the values that the first set held all along."""
    from harness.measure.gate import Gate

    draw = Gate.draw

    def same(self: Gate, seed_offset: int = 0, *args: Any, weights_offset: int | None = None) -> Any:
        return draw(self, seed_offset if weights_offset is None else weights_offset, *args)

    Gate.draw = same  # type: ignore[method-assign, assignment]


@_off("engagement")
def _() -> None:
    from harness.measure import engagement

    _everywhere(engagement.disengaged, _says_nothing)


@_off("restore_inputs")
def _() -> None:
    from harness.measure.clock import ArmSets

    ArmSets.restore = lambda self: None  # type: ignore[method-assign]


@_off("faster_than_memory")
def _() -> None:
    from harness.measure import comparison

    comparison.MEMORY_MARGIN = float("inf")


@_off("tampered")
def _() -> None:
    from harness.measure import clock

    _everywhere(clock.tampered, _says_nothing)


@_off("clock_held")
def _() -> None:
    """Take every sample, whether or not the blocking kernel outlasted the host."""
    from harness.measure import clock

    clock.MAX_HOLD_US = 0.0


@_off("cold_count")
def _() -> None:
    """Believe the plan instead of counting the bytes."""
    from harness.measure.clock import ArmSets

    ArmSets.distinct_bytes = lambda self: 1 << 60  # type: ignore[method-assign]


@_off("block_void")
def _() -> None:
    from harness.measure.timing import TimedPart

    sample = TimedPart.sample

    def deaf(self: TimedPart, *args: Any, **more: Any) -> Any:
        self.link.block_void = _says_nothing  # type: ignore[method-assign]
        return sample(self, *args, **more)

    TimedPart.sample = deaf  # type: ignore[method-assign]


@_off("own_code")
def _() -> None:
    """All arms share the code object of the function they came from."""
    from harness.measure import arms

    _everywhere(arms.own_code, lambda function, label: function)


from tests import switches_evidence  # noqa: E402, F401  (adds its own to OFF)
