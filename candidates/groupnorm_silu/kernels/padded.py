"""GroupNorm+SiLU kernel that writes the padded input of the causal convolution behind it, channels-last.

Borders repeat, so a position is written once for each place that it stands in: x is read, and its SiLU taken, once.
Offsets from a tensor's start are int64.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from candidates.groupnorm_silu.kernels.tiles import normalise_silu


@triton.jit
def groupnorm_silu_padded_apply(
    x_ptr, bias_ptr, out_ptr, channel_ptr, tiles, blocks, NC, C, T, H, W, x_n, x_c, x_t, x_h, x_w,
    FRONT: tl.constexpr, BW: tl.constexpr, BC: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """BW positions of one line of x by BC channels; out (N, T + FRONT, H + 2, W + 2, C), channels adjacent.

    x in any strides: a tile is loaded along what is adjacent there and stored along the channels. Grid
    (N * T * H * tiles * blocks,).
    """
    pid = tl.program_id(0)
    block = pid % blocks
    tile = (pid // blocks) % tiles
    line = pid // (blocks * tiles)
    frame = line // H
    h = line - frame * H
    n = frame // T
    t = frame - n * T
    w = tile * BW + tl.arange(0, BW)
    c = block * BC + tl.arange(0, BC)
    there = (w < W)[:, None] & (c < C)[None, :]
    # neither x nor the bias comes from the kernels before, so they may be read before those have ended
    x_ptr += n.to(tl.int64) * x_n + t.to(tl.int64) * x_t + h.to(tl.int64) * x_h
    x = tl.load(x_ptr + (w.to(tl.int64) * x_w)[:, None] + (c.to(tl.int64) * x_c)[None, :], mask=there, other=0.0)
    bias = tl.load(bias_ptr + c, mask=c < C, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()
    # .cg: written since this kernel may have started, so L1 must not answer
    mean = tl.load(channel_ptr + n * C + c, mask=c < C, other=0.0, cache_modifier=".cg")
    scale = tl.load(channel_ptr + NC + n * C + c, mask=c < C, other=0.0, cache_modifier=".cg")
    y = normalise_silu(x.to(tl.float32), mean[None, :], scale[None, :], bias[None, :], ASM)
    y = y.to(out_ptr.dtype.element_ty)
    inside = (w + 1)[:, None] * C + c[None, :]
    out_t = tl.where(t == 0, 0, t + FRONT)
    while out_t <= t + FRONT:
        out_h = tl.where(h == 0, 0, h + 1)
        while out_h <= tl.where(h == H - 1, h + 2, h + 1):
            start = ((n.to(tl.int64) * (T + FRONT) + out_t) * (H + 2) + out_h) * (W + 2) * C
            tl.store(out_ptr + start + inside, y, mask=there)
            if tile == 0:
                tl.store(out_ptr + start + inside - C, y, mask=there & (w == 0)[:, None])
            if tile == tiles - 1:
                tl.store(out_ptr + start + inside + C, y, mask=there & (w == W - 1)[:, None])
            out_h += 1
        out_t += 1
