"""Triton kernels for RMSNorm over the channels of (N, C, T, H, W), alone and up to the next convolution's input.

All channels of a position are held in registers, as K pieces of CB channels: x is read once.

* `rows`, channels-last: positions are rows of C adjacent channels, one behind the other. G groups of RB rows per
  program, all asked for before any is used; nothing waits for another warp.
* `tile`, any strides: a run of positions per program. Triton lays threads along whichever is adjacent in memory.
  Offsets are int64; without INDEX64 those inside an image are int32, since a 64-bit address per element costs more
  instructions than the norm where accesses cannot be vectors.
"""

import triton
import triton.language as tl

from candidates.groupnorm_silu.kernels.tiles import normalise_silu


@triton.jit
def _wide(index, INDEX64: tl.constexpr):
    return index.to(tl.int64) if INDEX64 else index


@triton.jit
def _position_offset(s, H, W, s_t, s_h, s_w, FLAT: tl.constexpr):
    """Element offset of position s = (t * H + h) * W + w; with FLAT positions are s_w apart."""
    if FLAT:
        offset = s.to(tl.int64) * s_w
    else:
        line = s // W
        frame = line // H
        offset = frame.to(tl.int64) * s_t + (line - frame * H).to(tl.int64) * s_h + (s - line * W).to(tl.int64) * s_w
    return offset


@triton.jit
def _load(
    x_ptr, x_c, offset, valid, C, K: tl.constexpr, CB: tl.constexpr, CEVEN: tl.constexpr, INDEX64: tl.constexpr
):  # fmt: skip
    """K tiles (CB, BS) of all channels at the positions, and the norm over the channels (BS,), in fp32."""
    tiles = ()
    squares = tl.zeros((CB, offset.shape[0]), tl.float32)
    for k in tl.static_range(K):
        c = k * CB + tl.arange(0, CB)
        mask = valid[None, :] if CEVEN else (c < C)[:, None] & valid[None, :]
        x = tl.load(x_ptr + _wide(c, INDEX64)[:, None] * x_c + offset[None, :], mask=mask, other=0.0)
        wide = x.to(tl.float32)
        squares += wide * wide
        tiles = tiles + (x,)  # noqa: RUF005 - Triton takes no starred tuple
    return tiles, tl.sqrt(tl.sum(squares, 0))


@triton.jit
def _store(out, offset, o_c, y, valid, C, k, CB: tl.constexpr, CEVEN: tl.constexpr, INDEX64: tl.constexpr):
    """One piece (CB, BS) of the output, rounded to its dtype."""
    c = k * CB + tl.arange(0, CB)
    mask = valid[None, :] if CEVEN else (c < C)[:, None] & valid[None, :]
    at = _wide(c, INDEX64)[:, None] * o_c + offset[None, :]
    tl.store(out + at, y.to(out.dtype.element_ty), mask=mask)


@triton.jit
def rmsnorm_vae_tile(
    x_ptr, gamma_ptr, bias_ptr, out_ptr, root_c, eps, tiles, C, S, H, W,
    x_n, x_c, x_t, x_h, x_w, o_n, o_c, o_t, o_h, o_w,
    K: tl.constexpr, CB: tl.constexpr, BS: tl.constexpr, CEVEN: tl.constexpr, FLAT: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """x / max(norm, eps) * root_c * gamma (+ bias) at BS positions of one image; grid (N * tiles,)."""
    pid = tl.program_id(0)
    n = (pid // tiles).to(tl.int64)
    s = (pid % tiles) * BS + tl.arange(0, BS)
    valid = s < S
    offset = _position_offset(s, H, W, x_t, x_h, x_w, FLAT)
    xs, norm = _load(x_ptr + n * x_n, x_c, offset, valid, C, K, CB, CEVEN, True)
    scale = root_c / tl.maximum(norm, eps)
    out = out_ptr + n * o_n
    offset = _position_offset(s, H, W, o_t, o_h, o_w, FLAT)
    for k in tl.static_range(K):
        c = k * CB + tl.arange(0, CB)
        gamma = tl.load(gamma_ptr + c, mask=c < C, other=0.0).to(tl.float32)
        y = xs[k].to(tl.float32) * scale[None, :] * gamma[:, None]
        if BIAS:
            y += tl.load(bias_ptr + c, mask=c < C, other=0.0).to(tl.float32)[:, None]
        _store(out, offset, o_c, y, valid, C, k, CB, CEVEN, True)


@triton.jit
def rmsnorm_vae_silu_pad(
    x_ptr, gamma_ptr, bias_ptr, cache_ptr, out_ptr, root_c, eps, tiles, C, H, W, TO, front,
    x_n, x_c, x_t, x_h, x_w, k_n, k_c, k_t, k_h, k_w, o_n, o_c, o_t, o_h, o_w,
    K: tl.constexpr, CB: tl.constexpr, BS: tl.constexpr, CEVEN: tl.constexpr, BIAS: tl.constexpr,
    CACHE: tl.constexpr, ASM: tl.constexpr, INDEX64: tl.constexpr,
):  # fmt: skip
    """SiLU of the norm inside a border of one zero in H and W, behind `front` frames: those of the cache, or zeros.

    A program writes BS positions of one row of the output, so that border, cache and norm are whole branches; grid
    (N * TO * (H + 2) * tiles,).
    """
    pid = tl.program_id(0)
    line = pid // tiles
    frame = line // (H + 2)
    n = frame // TO
    t = frame - n * TO - front
    h = line - frame * (H + 2) - 1
    w = (pid - line * tiles) * BS - 1 + tl.arange(0, BS)
    inside, valid = (w >= 0) & (w < W), w <= W
    row = n.to(tl.int64) * o_n + (t + front).to(tl.int64) * o_t + (h + 1).to(tl.int64) * o_h
    out = out_ptr + row
    offset = _wide(w + 1, INDEX64) * o_w
    if (h < 0) | (h >= H):
        for k in tl.static_range(K):
            _store(out, offset, o_c, tl.zeros((CB, BS), tl.float32), valid, C, k, CB, CEVEN, INDEX64)
    elif t >= 0:
        row = n.to(tl.int64) * x_n + t.to(tl.int64) * x_t + h.to(tl.int64) * x_h
        xs, norm = _load(x_ptr + row, x_c, _wide(w, INDEX64) * x_w, inside, C, K, CB, CEVEN, INDEX64)
        scale = root_c / tl.maximum(norm, eps)
        for k in tl.static_range(K):
            c = k * CB + tl.arange(0, CB)
            gamma = tl.load(gamma_ptr + c, mask=c < C, other=0.0).to(tl.float32)[:, None]
            bias = 0.0
            if BIAS:
                bias = tl.load(bias_ptr + c, mask=c < C, other=0.0).to(tl.float32)[:, None]
            y = normalise_silu(xs[k].to(tl.float32) * scale[None, :], 0.0, gamma, bias, ASM)
            if BIAS:
                y = tl.where(inside[None, :], y, 0.0)
            _store(out, offset, o_c, y, valid, C, k, CB, CEVEN, INDEX64)
    else:
        row = n.to(tl.int64) * k_n + (t + front).to(tl.int64) * k_t + h.to(tl.int64) * k_h
        for k in tl.static_range(K):
            kept = tl.zeros((CB, BS), tl.float32)
            if CACHE:
                c = k * CB + tl.arange(0, CB)
                mask = inside[None, :] if CEVEN else (c < C)[:, None] & inside[None, :]
                at = _wide(c, INDEX64)[:, None] * k_c + (_wide(w, INDEX64) * k_w)[None, :]
                kept = tl.load(cache_ptr + row + at, mask=mask, other=0.0).to(tl.float32)
            _store(out, offset, o_c, kept, valid, C, k, CB, CEVEN, INDEX64)


@triton.jit
def _in_row(valid, c, C, CEVEN: tl.constexpr):
    """Rows (RB, 1) that are there by channels (1, CB) that are there."""
    return valid if CEVEN else valid & (c < C)


@triton.jit
def _row_weights(ptr, C, K: tl.constexpr, CB: tl.constexpr, RB: tl.constexpr, CEVEN: tl.constexpr):
    """K pieces as tiles (RB, CB) of x's layout: single rows would reach the threads through shared memory."""
    pieces = ()
    for k in tl.static_range(K):
        at = k * CB + tl.arange(0, CB)[None, :] + tl.zeros((RB, 1), tl.int32)
        mask = _in_row(tl.full((RB, CB), True, tl.int1), at, C, CEVEN)
        pieces = pieces + (tl.load(ptr + at, mask=mask, other=0.0, eviction_policy="evict_last"),)  # noqa: RUF005
    return pieces


@triton.jit
def _row_scale(xs, g: tl.constexpr, root_c, eps, K: tl.constexpr):
    """root_c / max(norm, eps) of group g's rows (RB, 1)."""
    squares = tl.zeros(xs[0].shape, tl.float32)
    for k in tl.static_range(K):
        wide = xs[g * K + k].to(tl.float32)
        squares += wide * wide
    return (root_c / tl.maximum(tl.sqrt(tl.sum(squares, 1)), eps))[:, None]


@triton.jit(do_not_specialize=["rows"])
def rmsnorm_vae_rows(
    x_ptr, gamma_ptr, bias_ptr, out_ptr, root_c, eps, rows, C,
    K: tl.constexpr, CB: tl.constexpr, RB: tl.constexpr, G: tl.constexpr, CEVEN: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """`rmsnorm_vae_tile` for rows of C channels; grid (cdiv(rows, RB * G),)."""
    first = tl.program_id(0).to(tl.int64) * (RB * G)
    x_ptr += first * C
    out_ptr += first * C
    left = rows - first
    r = tl.arange(0, RB)[:, None]
    c = tl.arange(0, CB)[None, :]
    xs = ()
    for g in tl.static_range(G):
        for k in tl.static_range(K):
            mask = _in_row(r + g * RB < left, c + k * CB, C, CEVEN)
            x = tl.load(x_ptr + (r + g * RB) * C + (c + k * CB), mask=mask, other=0.0)
            xs = xs + (x,)  # noqa: RUF005 - Triton takes no starred tuple
    gammas = _row_weights(gamma_ptr, C, K, CB, RB, CEVEN)
    if BIAS:
        biases = _row_weights(bias_ptr, C, K, CB, RB, CEVEN)
    for g in tl.static_range(G):
        scale = _row_scale(xs, g, root_c, eps, K)
        for k in tl.static_range(K):
            y = xs[g * K + k].to(tl.float32) * scale * gammas[k].to(tl.float32)
            if BIAS:
                y += biases[k].to(tl.float32)
            mask = _in_row(r + g * RB < left, c + k * CB, C, CEVEN)
            tl.store(out_ptr + (r + g * RB) * C + (c + k * CB), y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["normed", "T", "H", "W", "front"])
def rmsnorm_vae_silu_pad_rows(
    x_ptr, gamma_ptr, bias_ptr, cache_ptr, out_ptr, root_c, eps, normed, C, T, H, W, front,
    K: tl.constexpr, CB: tl.constexpr, RB: tl.constexpr, G: tl.constexpr, CEVEN: tl.constexpr, BIAS: tl.constexpr,
    CACHE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """`rmsnorm_vae_silu_pad` for rows of C channels, in x, cache and output; grid (their sum, N).

    A program writes RB * G positions of the output, numbered through lines and frames, so that no line's end leaves
    threads idle: of an image's programs the first `normed` the normed frames, the others the frames in front.
    """
    pid = tl.program_id(0)
    n = tl.program_id(1).to(tl.int64)
    plane = (H + 2) * (W + 2)
    r = tl.arange(0, RB)
    c = tl.arange(0, CB)[None, :]
    out_ptr += n * (T + front) * plane * C
    norm = pid < normed
    if norm:
        x_ptr += n * T * H * W * C
        out_ptr += front.to(tl.int64) * plane * C
        first = pid * (RB * G)
        end = T * plane
    else:
        x_ptr = cache_ptr + n * front * H * W * C
        first = (pid - normed) * (RB * G)
        end = front * plane
    out_ptr += first.to(tl.int64) * C
    xs = ()
    insides = ()
    for g in tl.static_range(G):
        p = first + r + g * RB
        line = p // (W + 2)
        w = p - line * (W + 2) - 1
        frame = line // (H + 2)
        h = line - frame * (H + 2) - 1
        inside = (w >= 0) & (w < W) & (h >= 0) & (h < H) & (p < end)
        if not CACHE:
            inside = inside & norm
        insides = insides + (inside[:, None],)  # noqa: RUF005
        x_row = (((frame * H + h) * W + w).to(tl.int64) * C)[:, None]
        for k in tl.static_range(K):
            mask = _in_row(inside[:, None], c + k * CB, C, CEVEN)
            xs = xs + (tl.load(x_ptr + x_row + (c + k * CB), mask=mask, other=0.0),)  # noqa: RUF005
    if norm:
        gammas = _row_weights(gamma_ptr, C, K, CB, RB, CEVEN)
        if BIAS:
            biases = _row_weights(bias_ptr, C, K, CB, RB, CEVEN)
        for g in tl.static_range(G):
            scale = _row_scale(xs, g, root_c, eps, K)
            for k in tl.static_range(K):
                bias = biases[k].to(tl.float32) if BIAS else 0.0
                y = normalise_silu(xs[g * K + k].to(tl.float32) * scale, 0.0, gammas[k].to(tl.float32), bias, ASM)
                if BIAS:
                    y = tl.where(insides[g], y, 0.0)
                written = _in_row((r + g * RB < end - first)[:, None], c + k * CB, C, CEVEN)
                at = (r + g * RB)[:, None] * C + (c + k * CB)
                tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=written)
    else:
        for g in tl.static_range(G):
            for k in tl.static_range(K):
                written = _in_row((r + g * RB < end - first)[:, None], c + k * CB, C, CEVEN)
                tl.store(out_ptr + (r + g * RB)[:, None] * C + (c + k * CB), xs[g * K + k], mask=written)
