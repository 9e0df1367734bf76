"""Wirings of vllm-omni's layers: the installed package's, else those of its unpacked wheel with stand-ins for vllm."""

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from candidates._providers import unpacked, vllm_omni
from harness import catalog
from harness.e2e.arms import wired_implementation
from harness.e2e.calls import counting_native, upstream_sources
from harness.e2e.wirings import wiring_for
from harness.op import TORCH, Candidate
from harness.provision.packages import VLLM_OMNI
from harness.schema.vocabulary import Contract, Kind
from tests.e2e.twins import ROOT

D, S = 64, 10
OPS = [("rmsnorm", None), ("rmsnorm", "residual_add"), ("layernorm", None), ("adalayernorm", None), ("rope_wan", None)]
CELLS = [pytest.param(op, context, id=" ".join(filter(None, (op, context)))) for op, context in OPS]


@pytest.fixture(scope="module")
def layer() -> Iterator[Callable[[str, str], Any]]:
    """Gives a class of vllm-omni's diffusion layers."""
    if unpacked.lacks_package(VLLM_OMNI, "vllm_omni"):
        pytest.skip("vllm-omni is not there: 8 MB, `make providers PACKAGES=vllm-omni`")
    with pytest.MonkeyPatch.context() as patch:
        vllm_omni.function("custom_op", "CustomOp")
        if not unpacked.is_installed("vllm_omni"):
            platform = sys.modules["vllm_omni.platforms"].current_omni_platform
            for other in ("rocm", "xpu", "musa"):
                patch.setattr(platform, f"is_{other}", lambda: False, raising=False)
            patch.setattr(platform, "device_type", "cuda", raising=False)
        if not unpacked.is_installed("vllm"):
            linear = ModuleType("vllm.model_executor.layers.linear")
            linear.ReplicatedLinear = nn.Linear  # type: ignore[attr-defined]
            for name in ("vllm.model_executor", "vllm.model_executor.layers"):
                patch.setitem(sys.modules, name, ModuleType(name))
            patch.setitem(sys.modules, linear.__name__, linear)
        yield vllm_omni.function


class Block(nn.Module):
    """What a block of theirs does with its layers, rotation and residual included."""

    def __init__(self, layer: Callable[[str, str], Any], rotates: bool) -> None:
        super().__init__()
        self.norm = layer("norm", "LayerNorm")(D)
        self.modulated = layer("adalayernorm", "AdaLayerNorm")(D)
        self.norm_q = layer("norm", "RMSNorm")(D, dtype=torch.bfloat16)
        self.ropes = nn.ModuleList()
        if rotates:
            self.ropes = nn.ModuleList([layer("rope", "RotaryEmbeddingWan")(), layer("rope", "RotaryEmbedding")()])
        self.to(torch.bfloat16)
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(1, 0.2)

    def forward(self, x: Tensor, scale: Tensor, shift: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x (B, S, D), scale and shift (B, 1, D), cos and sin (1, S, 1, D / 4) for two heads."""
        x = self.modulated(self.norm(x), scale, shift)
        y, residual = self.norm_q(x, x + 1)
        y = self.norm_q(y) + residual
        heads = y.unflatten(-1, (2, D // 2))
        for rope in self.ropes:
            wan = type(rope).__name__ == "RotaryEmbeddingWan"
            tables = (cos, sin) if wan else (cos[:, :, 0].to(heads.dtype), sin[:, :, 0].to(heads.dtype))
            heads = rope(heads, *tables)
        return heads.flatten(-2)


def arguments(tokens: int = S) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(2)
    x, scale, shift = (torch.randn(2, n, D, generator=draw).bfloat16() for n in (tokens, 1, 1))
    angle = torch.rand(1, tokens, 1, D // 4, generator=draw) * 6
    return x, scale, shift, angle.cos(), angle.sin()


@pytest.fixture
def block(layer: Callable[[str, str], Any], request: pytest.FixtureRequest) -> Block:
    rotates = "rope_wan" in request.node.name
    if rotates and importlib.util.find_spec("einops") is None:
        pytest.skip("vllm-omni's rotary layers import einops: pip install einops")
    return Block(layer, rotates).eval().requires_grad_(False)


@pytest.mark.parametrize(("op", "context"), CELLS)
@torch.no_grad()
def test_native_through_the_wiring_is_the_layer_and_every_layer_calls_it(
    op: str, context: str | None, block: Block
) -> None:
    wiring = wiring_for(op, "vllm_omni", context)
    given = arguments()
    with counting_native(block, wiring) as seen:
        expected = block(*given)
    keys = list(block.state_dict())
    methods = {name: vars(module).get("_forward_method") for name, module in block.named_modules()}
    calls: list[dict[str, Any]] = []

    def counted(**args: Any) -> Any:
        calls.append(args)
        return wiring.native(**args)

    with wiring.apply(block, counted):
        assert torch.equal(block(*given), expected)
        assert list(block.state_dict()) == keys
    # RMSNorm is called once with a residual and once without; each wiring takes its own
    assert len(calls) == (seen.total() - 1 if op == "rmsnorm" else seen.total())
    assert {name: vars(module).get("_forward_method") for name, module in block.named_modules()} == methods
    assert torch.equal(block(*given), expected)
    of = catalog.load(op, ROOT).op
    for args in calls:
        dims, params = wiring.described(**args)
        assert tuple(dims) in of.dims
        assert {key: type(value) for key, value in params.items()} == dict(of.params)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("op", "context"), CELLS)
@torch.no_grad()
def test_a_candidate_set_before_the_block_is_compiled_is_what_runs(
    op: str, context: str | None, block: Block, dynamic: bool
) -> None:
    """Behind a custom op, in the block compiled whole as `regionally_compile` does it; at a second length too."""
    wiring, of = wiring_for(op, "vllm_omni", context), catalog.load(op, ROOT).op
    ran: list[int] = []

    @functools.wraps(of.native)
    def counted(*args: Any, **named: Any) -> Any:
        ran.append(1)
        return of.native(*args, **named)

    name = f"counted_{op}_{context}_{dynamic}"
    candidate = Candidate(name, op, Kind.CUDA, TORCH, counted, ("x",), Contract.TOLERANCE)
    expected, longer = block(*arguments()), block(*arguments(S + 3))
    eager: list[int] = []
    with wiring.apply(block, lambda **args: eager.append(1) or wiring.native(**args)):
        block(*arguments())
    with wiring.apply(block, wired_implementation(of, wiring, candidate)):
        torch.compiler.reset()  # the tests' blocks share one code object
        compiled = torch.compile(block.forward, fullgraph=True, dynamic=dynamic, backend="eager")
        assert torch.equal(compiled(*arguments()), expected)
        assert len(ran) == len(eager) > 0
        assert torch.equal(compiled(*arguments(S + 3)), longer)
        assert len(ran) == 2 * len(eager)
    assert torch.equal(block(*arguments()), expected)


@torch.no_grad()
def test_a_forward_put_into_the_class_is_not_called(
    layer: Callable[[str, str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why the wiring is per instance."""
    norm = layer("norm", "RMSNorm")(D)
    monkeypatch.setattr(type(norm), norm._forward_method.__name__, lambda self, x: x * 0)
    assert norm(torch.ones(2, D)).all()
    assert not layer("norm", "RMSNorm")(D)(torch.ones(2, D)).any()


@pytest.mark.parametrize(("op", "context"), CELLS)
def test_upstream_is_what_the_wiring_was_written_for(op: str, context: str | None, block: Block) -> None:
    wiring = wiring_for(op, "vllm_omni", context)
    assert upstream_sources(wiring) == dict(wiring.pinned)
