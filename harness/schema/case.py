"""One case of a shape manifest: the numbers a kernel is measured at, and where they come from."""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Param = bool | int | float | str
DimName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", max_length=20)]
Identifier = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.+-]*$", max_length=80)]
Dim = Annotated[int, Field(strict=True, ge=1, le=2**31)]


class Dtype(StrEnum):
    """Element type of the activations; the value is torch's attribute name."""

    BF16 = "bfloat16"
    FP16 = "float16"
    FP32 = "float32"

    @property
    def bytes(self) -> int:
        """Bytes per element."""
        return 4 if self is Dtype.FP32 else 2


class Layout(StrEnum):
    """Stride variant of the activation."""

    CONTIGUOUS = "contiguous"
    CHANNELS_LAST = "channels_last"
    """`torch.channels_last` for 4-D, `torch.channels_last_3d` for 5-D activations."""
    SLICED = "sliced"
    """A last-dim slice of a tensor three times as wide, as q/k/v views of a packed qkv are."""
    TRANSPOSED = "transposed"
    """Dims 1 and 2 stored swapped."""
    ODD_STRIDE = "odd_stride"
    """Contiguous but for dims of size 1, whose stride is a meaningless odd number: legal, and often mishandled."""


def _is_one(ranks: int) -> bool:
    """Cases of one rank are written as they were before there were others: evidence holds them."""
    return ranks == 1


class Confidence(StrEnum):
    """How the dims are known."""

    QUOTED = "quoted"
    """Read verbatim in a public benchmark, PR or config."""
    QUOTED_CONFIG = "quoted-config"
    """Widths read in the checkpoint's config, token counts chosen by us."""
    DERIVED = "derived"
    """Computed from a config; `formula` holds the arithmetic, `source` where its numbers stand."""
    QUOTED_PARTIAL = "quoted-partial"
    MEMORY = "memory"
    """Not read anywhere; may rank, never decides a row alone."""


class Case(BaseModel):
    """One shape at which an op is measured.

    `dims` are named in storage-independent (logical) order; an op says which orders it takes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    id: Identifier
    """Unique in its manifest."""
    model: Identifier
    """The model that calls the op at this shape."""
    dims: Annotated[dict[DimName, Dim], Field(min_length=1)]
    """Name to size, in the order of the activation's logical shape."""
    params: dict[str, Param] = Field(default_factory=dict)
    """Arguments that are not sizes: eps, groups, ..."""
    dtype: Dtype
    """Element type of the activation."""
    layout: Layout = Layout.CONTIGUOUS
    """Strides of the activation."""
    calls: Annotated[int, Field(strict=True, ge=1)]
    """Calls per step of the model (see `step`); they weight cases together only within one model and step."""
    step: Annotated[str, Field(min_length=3, max_length=120)]
    """What one step is: `denoise step`, `decode of one 4x32x32 latent tile`, `decode token`."""
    source: Annotated[str, Field(min_length=10)]
    """Where the dims come from: file, PR or formula."""
    confidence: Confidence
    """How the dims are known; a model known only from `memory` decides no row."""
    formula: dict[DimName, str] = Field(default_factory=dict)
    """Dim name to whole-number arithmetic (+ - * // and brackets) that must give the dim; needed when derived."""
    rehearsal: dict[DimName, Dim]
    """Sizes of the small twin measured on a CPU, same names as `dims`."""
    contexts: tuple[Identifier, ...] = ()
    """Contexts (op with its neighbours) to measure this case in, beside the op alone."""
    ranks: Annotated[int, Field(strict=True, ge=1, le=64, exclude_if=_is_one)] = 1
    """Processes that compute it together, one device each; `dims` are those of one rank."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape of the activation."""
        return tuple(self.dims.values())

    @property
    def numel(self) -> int:
        """Elements of the activation."""
        total = 1
        for size in self.dims.values():
            total *= size
        return total

    @property
    def content(self) -> str:
        """What a kernel sees of the case: equal for cases of two models that have the same shape."""
        dims = ",".join(f"{name}={size}" for name, size in self.dims.items())
        params = ",".join(f"{name}={value}" for name, value in sorted(self.params.items()))
        ranks = f";ranks={self.ranks}" if self.ranks > 1 else ""
        return f"{dims};{params};{self.dtype};{self.layout}{ranks}"

    def rehearsed(self) -> "Case":
        """The small twin: the same case at its `rehearsal` sizes."""
        dims = {name: self.rehearsal[name] for name in self.dims}
        return self.model_copy(update={"dims": dims, "formula": {}})
