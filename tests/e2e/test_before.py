"""What another cell found of a component's dynamic baseline holds for it on the same device, versions and sources."""

from typing import Any

import pytest

from harness.e2e.before import beaten_before, told
from harness.e2e.protocol import CellJob, CellSettings
from harness.schema.manifest import Tolerance
from harness.schema.process import ProcessRecord
from harness.schema.vocabulary import ArmStatus, RunStatus
from tests.builders import environment
from tests.e2e_builders import COMPONENT, DYNAMIC, process

ENVIRONMENT = environment()


def job(**changed: Any) -> CellJob:
    asked = CellJob(
        root="/nowhere", op="rmsnorm", workload="toy-dit", family="wan", config={}, component=COMPONENT,
        device_type="cuda", tolerance=Tolerance(atol=0.01, rtol=0.01), candidates=(), sequence="s", process=0,
        cold_compile=True, pairs=None, p_max=None, settings=CellSettings(),
    )  # fmt: skip
    return asked.model_copy(update=changed)


def beaten(compile_s: float = 9.0, **changed: Any) -> ProcessRecord:
    """A process of another op that found it at twice the static one's time."""
    record = process({}, statuses={DYNAMIC: ArmStatus.BEATEN}, env=ENVIRONMENT)
    arms = tuple(
        arm.model_copy(update={"reason": "78 ms where 40", "compile_s": compile_s}) if arm.id == DYNAMIC else arm
        for arm in record.arms
    )
    return record.model_copy(update={"arms": arms, **changed})


def said(record: ProcessRecord, asked: CellJob, **here: Any) -> str:
    asked = asked.model_copy(update={"beaten_before": beaten_before([record], asked)})
    place = {"environment": ENVIRONMENT, "library": record.library, "e2e_sha256": record.e2e_sha256}
    return told(asked, **(place | here))


def test_it_holds_for_another_op_of_the_same_component() -> None:
    assert said(beaten(), job()) == "in the cell of groupnorm_silu 78 ms where 40"


@pytest.mark.defence("e2e_beaten_elsewhere")
@pytest.mark.parametrize(
    ("record", "asked", "here"),
    [
        pytest.param(beaten(), {"workload": "other"}, {}, id="another model"),
        pytest.param(beaten(), {"component": COMPONENT.model_copy(update={"inputs": {"batch": 2}})}, {}, id="sizes"),
        pytest.param(beaten(), {"checkpoint": "/weights"}, {}, id="real weights"),
        pytest.param(beaten(status=RunStatus.THROTTLED), {}, {}, id="a process that does not count"),
        pytest.param(beaten(compile_s=0.0), {}, {}, id="told, not seen"),
        pytest.param(process({}, env=ENVIRONMENT), {}, {}, id="not beaten"),
        pytest.param(beaten(), {}, {"library": "diffusers 9"}, id="model code"),
        pytest.param(beaten(), {}, {"e2e_sha256": "changed"}, id="sources"),
        pytest.param(
            beaten(),
            {},
            {"environment": ENVIRONMENT.model_copy(update={"packages": ENVIRONMENT.packages | {"torch": "9"}})},
            id="torch",
        ),
        pytest.param(
            beaten(),
            {},
            {
                "environment": ENVIRONMENT.model_copy(
                    update={"device": ENVIRONMENT.device.model_copy(update={"key": "another"})}
                )
            },
            id="device",
        ),
    ],
)
def test_it_holds_for_nothing_else(record: ProcessRecord, asked: dict[str, Any], here: dict[str, Any]) -> None:
    assert said(record, job(**asked), **here) == ""
