"""Made-up cases of qknorm_rope for tests."""

from typing import Any

from harness.schema.case import Case, Confidence, Dtype, Layout


def case(
    *, B: int = 2, S: int = 5, H: int = 4, D: int = 16, layout: Layout = Layout.CONTIGUOUS, dtype: Dtype = Dtype.FP32,
    contexts: tuple[str, ...] = (), **params: Any,
) -> Case:  # fmt: skip
    """A case with one head of k for each of q, FLUX's conventions and half a table, unless `params` say otherwise."""
    dims = {"B": B, "S": S, "H": H, "D": D}
    conventions = {
        "eps": 1e-6, "queries_per_kv": 1, "across_heads": False, "pairs": "interleaved", "rotary_dim": D,
        "table": "half", "table_dtype": "float32", "per_batch": False, "rounding": "norm",
    }  # fmt: skip
    return Case(
        id="case",
        model="made-up",
        dims=dims,
        params=conventions | params,
        dtype=dtype,
        layout=layout,
        calls=1,
        step="denoise step",
        source="made up for a test",
        confidence=Confidence.MEMORY,
        rehearsal=dims,
        contexts=contexts,
    )
