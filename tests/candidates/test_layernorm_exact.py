"""The bit-exact LayerNorm kernel: its plans, its bits in Triton's interpreter, and on a GPU those of torch itself."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from candidates.adalayernorm import op as ada
from candidates.layernorm import launch_exact
from candidates.layernorm import op as ln
from candidates.layernorm.rows import addresses, affine, modulation, rows_of
from tests.candidates import interpreted
from tests.candidates.aten_layernorm import moments

EPS = 1e-6


@pytest.fixture(scope="module")
def rehearsal() -> dict[str, Any]:
    return interpreted.run("tests.candidates.layernorm_exact_rehearsal", interpret=True)


def test_norms_agree_with_fp64(rehearsal: dict[str, Any]) -> None:
    assert len(rehearsal["norms"]) == 11
    for name, seen in rehearsal["norms"].items():
        assert len(seen) == 2, name
        # a mean of 100 leaves fp32 two digits less for the deviations
        assert max(seen.values()) < (5e-5 if name == "offset" else 5e-6), (name, seen)


@pytest.mark.parametrize(("part", "cases"), [("order", 20), ("roundings", 16), ("affine_roundings", 4)])
def test_the_bits_are_torchs(rehearsal: dict[str, Any], part: str, cases: int) -> None:
    assert len(rehearsal[part]) == cases
    assert [name for name, same in rehearsal[part].items() if not same] == []


def test_empty_inputs(rehearsal: dict[str, Any]) -> None:
    assert rehearsal["empty"] == [[0, 3, 512]] * 3


def test_it_compiles_for_hopper_without_spills() -> None:
    """At real shapes; bf16 is loaded by 16 bytes with two warps and by 8 with four, fp32 always by 16."""
    facts = interpreted.run("tests.candidates.hopper_layernorm_exact", interpret=False)
    assert len(facts) == 10
    widest = {name: kernel["load_bits"] for name, kernel in facts.items() if kernel["local_bytes"] == 0}
    assert widest == {
        "layernorm_exact 32760x1536": 128,
        "layernorm_exact 32760x1536 modulated": 128,
        "layernorm_exact 32760x1536 affine": 128,
        "layernorm_exact 27280x3072 fp32 per token": 128,
        "layernorm_exact 75600x5120 fp32": 128,
        "layernorm_exact 1024x2240 modulated": 64,
        "layernorm_exact 4608x6144 modulated": 64,
        "layernorm_exact 4096x3072 residual": 64,
        "layernorm_exact 2x4096x3072 modulated": 64,
        "layernorm_exact 6x75600x5120 residual": 64,
    }


@pytest.mark.parametrize("width", [508, 514, 8196])
def test_widths_whose_order_is_not_reproduced(width: int) -> None:
    assert f"D={width}" in (launch_exact.why_not_exact(width) or "")
    with pytest.raises(ValueError, match=f"D={width}"):
        launch_exact.exact_layernorm(torch.ones(1, 1, width), None, None, EPS)


@pytest.mark.parametrize(
    ("width", "mode", "residual", "warps"),
    [
        (1536, "plain", False, 2),
        (1536, "modulate", False, 2),
        (1536, "affine", False, 4),
        (1536, "modulate", True, 4),
        (3072, "modulate", False, 4),
        (5120, "plain", False, 4),
    ],
)
def test_plans(width: int, mode: str, residual: bool, warps: int) -> None:
    assert launch_exact.make_plan(width, mode, residual) == warps


def test_where_rows_are_one_distance_apart() -> None:
    x, y = torch.ones(2, 6, 8), torch.ones(6, 2, 8).transpose(0, 1)
    rows, apart = rows_of(x), rows_of(y)
    shared, per_token = modulation(torch.ones(1, 8), rows), modulation(torch.ones(2, 6, 8), rows)
    per_batch, per_frame = modulation(torch.ones(2, 8), rows), modulation(torch.ones(2, 3, 1, 8), rows)
    even = [1, *(0, 8, 1), *(0, 8, 1), *(0, 0, 1), *(0, 8, 1), *(0, 0, 1)]
    assert addresses(rows, rows, (shared, per_token, affine(torch.ones(8), rows))) == (True, even)
    general = [6, *(48, 8, 1), *(8, 16, 1), *(0, 0, 6), *(48, 8, 1), *(0, 0, 6)]
    assert addresses(rows, apart, (shared, per_token, shared)) == (False, general)
    for uneven in (per_batch, per_frame):
        assert not addresses(rows, rows, (shared, shared, uneven))[0]
    # columns that are not neighbours
    sparse = rows_of(torch.ones(2, 8, 6).transpose(1, 2))
    assert not addresses(sparse, rows, (shared, shared, shared))[0]
    # a modulation per batch of one token is one per row
    single = rows_of(torch.ones(2, 1, 8))
    assert addresses(single, single, (modulation(torch.ones(2, 8), single),) * 3)[0]


@given(
    mean=st.floats(-1000, 1000), sd=st.floats(0.01, 10), seed=st.integers(0, 99), d=st.sampled_from([512, 516, 2240])
)
def test_torchs_order_gives_the_moments(mean: float, sd: float, seed: int, d: int) -> None:
    row = (mean + sd * np.random.default_rng(seed).standard_normal(d)).astype(np.float32)
    got_mean, got_m2 = moments(row, fused=True)
    assert abs(got_mean - row.astype(np.float64).mean()) < 1e-5 * (abs(mean) + sd)
    exact = np.square(row.astype(np.float64) - row.astype(np.float64).mean()).sum()
    assert abs(got_m2 - exact) < 1e-4 * exact + 1e-9 * mean * mean * d


# --- on a GPU ---------------------------------------------------------------------------------------------------

WIDTHS = (512, 516, 560, 1536, 2048, 2240, 3072, 5120, 6144, 8192)


@pytest.mark.gpu
@pytest.mark.parametrize("warps", [2, 4])
@pytest.mark.parametrize("width", WIDTHS)
def test_gpu_bits_are_torchs(width: int, warps: int) -> None:
    x = torch.randn(2, 33, width, device="cuda", dtype=torch.bfloat16) * 3 + 1
    weight, bias = torch.randn(2, width, device="cuda")
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        cast = x.to(dtype)
        for rows in (cast, cast.transpose(0, 1), cast.transpose(1, 2).contiguous().transpose(1, 2)):
            assert torch.equal(
                launch_exact.exact_layernorm(rows, None, None, EPS, warps), ln.native(rows, None, None, EPS)
            )
            y = launch_exact.exact_layernorm(rows, weight, bias, EPS, warps)
            assert torch.equal(y, ln.native(rows, weight, bias, EPS))


@pytest.mark.gpu
@pytest.mark.parametrize("formula", [ada.VLLM_OMNI, ada.WAN])
@pytest.mark.parametrize("width", [560, 1536, 3072, 5120])
def test_gpu_bits_of_the_modulated_chain(width: int, formula: str) -> None:
    x, residual = torch.randn(2, 2, 66, width, device="cuda", dtype=torch.bfloat16)
    dtype = torch.float32 if formula == ada.WAN else torch.bfloat16
    rounds = formula == ada.VLLM_OMNI
    for shape in ((2, width), (2, 1, width), (1, 1, width), (2, 3, 1, width), (2, 66, width)):
        scale, shift, gate = torch.randn(3, *shape, device="cuda", dtype=dtype)
        y = launch_exact.exact_modulated_layernorm(x, scale, shift, EPS, rounds)
        assert torch.equal(y, ada.native(x, scale, shift, EPS, formula)), shape
        args = {"x": x, "scale": scale, "shift": shift, "eps": EPS, "formula": formula}
        right = ada.OP.context("residual_gate").compose(ada.native)(**args, residual=residual, gate=gate)
        got = launch_exact.exact_residual_modulated_layernorm(x, scale, shift, EPS, rounds, residual, gate)
        assert all(torch.equal(a, b) for a, b in zip(got, right, strict=True)), shape


@pytest.mark.gpu
def test_gpu_beyond_int32() -> None:
    x = torch.randn((1, 524_416, 4096), device="cuda", dtype=torch.bfloat16)
    right = ln.native(x[:, -9:], None, None, EPS)
    assert torch.equal(launch_exact.exact_layernorm(x, None, None, EPS)[:, -9:], right)
