"""The conventions in which models' QK-norms and RoPEs differ, and the sizes of a case that follow from its params."""

from dataclasses import dataclass
from enum import StrEnum

from harness.schema.case import Case


class Pairs(StrEnum):
    """Which elements of a head are rotated together, R being the rotated width."""

    INTERLEAVED = "interleaved"
    """(2i, 2i + 1): Wan, FLUX, Qwen-Image, Z-Image, HunyuanVideo, LTX."""
    NEOX = "neox"
    """(i, i + R/2): Qwen3-Omni, GLM, MiniMax-H3."""


class Table(StrEnum):
    """What stands in cos and sin; element j of a head is always `x_j * cos_j + turned(x)_j * sin_j`."""

    HALF = "half"
    """Width R/2, one value per pair."""
    REPEATED = "repeated"
    """Width R, each value twice, at both elements of its pair, as diffusers and transformers build it."""
    FULL = "full"
    """Width R, every element its own: pins the convention that the repeated table leaves open."""


class Rounding(StrEnum):
    """Where the norm rounds to the activation's dtype before the rotation."""

    NONE = "none"
    """Nowhere, as fused kernels."""
    NORM = "norm"
    """Once, at its end: nn.RMSNorm, vllm, vllm-omni."""
    BEFORE_WEIGHT = "before_weight"
    """Before the weight and after it: diffusers' and transformers' own classes."""


@dataclass(frozen=True)
class Shapes:
    """Sizes and conventions of a case."""

    batch: int
    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    pairs: Pairs
    table: Table

    @classmethod
    def of(cls, case: Case) -> "Shapes":
        """Of a case that the op's `check` accepts."""
        batch, tokens, heads, head_dim = (case.dims[name] for name in "BSHD")
        return cls(
            batch=batch,
            tokens=tokens,
            heads=heads,
            kv_heads=heads // int(case.params["queries_per_kv"]),
            head_dim=head_dim,
            rotary_dim=int(case.params["rotary_dim"]),
            pairs=Pairs(str(case.params["pairs"])),
            table=Table(str(case.params["table"])),
        )
