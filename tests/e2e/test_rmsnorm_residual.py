"""Residual add and RMSNorm wired as one call: what a kernel that works in place may not spoil, and how it is found."""

import pytest
import torch
from torch import Tensor

from candidates.rmsnorm.op import native
from harness.e2e.wirings import wiring_for
from harness.errors import UserError
from tests.e2e.twins import twin

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")


def in_place(x: Tensor, weight: Tensor, eps: float, residual: Tensor, rounding: str) -> tuple[Tensor, Tensor]:
    residual.add_(x)
    x.copy_(native(residual, weight, eps, rounding))
    return x, residual


@torch.no_grad()
def test_a_kernel_in_place_does_not_write_to_the_models_input() -> None:
    """sglang PR 28005: the first residual is the live input of the model."""
    of, model, inputs = twin("qwen3-omni-thinker")
    expected, before = of.run(model, inputs), inputs["inputs_embeds"].clone()
    with wiring_for("rmsnorm", "qwen3_omni_thinker", "residual_add").apply(model, in_place):
        assert torch.equal(of.run(model, inputs), expected)
        assert torch.equal(of.run(model, inputs), expected)
    assert torch.equal(inputs["inputs_embeds"], before)


def test_wirings_are_found_by_family_and_context() -> None:
    assert wiring_for("rmsnorm", "qwen3_omni_talker", None).context is None
    assert wiring_for("rmsnorm", "qwen3_omni_talker", "residual_add").context == "residual_add"
    with pytest.raises(UserError, match=r"has no wiring for `wan \(residual_add\)`; it has wan, .*\(residual_add\)\."):
        wiring_for("rmsnorm", "wan", "residual_add")
