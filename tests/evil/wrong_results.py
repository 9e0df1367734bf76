"""RMSNorm candidates that compute the wrong thing, or the right thing the wrong way. The gate must refuse each.

They are declared as Triton kernels: on a CPU they are gated as custom ops and never timed.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from candidates.rmsnorm.op import native
from harness.op import Candidate, Provider, candidate
from harness.schema.vocabulary import Contract, Kind

EVIL = Provider("evil", lambda: None, lambda: "6.6.6")
_LARGE = 1024
"""Elements above which some behave badly: the contract probe's twin stays below, the case is above."""


def _kernel(*, contract: Contract = Contract.TOLERANCE, **more: Any) -> Callable[[Callable[..., Any]], Candidate]:
    return candidate(op="rmsnorm", kind=Kind.TRITON, provider=EVIL, kernels=("never",), contract=contract, **more)


@_kernel()
def honest(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Right; every other one's neighbour."""
    return native(x, weight, eps).contiguous()


@_kernel()
def zero_output(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """All zeros: within 1e-2 wherever the answer is small."""
    return torch.zeros(x.shape, dtype=x.dtype)


@_kernel()
def constant_output(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The mean of the answer everywhere."""
    return torch.full(x.shape, native(x, weight, eps).float().nanmean().item() if x.numel() else 0.0, dtype=x.dtype)


@_kernel()
def one_nan(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """One NaN, in large tensors."""
    y = native(x, weight, eps).contiguous()
    if y.numel() > _LARGE:
        y.view(-1)[77] = float("nan")
    return y


@_kernel()
def all_nan(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Nothing but NaN."""
    return torch.full(x.shape, float("nan"), dtype=x.dtype)


@_kernel()
def ignores_strides(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Walks the memory as if x were contiguous, as a kernel that is given a bare pointer does."""
    dense = torch.empty(x.shape).stride()
    return native(x.as_strided(x.shape, dense), weight, eps).contiguous()


@_kernel()
def ignores_batch(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalises the first batch and repeats it."""
    return native(x[:1].expand(x.shape), weight, eps).contiguous()


@_kernel()
def reads_first_weight(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Takes one weight for all columns: hidden where the weights are ones."""
    return native(x, weight[:1].expand(weight.shape), eps).contiguous()


_by_pointer: dict[tuple[int, torch.Size, tuple[int, ...]], Tensor] = {}


@_kernel()
def cached_by_pointer(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Remembers its result by the address of x."""
    key = (x.data_ptr(), x.shape, x.stride())
    if key not in _by_pointer:
        _by_pointer[key] = native(x, weight, eps).contiguous()
        _keep_alive.append(x)
    return _by_pointer[key].clone()


_keep_alive: list[Tensor] = []


@_kernel()
def writes_input(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Uses a large x as its scratch, and says nothing of it."""
    y = native(x, weight, eps).contiguous()
    if x.numel() > _LARGE:
        x.copy_(x * 0.5)
    return y


@_kernel(mutates=("x",), returns=("x",))
def writes_weight_too(x: Tensor, weight: Tensor, eps: float) -> None:
    """In place, as declared; but a large x costs the weights as well."""
    x.copy_(native(x, weight, eps))
    if x.numel() > _LARGE:
        weight.mul_(1.5)


@_kernel()
def writes_outside_slice(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Right, but writes one element past each end of a sliced x's rows."""
    y = native(x, weight, eps).contiguous()
    if x.numel() and x.storage_offset():
        torch.as_strided(x, (1,), (1,), x.storage_offset() - 1).fill_(7.0)
    return y


@_kernel()
def leaves_output_unwritten(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Returns memory as the allocator gave it."""
    return torch.empty(x.shape, dtype=x.dtype)


@_kernel()
def wrong_shape(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Two-dimensional whatever x is, though its fake has x's shape."""
    return native(x, weight, eps).reshape(-1, x.shape[-1]).contiguous()


@_kernel()
def wrong_strides(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Right values in a transposed layout, though its fake promises a contiguous one."""
    return native(x, weight, eps).transpose(0, -1).contiguous().transpose(0, -1)


@_kernel(fake=lambda x, weight, eps: x.new_empty(x.shape, dtype=torch.float32))
def wrong_dtype(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """fp32 whatever x is."""
    return native(x, weight, eps).float().contiguous()


_calls = [0]


@_kernel()
def irreproducible(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Within the tolerance, but never the same twice for a large x."""
    y = native(x, weight, eps).contiguous()
    if x.numel() > _LARGE:
        _calls[0] += 1
        y.view(-1)[0] += 2.0**-7 * (1 + _calls[0] % 2)
    return y


@_kernel(contract=Contract.BIT_EXACT)
def not_bit_exact(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Rounds before the weight is applied; claims to be native to the last bit."""
    inverse_rms = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    return ((x.float() * inverse_rms * 1.001).to(x.dtype).float() * weight.float()).to(x.dtype).contiguous()


@_kernel()
def half_precision_inside(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Rounds fp32 inputs to tf32's ten bits of mantissa, as a tensor core does."""
    if x.dtype is not torch.float32:
        return native(x, weight, eps).contiguous()
    bits = (x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF
    return native(bits.view(torch.float32), weight, eps).contiguous()


@_kernel()
def overflows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Clips x, as an accumulator of too little range does: right on N(0, 1)."""
    return native(x.clamp(-20, 20), weight, eps).contiguous()


@_kernel()
def ignores_eps(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """eps matters only where x is small."""
    return native(x, weight, 0.0).contiguous()


@_kernel()
def wrong_inside_compile(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Doubles its result when code that torch.compile made is among its callers."""
    y = native(x, weight, eps).contiguous()
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        if "_probe_" in frame.f_code.co_name or "torchinductor" in frame.f_code.co_filename:
            return y * 2
    return y


_tuned: set[torch.Size] = set()


@_kernel(mutates=("x",), returns=("x",))
def tuned_in_place(x: Tensor, weight: Tensor, eps: float) -> None:
    """Right, but the first call at a shape tries three configurations on the live x, as an autotuner does."""
    for _ in range(1 if x.shape in _tuned else 3):
        x.copy_(native(x, weight, eps))
    _tuned.add(x.shape)
