"""torch's CUDA LayerNorm kernel in NumPy, thread by thread: the order of its operations, written from its source.

`fused=False` rounds every product before it is added, as Triton's interpreter does for `tl.fma`; `True` is what nvcc
makes of the source. aten/src/ATen/native/cuda/layer_norm_kernel.cu: `compute_stats`, `cuWelfordOnlineSum`,
`cuWelfordCombine`; blocks of 32 x 4 threads, vectors of four elements.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_THREADS, _VECTOR = 128, 4


class Arithmetic:
    """fp32, with fused or separate multiply-adds."""

    def __init__(self, fused: bool) -> None:
        self.fused = fused

    def fma(self, a: Floats, b: Floats, c: Floats) -> Floats:
        """a * b + c."""
        if not self.fused:
            return a * b + c
        return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)


def moments(row: Floats, fused: bool) -> tuple[np.float32, np.float32]:
    """Mean and sum of squared deviations of one row, as torch's block of 128 threads computes them."""
    fma = Arithmetic(fused).fma
    one = np.float32(1)
    vectors = row.reshape(-1, _VECTOR)
    mean, m2, count = (np.zeros(_THREADS, np.float32) for _ in range(3))
    for start in range(0, len(vectors), _THREADS):
        step = vectors[start : start + _THREADS]
        active = slice(0, len(step))
        for element in step.T:
            delta = element - mean[active]
            count[active] += one
            mean[active] = fma(delta, one / count[active], mean[active])
            m2[active] = fma(delta, element - mean[active], m2[active])
    for shape, axis, distances in (((4, 32), 1, (16, 8, 4, 2, 1)), ((4, 1), 0, (2, 1))):
        mean, m2, count = (state.reshape(4, -1)[:, : shape[1]] for state in (mean, m2, count))
        for distance in distances:
            mine, theirs = ([slice(None)] * 2 for _ in range(2))
            mine[axis], theirs[axis] = slice(0, distance), slice(distance, 2 * distance)
            a, b = tuple(mine), tuple(theirs)
            delta, total = mean[a] - mean[b], count[a] + count[b]
            share = count[a] * (one / total)
            merged = fma(mean[b], count[b] * (one / total), share * mean[a])
            m2 = fma(delta * delta * count[b], share, m2[a] + m2[b])
            mean, count = merged, total
    return mean.item(), m2.item()  # type: ignore[return-value]


def normalised(row: Floats, eps: float, fused: bool) -> Floats:
    """(row - mean) / sqrt(var + eps) in that kernel's operations."""
    mean, m2 = (np.float32(value) for value in moments(row, fused))
    inverse_sd = np.float32(1) / np.sqrt(m2 / np.float32(len(row)) + np.float32(eps))
    return np.float32(inverse_sd) * (row - mean)
