"""Cases of rotary embedding for tests: one for each form that models have of it."""

from typing import Any

from harness.schema.case import Case, Confidence, Dtype, Layout

FORMS: dict[str, dict[str, Any]] = {
    "wan": {"form": "pair", "table_dtype": "float32"},
    "wan of diffusers": {"form": "pair", "width": "full"},
    "wan, positions of each batch": {"form": "pair", "positions": "per_batch"},
    "flux": {"form": "rotate_half", "width": "full"},
    "qwen": {"form": "rotate_half"},
    "complex": {"form": "complex"},
    "complex, positions of each batch": {"form": "complex", "positions": "per_batch"},
    "qwen3": {"form": "rotate_half", "pairs": "halves", "width": "full", "positions": "per_batch"},
    "neox": {"form": "rotate_half", "pairs": "halves"},
    "ltx2": {"form": "pair", "pairs": "halves", "positions": "per_head"},
}
"""What differs from vllm-omni's Wan with fp32 tables."""


def rope_case(
    *,
    form: str = "pair",
    pairs: str = "interleaved",
    width: str = "half",
    table_dtype: str = "float32",
    positions: str = "shared",
    rotary_dim: int | None = None,
    heads_per_kv: int = 1,
    dtype: Dtype = Dtype.FP32,
    layout: Layout = Layout.CONTIGUOUS,
    contexts: tuple[str, ...] = (),
    rehearsal: dict[str, int] | None = None,
    **dims: int,
) -> Case:
    """A case of (2, 6, 4, 16), but for the dims that are given."""
    dims = {"B": 2, "S": 6, "H": 4, "D": 16} | dims
    return Case(
        id="case",
        model="made-up",
        dims=dims,
        params={
            "form": form,
            "pairs": pairs,
            "width": width,
            "table_dtype": table_dtype,
            "positions": positions,
            "rotary_dim": rotary_dim or dims["D"],
            "heads_per_kv": heads_per_kv,
        },
        dtype=dtype,
        layout=layout,
        calls=1,
        step="one call",
        source="made up for a test",
        confidence=Confidence.MEMORY,
        rehearsal=rehearsal or dims,
        contexts=contexts,
    )
