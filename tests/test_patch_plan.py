"""The patch plan is read from what is declared: sites of the real model code, sources, guards, registration, tests."""

from pathlib import Path

import pytest

from harness.catalog import load
from harness.errors import UserError
from harness.patch_plan import _guards, patch_plan
from harness.report.pr import CallSite, pr_markdown
from harness.schema.verdict import RowVerdict
from harness.schema.vocabulary import Contract, Kind
from tests.report.rows import verdicts

ROOT = Path(__file__).parent.parent


def won(candidate: str, workload: str, component: str) -> RowVerdict:
    """A row of a real op that was won, as if, in a real model."""
    (row,) = verdicts(3.0).rows
    (cell, *_) = row.cells
    arms = tuple(arm.model_copy(update={"id": candidate}) for arm in cell.candidates)
    changed = {"workload": workload, "component": component, "title": workload, "candidates": arms, "leader": candidate}
    assert row.e2e.won is not None
    winner = row.e2e.won.model_copy(update={"candidate": candidate, "workload": workload, "component": component})
    return row.model_copy(
        update={"cells": (cell.model_copy(update=changed),), "e2e": row.e2e.model_copy(update={"won": winner})}
    )


def test_the_plan_of_a_triton_kernel_in_a_decoder() -> None:
    pytest.importorskip("diffusers")
    row = won("inhouse.triton_groupnorm_silu", "flux.1-vae", "decode-1024")
    plan = patch_plan(ROOT, row, {})
    assert (plan.kind, plan.contract, plan.name) == (Kind.TRITON, Contract.TOLERANCE, "triton_groupnorm_silu")
    assert plan.signature == "(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor"
    assert plan.fake.startswith(
        "def fake(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:\n    "
    )
    assert "candidates/groupnorm_silu/inhouse.py" in plan.files
    assert not any(file.endswith(("__init__.py", "wiring.py")) for file in plan.files)
    assert plan.tests == ("tests/candidates/test_groupnorm_silu.py",)
    (model,) = plan.models
    assert sum(site.calls for site in model.sites) == 29, "as the decoder really calls it"
    assert CallSite("diffusers.models.resnet.ResnetBlock2D", "decoder.up_blocks.N.resnets.N.norm1", 12) in model.sites
    assert model.upstream == (
        "diffusers.models.resnet:ResnetBlock2D.forward",
        "diffusers.models.autoencoders.vae:Decoder.forward",
    )
    made = pr_markdown(row, plan)
    assert "| `diffusers.models.resnet.ResnetBlock2D` | `decoder.up_blocks.N.resnets.N.norm1` | 12 |" in made
    assert 'custom_op("vllm_omni::triton_groupnorm_silu", mutates_args=(), tags=(torch.Tag.flexible_layout,))' in made


def test_a_winner_that_is_declared_no_more_is_said() -> None:
    with pytest.raises(UserError, match=r"inhouse\.gone won and is in candidates/groupnorm_silu/ no more"):
        patch_plan(ROOT, won("inhouse.gone", "flux.1-vae", "decode-1024"), {})


def test_guards_put_together_are_listed_each_with_its_limits() -> None:
    guard = next(one for one in load("rmsnorm", ROOT).candidates if one.id == "sglang.rms_norm_fn").guard
    sources = list(_guards(guard))
    assert len(sources) == 3
    assert sources[0].startswith("def one_matrix(case: Case, device: Device)")
    assert sources[1].startswith("# with limit = 65536\ndef guard(case: Case, device: Device)")
    always = next(one for one in load("rmsnorm", ROOT).candidates if one.id == "inhouse.triton_rmsnorm").guard
    assert list(_guards(always)) == []
