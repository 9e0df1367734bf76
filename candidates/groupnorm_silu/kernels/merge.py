"""Triton kernel between statistics and apply passes that read what they need per channel."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from candidates.groupnorm_silu.kernels.tiles import merge_chunks


@triton.jit
def groupnorm_silu_merge(
    mean_ptr, m2_ptr, weight_ptr, channel_ptr, eps, chunks, chunk, C, G, S,
    CG: tl.constexpr, CGP: tl.constexpr, CHUNKS_PAD: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A group's mean and weight / sqrt(variance + eps), for each of its channels: channel (2, N, C); grid (N * G,).

    With ROWS chunks are of `chunk` positions and partials (N, chunks, G); else of elements, and (N, G, chunks).
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    ng = tl.program_id(0)
    if ROWS:
        first = (ng // G).to(tl.int64) * chunks * G + ng % G
        mean, rstd = merge_chunks(mean_ptr + first, m2_ptr + first, G, chunks, chunk, CG, S, eps, CHUNKS_PAD)
    else:
        first = ng.to(tl.int64) * chunks
        size = tl.cast(CG, tl.int64) * S
        mean, rstd = merge_chunks(mean_ptr + first, m2_ptr + first, 1, chunks, chunk, 1, size, eps, CHUNKS_PAD)
    within = tl.arange(0, CGP)
    channel = (ng % G) * CG + within
    weight = tl.load(weight_ptr + channel, mask=within < CG, other=0.0).to(tl.float32)
    slot = (ng // G) * C + channel
    tl.store(channel_ptr + slot, tl.zeros((CGP,), tl.float32) + mean, mask=within < CG)
    tl.store(channel_ptr + tl.num_programs(0) * CG + slot, weight * rstd, mask=within < CG)
