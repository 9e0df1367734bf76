"""Models are what their libraries load, weights are the same bytes everywhere, copies share them."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.backends.cuda import cudnn_sdp_enabled
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

from harness.e2e.arms import GraphLog, compile_forwards
from harness.e2e.build import build, keep_fp32, load, randomise, sharing
from harness.e2e.models import _text, family, names
from harness.e2e.quality import attention_backend, relative_error
from harness.errors import UserError
from harness.measure.arms import GraphCounter
from harness.measure.inputs import SeededDraw
from tests.e2e.twins import CPU, component_twin, twin, workloads

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
NAMES = sorted(workloads())
OMNI = ["qwen3-omni-thinker", "qwen3-omni-talker"]


@pytest.mark.parametrize("name", ["wan2.1-t2v-1.3b", "flux.1-dev", "qwen-image", "wan2.1-vae"])
@torch.no_grad()
def test_a_model_is_what_its_library_loads_in_bf16(name: str, tmp_path: Path) -> None:
    of, model, inputs = twin(name)
    model.save_pretrained(tmp_path)  # type: ignore[operator]
    loaded = load(of, str(tmp_path), CPU)
    assert {n: p.dtype for n, p in loaded.named_parameters()} == {n: p.dtype for n, p in model.named_parameters()}
    assert {n: b.dtype for n, b in loaded.named_buffers()} == {n: b.dtype for n, b in model.named_buffers()}
    assert torch.equal(of.run(loaded, inputs), of.run(model, inputs))


def test_what_a_class_keeps_in_fp32_stays_there() -> None:
    _, model, _ = twin("wan2.1-t2v-1.3b")
    kept = {name for name, parameter in model.named_parameters() if parameter.dtype is torch.float32}
    assert "blocks.0.norm2.weight" in kept
    assert "blocks.0.scale_shift_table" in kept
    assert "blocks.0.attn1.to_q.weight" not in kept
    assert keep_fp32(model) >= {"time_embedder", "scale_shift_table", "norm2"}


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_twin_runs_to_finite_values_that_repeat(name: str) -> None:
    of, model, inputs = twin(name)
    output = of.run(model, inputs)
    assert torch.isfinite(output).all()
    assert 0.05 < output.float().std() < 20
    assert torch.equal(of.run(model, inputs), output)
    assert of.compiled(model)


@pytest.mark.parametrize("name", OMNI)
@torch.no_grad()
def test_a_decode_keeps_attention_from_cudnn_and_repeats(name: str) -> None:
    of, model, inputs = component_twin(name, "decode-1")
    allowed = []
    model.layers[0].register_forward_hook(lambda *_: allowed.append(cudnn_sdp_enabled()))  # type: ignore[index, union-attr]
    before = cudnn_sdp_enabled()
    assert torch.equal(of.run(model, inputs), of.run(model, inputs))
    assert allowed == [False, False]
    assert cudnn_sdp_enabled() == before
    assert attention_backend(model) == "sdpa"
    assert of.attention_limits(inputs) == "without cuDNN or mask"


def masks_seen(model: nn.Module) -> list[Tensor | None]:
    """What the first layer will be given as its mask, run by run."""
    seen: list[Tensor | None] = []
    first: nn.Module = model.layers[0]  # type: ignore[index, assignment]
    first.register_forward_pre_hook(lambda _, __, given: seen.append(given["attention_mask"]), with_kwargs=True)
    return seen


def masked(monkeypatch: pytest.MonkeyPatch, of: Any, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    """A decode with the mask that the library gives a static cache."""
    with monkeypatch.context() as patch:
        patch.setattr(_text, "_unmasked_at", lambda past: nullcontext())
        output: Tensor = of.run(model, inputs)
        return output


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OMNI)
@torch.no_grad()
def test_a_token_that_fills_the_cache_needs_no_mask(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, model, inputs = component_twin(name, "decode-1", dtype)
    seen = masks_seen(model)
    with_mask, without = masked(monkeypatch, of, model, inputs), of.run(model, inputs)
    assert seen[0] is not None
    assert seen[0].all()
    assert seen[1] is None
    assert relative_error(without, with_mask) < torch.finfo(dtype).eps
    with monkeypatch.context() as patch:  # where the library skips no mask by itself
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert torch.equal(of.run(model, inputs), without)
    assert seen[2] is None
    assert ALL_MASK_ATTENTION_FUNCTIONS["sdpa"] is sdpa_mask


@pytest.mark.parametrize("dynamic", [False, True])
@torch.no_grad()
def test_a_decode_compiles_without_a_mask_to_as_many_graphs(dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def counting(log: GraphCounter, graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        log.graphs += 1
        return graph.forward

    monkeypatch.setattr(GraphCounter, "__call__", counting)
    of, model, inputs = component_twin("qwen3-omni-thinker", "decode-1")
    logs = GraphLog(), GraphLog()
    models = sharing(model), sharing(model)
    for log, copied, label in zip(logs, models, ("masked", "unmasked"), strict=True):
        compile_forwards(of, copied, log, f"{label} {dynamic}", dynamic=dynamic)
    masked(monkeypatch, of, models[0], inputs)
    output = of.run(models[1], inputs)
    assert torch.equal(output, of.run(model, inputs))
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert torch.equal(of.run(models[1], inputs), output)
    assert logs[0].graphs == logs[1].graphs == len(of.compiled(model))


@pytest.mark.parametrize("tokens", [1, 2])
@torch.no_grad()
def test_where_there_are_keys_to_hide_the_mask_stays(tokens: int) -> None:
    of, model, _ = component_twin("qwen3-omni-thinker", "decode-1")
    inputs = of.inputs(model, {"batch": 1, "tokens": tokens, "past": 8}, SeededDraw(1, torch.bfloat16, CPU))
    if tokens == 1:
        inputs["past_key_values"].past = 7  # one key of the cache is not filled yet
    seen = masks_seen(model)
    of.run(model, inputs)
    assert seen[0] is not None
    assert not seen[0].all()
    assert of.attention_limits(inputs) == "without cuDNN"


def test_after_a_decode_that_fails_the_library_makes_its_masks() -> None:
    of, _, inputs = component_twin("qwen3-omni-thinker", "decode-1")
    with pytest.raises(TypeError):
        of.run(nn.Identity(), inputs)
    assert ALL_MASK_ATTENTION_FUNCTIONS["sdpa"] is sdpa_mask


@torch.no_grad()
def test_a_prefill_leaves_attention_to_torch() -> None:
    of, model, inputs = component_twin("qwen3-omni-thinker", "prefill-2048")
    allowed: list[Any] = []
    model.layers[0].register_forward_hook(  # type: ignore[index, union-attr]
        lambda *_: allowed.extend((cudnn_sdp_enabled(), ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]))
    )
    of.run(model, inputs)
    assert allowed == [cudnn_sdp_enabled(), sdpa_mask]
    assert attention_backend(model) == "sdpa"
    assert of.attention_limits(inputs) == ""


@torch.no_grad()
def test_weights_depend_on_seed_and_name_alone() -> None:
    of, model, _ = twin("flux.1-dev")
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    workload = workloads()["flux.1-dev"]
    again = build(of, {**workload.config, **workload.components[0].rehearsal.config}, torch.bfloat16, CPU, seed=1)
    assert all(torch.equal(before[name], parameter) for name, parameter in again.named_parameters())
    randomise(again, seed=2)
    assert not any(torch.equal(before[name], parameter) for name, parameter in again.named_parameters())


def test_norm_weights_are_about_one_and_biases_about_zero() -> None:
    _, model, _ = twin("wan2.1-t2v-1.3b")
    parameters = dict(model.named_parameters())
    norm, bias = parameters["blocks.0.attn1.norm_q.weight"].float(), parameters["blocks.0.attn1.to_q.bias"].float()
    assert abs(norm.mean() - 1) < 0.1
    assert 0.1 < norm.std() < 0.3
    assert 0.01 < bias.std() < 0.03
    matrix = parameters["blocks.0.ffn.net.0.proj.weight"].float()
    assert matrix.std() == pytest.approx(matrix.shape[1] ** -0.5, rel=0.05)


@torch.no_grad()
def test_a_sharing_copy_has_modules_of_its_own_on_the_same_tensors() -> None:
    of, model, inputs = twin("wan2.1-t2v-1.3b")
    copied = sharing(model)
    ours, theirs = dict(model.named_parameters()), dict(copied.named_parameters())
    assert all(theirs[name] is ours[name] for name in ours)
    assert copied.blocks[0] is not model.blocks[0]  # type: ignore[index]
    assert torch.equal(of.run(copied, inputs), of.run(model, inputs))


def test_a_family_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(UserError, match="there is no model family `wann`; choose one of autoencoder_kl, flux"):
        family("wann")
    assert "_decoders" not in names()


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    monkeypatch.delitem(sys.modules, "harness.e2e.models.z_image", raising=False)
    with pytest.raises(UserError, match=r"needs diffusers; install the extra: pip install -e '\.\[e2e\]'"):
        family("z_image")
