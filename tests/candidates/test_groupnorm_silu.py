"""GroupNorm+SiLU: the declaration, the plans, and our kernels in Triton's interpreter."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from candidates._dense import empty_dense_like
from candidates.groupnorm_silu import launch
from candidates.groupnorm_silu.launch import geometry_of, groupnorm_silu
from candidates.groupnorm_silu.op import OP, native, replicate_padded
from candidates.groupnorm_silu.padded import groupnorm_silu_padded
from candidates.groupnorm_silu.plan import (
    HELD_BYTES,
    Path,
    make_plan,
    next_power_of_two,
    plan_flat_resident,
    plan_rows,
    plan_rows_resident,
    plan_rows_streaming,
    plan_two_pass,
)
from candidates.groupnorm_silu.rewrite import channels_last_pad, two_stage
from candidates.groupnorm_silu.words import WORDS_PER_STREAM, WordStore
from harness.measure.inputs import SeededDraw
from harness.schema.case import Case, Confidence, Dtype, Layout
from tests.candidates import interpreted

MODULE = "tests.candidates.groupnorm_silu_rehearsal"


@pytest.fixture(scope="module")
def rehearsal() -> dict[str, Any]:
    return interpreted.run(MODULE, interpret=True)


def case(layout: Layout = Layout.CONTIGUOUS, groups: int = 4, **dims: int) -> Case:
    return Case(
        id="case",
        model="made-up",
        dims=dims,
        params={"eps": 1e-6, "groups": groups},
        dtype=Dtype.FP32,
        layout=layout,
        calls=1,
        step="one call",
        source="made up for a test",
        confidence=Confidence.DERIVED,
        rehearsal=dims,
    )


def test_kernels_agree_with_the_fp64_oracle(rehearsal: dict[str, Any]) -> None:
    """fp32 keeps about 1e-7 of the largest operand, so an offset of 100 std costs 1e-5 times the slope of SiLU."""
    for name, seen in rehearsal["numerics"].items():
        offset = float(name.split("@")[1])
        assert seen["error"] < 3e-6 + 1e-6 * offset, (name, seen)
        assert seen["input_kept"], name


def test_every_path_was_rehearsed(rehearsal: dict[str, Any]) -> None:
    assert {seen["path"] for seen in rehearsal["numerics"].values()} == set(Path)


@pytest.mark.parametrize(
    ("name", "strides"),
    [
        ("odd", (16 * 33 * 15, 33 * 15, 15, 1)),
        ("channels_last", (16 * 33 * 15, 1, 15 * 16, 16)),
        ("channels_last_3d_ten_channels_a_group", (30 * 408, 1, 136 * 30, 8 * 30, 30)),
        ("transposed", (16 * 33 * 15, 15, 16 * 15, 1)),
        ("sliced", (16 * 33 * 5, 33 * 5, 5, 1)),
    ],
)
def test_output_has_the_strides_of_x(rehearsal: dict[str, Any], name: str, strides: tuple[int, ...]) -> None:
    assert tuple(rehearsal["numerics"][f"{name}@0"]["strides"]) == strides


def test_padded_output_is_channels_last_with_borders_repeated(rehearsal: dict[str, Any]) -> None:
    assert len(rehearsal["padded"]) == 7
    for name, seen in rehearsal["padded"].items():
        assert seen["error"] < 3e-6, (name, seen)
        assert seen["channels_last"], name
        assert seen["input_kept"], name


def test_offsets_beyond_int32(rehearsal: dict[str, Any]) -> None:
    s_n, s_c, s_t, s_h, s_w = 1 << 40, 1 << 33, 1 << 22, 1 << 11, 3
    expected = []
    for index in (5_000_000_000, 5_000_000_001):
        channel, s = divmod(index, 1 << 33)
        frame, hw = divmod(s, 1 << 22)
        h, w = divmod(hw, 1 << 11)
        expected.append(s_n + 3 * 4 * s_c + channel * s_c + frame * s_t + h * s_h + w * s_w)
    for row in (2_000_000_000, 2_000_000_001):
        frame, hw = divmod(row, 1 << 22)
        h, w = divmod(hw, 1 << 11)
        expected.append(frame * s_t + h * s_h + w * s_w)
    assert rehearsal["offsets"] == [*expected, 2_000_000_000 * 3, 2_000_000_001 * 3]


def test_opcheck_accepts_the_fake(rehearsal: dict[str, Any]) -> None:
    assert len(rehearsal["opcheck"]) >= 12
    assert set(rehearsal["opcheck"].values()) == {"SUCCESS"}


def test_empty_nan_and_constant_inputs(rehearsal: dict[str, Any]) -> None:
    specials = rehearsal["specials"]
    assert specials["empty"] == [0, 16, 4, 4]
    assert specials["empty_padded"] == [0, 16, 4, 6, 6]
    assert specials["nan_groups"] == [True, False, False, False]
    # one ULP of the mean, times 1 / sqrt(eps), times the weight
    assert specials["constant_error"] < 2**-22 * 1e3 * 2


def test_no_position_to_repeat_is_an_error_as_in_native() -> None:
    x = torch.randn(1, 4, 2, 0, 3)
    with pytest.raises(ValueError, match=r"\(1, 4, 2, 0, 3\) has no position"):
        groupnorm_silu_padded(x, torch.ones(4), torch.zeros(4), 2, 1e-6)


def test_more_than_five_dims_is_an_error() -> None:
    x = torch.randn(1, 4, 2, 2, 2, 2)
    with pytest.raises(ValueError, match="6 dims"):
        groupnorm_silu(x, torch.ones(4), torch.zeros(4), 2, 1e-6)


def test_kernels_compile_for_hopper_without_spills() -> None:
    """At real shapes: 128-bit global loads, no local memory; needs ptxas (it comes with Triton), no GPU."""
    for name, kernel in interpreted.run("tests.candidates.hopper_groupnorm_silu", interpret=False).items():
        assert kernel["local_bytes"] == 0, name
        if "merge" not in name:
            assert kernel["load_bits"] == 128, name


# Plans


@pytest.mark.parametrize(
    ("shape", "memory_format", "path"),
    [
        ((1, 128, 20, 256, 256), torch.contiguous_format, Path.TWO_PASS),
        ((1, 512, 8, 45, 80), torch.contiguous_format, Path.TWO_PASS),
        ((1, 512, 5, 32, 32), torch.contiguous_format, Path.FLAT_RESIDENT),
        ((1, 1024, 8, 8), torch.contiguous_format, Path.FLAT_RESIDENT),
        ((1, 512, 4, 32, 32), torch.channels_last_3d, Path.ROWS_RESIDENT),
        ((1, 512, 5, 64, 64), torch.channels_last_3d, Path.ROWS_RESIDENT),
        ((1, 256, 7, 128, 128), torch.channels_last_3d, Path.ROWS_RESIDENT),
        ((1, 512, 7, 128, 128), torch.channels_last_3d, Path.ROWS),
        ((1, 128, 1024, 1024), torch.channels_last, Path.ROWS),
    ],
)
def test_path_for_a_shape(shape: tuple[int, ...], memory_format: torch.memory_format, path: Path) -> None:
    with torch.device("meta"):
        x = torch.empty(shape, dtype=torch.bfloat16).to(memory_format=memory_format)
    assert make_plan(geometry_of(x, empty_dense_like(x), 32), 132).path is path


@given(
    n=st.integers(1, 5),
    group_channels=st.integers(1, 40),
    groups=st.integers(1, 40),
    spatial=st.integers(2, 3_000_000),
    sms=st.integers(1, 200),
)
def test_chunks_cover_everything_once(n: int, group_channels: int, groups: int, spatial: int, sms: int) -> None:
    with torch.device("meta"):
        x = torch.empty(n, group_channels * groups, 1, spatial)
    for y, plan_of in ((x, plan_two_pass), (x.to(memory_format=torch.channels_last), plan_rows)):
        geometry = geometry_of(y, empty_dense_like(y), groups)
        plan = plan_of(geometry, sms)
        covered = geometry.group_elements if plan.path is Path.TWO_PASS else spatial
        assert plan.chunk * (plan.chunks - 1) < covered <= plan.chunk * plan.chunks
        assert plan.chunk % geometry.vector == 0
        assert math.log2(plan.block).is_integer()
        assert math.log2(plan.apply_block).is_integer()


@given(
    n=st.integers(1, 3),
    group_channels=st.integers(1, 40),
    groups=st.integers(1, 40),
    spatial=st.integers(2, 200_000),
    sms=st.integers(1, 200),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
)
def test_resident_plans_cover_everything_once_and_fit(
    n: int, group_channels: int, groups: int, spatial: int, sms: int, dtype: torch.dtype
) -> None:
    """Programs that wait for each other must all run at once: one per SM, or two of 8 warps with 128 registers."""
    with torch.device("meta"):
        x = torch.empty(n, group_channels * groups, 1, spatial, dtype=dtype)
    last = x.to(memory_format=torch.channels_last)
    for y, plan_of in ((x, plan_flat_resident), (last, plan_rows_resident), (last, plan_rows_streaming)):
        geometry = geometry_of(y, empty_dense_like(y), groups)
        plan = plan_of(geometry, sms)
        if plan is None:
            continue
        rows = plan.path is Path.ROWS_RESIDENT
        covered = spatial if rows else geometry.group_elements
        step = plan.block // plan.columns if rows else plan.block
        assert plan.chunk * (plan.chunks - 1) < covered <= plan.chunk * plan.chunks
        assert plan.stream % (step * plan.unroll) == 0
        assert 0 < plan.chunk - plan.stream <= plan.tiles * step
        assert plan.tiles * plan.block * y.element_size() <= HELD_BYTES + plan.block * y.element_size()
        blocks = n * (math.ceil(groups / (plan.columns // next_power_of_two(group_channels))) if rows else groups)
        assert plan.chunks == 1 or blocks * plan.chunks <= (2 if plan.registers == 128 else 1) * sms
        assert plan.warps <= 16


def test_without_barriers_nothing_waits() -> None:
    with torch.device("meta"):
        x = torch.empty((1, 512, 4, 32, 32), dtype=torch.bfloat16)
        tiny = torch.empty((1, 1024, 8, 8), dtype=torch.bfloat16)
    last = x.to(memory_format=torch.channels_last_3d)
    paths = [make_plan(geometry_of(y, empty_dense_like(y), 32), 132, barriers=False).path for y in (x, last, tiny)]
    assert paths == [Path.TWO_PASS, Path.ROWS, Path.FLAT_RESIDENT]


def test_geometry_of_views() -> None:
    x = torch.randn(2, 8, 4, 6, 16)
    dense = geometry_of(x, empty_dense_like(x), 2)
    assert (dense.dense, dense.channels_last, dense.vector) == (True, False, 4)
    last = x.contiguous(memory_format=torch.channels_last_3d)
    geometry = geometry_of(last, empty_dense_like(last), 2)
    assert (geometry.dense, geometry.channels_last, geometry.row_strides) == (False, True, (8, 8))
    crop = last[..., ::2]
    assert geometry_of(crop, empty_dense_like(crop), 2).row_strides == (16, 8)
    rows = last[..., ::2, :8]
    assert geometry_of(rows, empty_dense_like(rows), 2).row_strides is None
    sliced = x[..., 4:8]
    assert (geometry_of(sliced, empty_dense_like(sliced), 2).dense, sliced.stride(-1)) == (False, 1)


# Barrier words


def test_words_are_shared_on_a_stream_alone() -> None:
    store = WordStore(torch.device("cpu"), size=2 * WORDS_PER_STREAM + 5)
    one, again, other = (store.of_stream(stream, 4) for stream in (7, 7, 8))
    assert one is not None
    assert again is not None
    assert other is not None
    assert one.data_ptr() == again.data_ptr()
    assert other.data_ptr() - one.data_ptr() == 4 * WORDS_PER_STREAM
    own, next_own = store.own(2), store.own(3)
    assert own is not None
    assert next_own is not None
    assert next_own.data_ptr() - own.data_ptr() == 4 * 2
    assert store.own(1) is None
    assert store.of_stream(9, 1) is None
    assert store.of_stream(7, WORDS_PER_STREAM + 1) is None


def test_without_words_several_launches_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []
    monkeypatch.setattr(launch, "device_limits", lambda device: (132, False))
    monkeypatch.setattr(launch, "barrier_words", lambda device, count: None)
    for name in ("_two_pass", "_rows", "_flat_resident", "_rows_resident"):
        monkeypatch.setattr(launch, name, lambda *args, name=name: launched.append(name))
    for memory_format in (torch.contiguous_format, torch.channels_last):
        x = torch.empty((1, 256, 32, 32), device="meta").to(memory_format=memory_format)
        groupnorm_silu(x, x, x, 2, 1e-6)
    assert launched == ["_two_pass", "_rows"]


# Declaration


def test_native_is_group_norm_then_silu_in_any_float_dtype() -> None:
    x = torch.randn(2, 8, 3, 5, dtype=torch.float64)
    weight, bias = torch.randn(8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    grouped = x.reshape(2, 4, -1)
    centred = (grouped - grouped.mean(-1, keepdim=True)) / (grouped.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    z = centred.reshape(x.shape) * weight[:, None, None] + bias[:, None, None]
    torch.testing.assert_close(native(x, weight, bias, 4, 1e-5), z / (1 + torch.exp(-z)))


def test_bytes_of_one_read_and_of_the_floor_of_two() -> None:
    tiny = case(N=2, C=8, H=3, W=5)
    assert OP.bytes_moved(tiny) == 4 * (2 * 240 + 2 * 8)
    assert OP.floor_bytes is not None
    assert OP.floor_bytes(tiny) == 4 * (3 * 240 + 2 * 8)


def test_check_names_what_is_impossible() -> None:
    assert OP.check(case(N=1, C=10, H=4, W=4)) == "C=10 does not divide into groups=4"
    assert "needs spatial dims" in (OP.check(case(Layout.CHANNELS_LAST, N=1, C=8)) or "")
    assert OP.check(case(Layout.CHANNELS_LAST, N=1, C=8, H=2, W=2)) is None


def test_pad_context() -> None:
    context = OP.context("pad")
    tiny = case(N=1, C=8, T=3, H=6, W=5)
    args = context.inputs(tiny, SeededDraw(0, torch.float32, torch.device("cpu")))
    y = native(**args)
    out = context.compose(native)(**args)
    assert out.shape == (1, 8, 5, 8, 7)
    assert torch.equal(out[:, :, 2:, 1:-1, 1:-1], y)
    first, last = y[:, :, 0, 0, 0], y[:, :, -1, -1, -1]
    assert torch.equal(out[:, :, 0, 0, 0], first)
    assert torch.equal(out[:, :, 1, 0, 0], first)
    assert torch.equal(out[:, :, -1, -1, -1], last)
    assert context.bytes_moved(tiny) == 4 * (8 * 3 * 6 * 5 + 8 * 5 * 8 * 7 + 2 * 8)
    rewritten = channels_last_pad(**args)
    torch.testing.assert_close(rewritten, out)
    assert rewritten.is_contiguous(memory_format=torch.channels_last_3d)
    flat = case(N=1, C=8, H=6, W=5).model_copy(update={"contexts": ("pad",)})
    assert OP.check(flat) == "context pad pads a causal 3-D convolution's input, and there is no T"


@pytest.mark.parametrize("dims", [{"N": 1, "C": 8, "H": 6, "W": 5}, {"N": 1, "C": 8, "T": 3, "H": 6, "W": 5}])
@pytest.mark.parametrize("layout", [Layout.CONTIGUOUS, Layout.CHANNELS_LAST])
def test_conv_context(dims: dict[str, int], layout: Layout) -> None:
    context = OP.context("conv")
    tiny = case(layout, **dims)
    args = context.inputs(tiny, SeededDraw(0, torch.float32, torch.device("cpu")))
    weight, bias = args["conv_weight"], args["conv_bias"]
    assert weight.stride(1) == (27 if "T" in dims else 1)
    y = native(*(args[k] for k in ("x", "weight", "bias", "groups", "eps")))
    if "T" in dims:
        # causal: frame t sees frames t - 2 .. t, the first one repeated before the start
        y = torch.cat([y[:, :, :1], y[:, :, :1], y], 2)
        expected = F.conv3d(F.pad(y, (1, 1, 1, 1, 0, 0), mode="replicate"), weight, bias)
    else:
        expected = F.conv2d(y, weight, bias, padding=1)
    out = context.compose(native)(**args)
    torch.testing.assert_close(out, expected)
    assert out.shape == tiny.shape
    taps = 27 if "T" in dims else 9
    assert context.bytes_moved(tiny) == 4 * (2 * tiny.numel + 2 * 8 + 8 * 8 * taps + 8)


@pytest.mark.parametrize("offset", [0.0, 8.0])
@pytest.mark.parametrize("shape", [(4, 64), (2, 64, 9, 7), (1, 32, 3, 16, 8)])
def test_two_stage_rewrite_is_native(shape: tuple[int, ...], offset: float) -> None:
    x = torch.randn(shape) + offset
    weight, bias = torch.randn(shape[1]), torch.randn(shape[1])
    formats = {5: torch.channels_last_3d, 4: torch.channels_last}
    for memory_format in (torch.contiguous_format, formats.get(x.ndim, torch.contiguous_format)):
        y = x.contiguous(memory_format=memory_format)
        out = two_stage(x=y, weight=weight, bias=bias, groups=8, eps=1e-6)
        torch.testing.assert_close(out, native(y, weight, bias, 8, 1e-6), atol=1e-4, rtol=1e-4)
        assert out.is_contiguous(memory_format=memory_format)


def test_two_stage_rewrite_of_nothing() -> None:
    out = two_stage(x=torch.empty(0, 8, 4), weight=torch.ones(8), bias=torch.ones(8), groups=4, eps=1e-6)
    assert out.shape == (0, 8, 4)


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("shape", "last"),
    [
        ((1, 512, 5, 32, 32), False),
        ((1, 512, 5, 32, 32), True),
        ((2, 256, 5, 64, 64), True),
        ((1, 256, 9, 64, 96), True),
        ((2, 512, 9, 45, 80), False),
        ((3, 640, 17, 9), False),
        ((1, 320, 3, 17, 9), True),
        ((1, 128, 3, 257, 255), False),
        ((2, 64, 8, 8), False),
    ],
)
@pytest.mark.parametrize("offset", [0.0, 8.0])
def test_gpu_agrees_and_repeats(shape: tuple[int, ...], last: bool, offset: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16) + offset
    if last:
        x = x.contiguous(memory_format=torch.channels_last_3d if x.ndim == 5 else torch.channels_last)
    weight, bias = torch.randn(2, shape[1], device="cuda", dtype=torch.bfloat16)
    y = groupnorm_silu(x, weight, bias, 32, 1e-6)
    oracle = native(x.double(), weight.double(), bias.double(), 32, 1e-6)
    assert ((y - oracle).abs() <= 2**-8 * oracle.abs() + 1e-5).all()
    assert y.stride() == x.stride()
    for _ in range(50):
        torch.full((1 << 16,), torch.nan, device="cuda")  # its block is the next call's scratch
        assert torch.equal(groupnorm_silu(x, weight, bias, 32, 1e-6), y)


@pytest.mark.gpu
@pytest.mark.parametrize("last", [False, True])
def test_gpu_streams_and_graphs_side_by_side(last: bool) -> None:
    """Launches that wait inside themselves, on two streams and in two graphs at once, share no barrier."""
    torch.manual_seed(0)
    streams = [torch.cuda.Stream() for _ in range(4)]
    weight, bias = torch.randn(2, 256, device="cuda", dtype=torch.bfloat16)
    xs = [torch.randn((1, 256, 3, 24, 24), device="cuda", dtype=torch.bfloat16) + i for i in range(4)]
    if last:
        xs = [x.contiguous(memory_format=torch.channels_last_3d) for x in xs]
    expected = [groupnorm_silu(x, weight, bias, 32, 1e-6) for x in xs]
    graphs = []
    for x in xs[:2]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs = [groupnorm_silu(x, weight, bias, 32, 1e-6) for _ in range(3)]
        graphs.append((graph, outs))
    torch.cuda.synchronize()
    eager: list[torch.Tensor] = []
    for _ in range(100):
        for stream, (graph, _outs) in zip(streams[:2], graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        for stream, x in zip(streams[2:], xs[2:], strict=True):
            with torch.cuda.stream(stream):
                eager.append(groupnorm_silu(x, weight, bias, 32, 1e-6))
    torch.cuda.synchronize()
    for (_, outs), wanted in zip(graphs, expected[:2], strict=True):
        assert all(torch.equal(out, wanted) for out in outs)
    assert all(torch.equal(out, wanted) for out, wanted in zip(eager, expected[2:] * 100, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_gpu_beyond_int32(memory_format: torch.memory_format) -> None:
    x = torch.randn((1, 32, 8200, 8200), device="cuda", dtype=torch.bfloat16).contiguous(memory_format=memory_format)
    weight, bias = torch.randn(2, 32, device="cuda", dtype=torch.bfloat16)
    y = groupnorm_silu(x, weight, bias, 32, 1e-6)[:, -1:]
    oracle = native(x[:, -1:].contiguous().float(), weight[-1:].float(), bias[-1:].float(), 1, 1e-6)
    assert ((y - oracle).abs() <= 2**-8 * oracle.abs() + 1e-4).all()


@pytest.mark.gpu
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "shape", [(1, 512, 4, 32, 32), (1, 128, 13, 256, 256), (2, 96, 3, 37, 41), (1, 64, 1, 1, 300)], ids=str
)
def test_gpu_padded(shape: tuple[int, ...], last: bool) -> None:
    """One rounding against the fp64 oracle; the same bits launch after launch, whatever the scratch held before."""
    torch.manual_seed(0)
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16) + 1
    if last:
        x = x.contiguous(memory_format=torch.channels_last_3d)
    weight, bias = torch.randn(2, shape[1], device="cuda", dtype=torch.bfloat16)
    y = groupnorm_silu_padded(x, weight, bias, 32, 1e-6)
    oracle = replicate_padded(native(x.double(), weight.double(), bias.double(), 32, 1e-6))
    assert ((y - oracle).abs() <= 2**-8 * oracle.abs() + 1e-5).all()
    assert y.is_contiguous(memory_format=torch.channels_last_3d)
    for _ in range(50):
        torch.full((1 << 16,), torch.nan, device="cuda")  # its block is the next call's scratch
        assert torch.equal(groupnorm_silu_padded(x, weight, bias, 32, 1e-6), y)


@pytest.mark.gpu
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
def test_gpu_padded_beyond_int32(memory_format: torch.memory_format) -> None:
    x = torch.randn((1, 32, 2, 6000, 6000), device="cuda", dtype=torch.bfloat16).contiguous(memory_format=memory_format)
    weight, bias = torch.randn(2, 32, device="cuda", dtype=torch.bfloat16)
    y = groupnorm_silu_padded(x, weight, bias, 32, 1e-6)[:, -1:, -1]
    oracle = native(x[:, -1:].contiguous().float(), weight[-1:].float(), bias[-1:].float(), 1, 1e-6)
    oracle = replicate_padded(oracle)[:, :, -1]
    assert ((y - oracle).abs() <= 2**-8 * oracle.abs() + 1e-4).all()
