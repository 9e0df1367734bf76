"""What an arm's record says of how it was built."""

from types import ModuleType, SimpleNamespace

import pytest

from harness.measure import armstate
from harness.measure.arms import BASELINE_ID, CONTROL_ID, NATIVE_ID, TWIN_ID, inductor_configs
from harness.protocol import Task
from harness.schema.vocabulary import RunStatus
from tests.rig import comparison, rmsnorm_case


def test_what_inductor_chose_for_each_kernel() -> None:
    def kernel(*configs: str) -> SimpleNamespace:
        return SimpleNamespace(launchers=[SimpleNamespace(config=config) for config in configs])

    tuned, untuned, other = ModuleType("tuned"), ModuleType("untuned"), ModuleType("other")
    vars(tuned)["triton_red_0"] = kernel("XBLOCK: 1, R0_BLOCK: 2048, num_warps: 16")
    vars(untuned)["triton_poi_0"] = kernel("XBLOCK: 256", "XBLOCK: 512")
    vars(other)["launchers"] = ["not a kernel's"]
    assert inductor_configs([tuned, untuned, other]) == {"triton_red_0": "XBLOCK: 1, R0_BLOCK: 2048, num_warps: 16"}


def test_each_build_records_the_modules_that_were_generated_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[ModuleType, ...]] = []

    def names(modules: tuple[ModuleType, ...]) -> dict[str, str]:
        seen.append(modules)
        return {"modules": str(len(modules))}

    monkeypatch.setattr(armstate, "inductor_configs", names)
    of = comparison([]).run(Task(case=rmsnorm_case({"B": 3, "S": 7, "D": 72}), context=None))
    assert of.status is RunStatus.MEASURED, of.reason
    counts = {arm.id: int(arm.tags["modules"]) for arm in of.arms}
    assert counts[NATIVE_ID] == counts[CONTROL_ID] == 0, "the control is the baseline's own code"
    assert counts[BASELINE_ID] >= 1
    assert counts[TWIN_ID] >= 1
    assert len({id(module) for modules in seen for module in modules}) == sum(counts.values())
