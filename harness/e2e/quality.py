"""How far a wired model's output moves, and what it was loaded from.

On random weights PSNR and SSIM pass anything (no RoPE at all still gives 64 dB): what separates a legal change of
rounding from a wrong kernel is the error against an fp32 run of the same weights over native's own error.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harness.e2e.build import sharing
from harness.e2e.models import Family, Inputs
from harness.errors import UserError
from harness.schema.process import QualityRecord

LIMIT = 1.5
"""Most that an arm's error may be of native's: legal rounding lies at 1.00 to 1.07, wrong kernels at 1.95 and above."""
_AT_ONCE_BYTES = 4 << 30
_ALEXNET = "alexnet-owt-7be5be79.pth"
_SSIM_WINDOW = 11
"""Side of the Gaussian window of structural similarity."""
_LPIPS_SIDE = 64
"""Least side of an image that AlexNet's pooling leaves something of."""

Perceptual = Callable[[Tensor, Tensor], float]


Stores = list[tuple[dict[str, Any], dict[str, Any]]]
"""Parameters or buffers of a module, and what stood there before."""


@torch.no_grad()
def reference_output(family: Family, model: nn.Module, inputs: Inputs, most_bytes: int = _AT_ONCE_BYTES) -> Tensor:
    """The model's output in fp32 on the same weights, of which about `most_bytes` are upcast at a time.

    A whole copy in fp32 would be twice the model beside it: 170 GiB for one of 30 B parameters. So each module of a
    copy computes on fp32 weights that exist while it runs. The model itself is left as it is.
    """
    reference = sharing(model)
    for module in reference.modules():
        # with all that is below it where that is small: some ask for the dtype of another module's weight
        small = sum(one.nbytes for one in (*module.parameters(), *module.buffers())) <= most_bytes
        part = list(module.modules()) if small else [module]
        before: Stores = []
        module.register_forward_pre_hook(partial(_upcast, part, before))
        module.register_forward_hook(partial(_put_back, before), always_call=True)
    convolutions = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before_precision = convolutions.fp32_precision
    convolutions.fp32_precision = "ieee"  # cuDNN's own default is TF32, hardly finer than bf16
    try:
        return family.run(reference, family.in_fp32(inputs))
    finally:
        convolutions.fp32_precision = before_precision


def _upcast(part: list[nn.Module], before: Stores, *_: Any) -> None:
    for module in part:
        for store in (module._parameters, module._buffers):
            values: dict[str, Any] = dict(store)
            found = {name: value for name, value in values.items() if value is not None and _is_short(value)}
            before.append((store, found))
            values.update({name: _in_fp32(value) for name, value in found.items()})
            store.update(values)


def _is_short(value: Tensor) -> bool:
    return value.is_floating_point() and value.dtype is not torch.float32


def _in_fp32(value: Tensor) -> Tensor:
    return nn.Parameter(value.float(), requires_grad=False) if isinstance(value, nn.Parameter) else value.float()


def _put_back(before: Stores, *_: Any) -> None:
    for store, values in before:
        store.update(values)
    before.clear()


def relative_error(output: Tensor, reference: Tensor) -> float:
    """RMS error relative to the reference's RMS."""
    true = reference.double()
    return float((output.double() - true).square().mean().sqrt() / true.square().mean().sqrt())


def difference(output: Tensor, native: Tensor) -> str:
    """How far two outputs that should be equal lie apart, in words."""
    if output.shape != native.shape or output.dtype != native.dtype:
        return f"{tuple(output.shape)} {output.dtype} instead of {tuple(native.shape)} {native.dtype}"
    apart = (output.double() - native.double()).abs()
    unequal = int((output != native).sum())
    return (
        f"{unequal} of {native.numel()} values differ, by at most {float(apart.max()):.3g} where native reaches "
        f"{float(native.double().abs().max()):.3g}"
    )


def judged(
    output: Tensor,
    native: Tensor,
    reference: Tensor,
    own_error: float,
    *,
    real: bool,
    perceptual: Perceptual | None = None,
) -> QualityRecord:
    """An arm's output against the fp32 reference and native's; PSNR, SSIM and LPIPS with a real checkpoint only."""
    psnr = ssim = lpips = None
    if real:
        from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure

        images, true = _images(output), _images(native)
        spread = (float(true.min()), float(true.max()))
        # identical images have no noise: their ratio is infinite, which no record holds
        psnr = None if torch.equal(images, true) else float(peak_signal_noise_ratio(images, true, data_range=spread))
        if min(true.shape[-2:]) >= _SSIM_WINDOW:
            ssim = float(structural_similarity_index_measure(images, true, data_range=spread))  # type: ignore[arg-type]
        if perceptual is not None and are_pictures(native):
            lpips = perceptual(images, true)
    return QualityRecord(
        rms_error=relative_error(output, reference),
        rms_error_native=own_error,
        bit_exact=torch.equal(output, native),
        psnr_db=psnr,
        ssim=ssim,
        lpips=lpips,
    )


def worst_of(records: Sequence[QualityRecord | None]) -> QualityRecord | None:
    """One record for all ranks: the one whose error is the largest of native's; exact where all are."""
    known = [record for record in records if record is not None]
    if not known:
        return None
    exact = all(record.bit_exact for record in known)
    return max(known, key=lambda record: record.ratio).model_copy(update={"bit_exact": exact})


def _images(output: Tensor) -> Tensor:
    """Outputs as a batch of images (N, C, H, W): frames of a video, or tokens as one image of one channel."""
    value = output.float()
    if value.ndim == 5:
        return value.transpose(1, 2).flatten(0, 1)
    return value if value.ndim == 4 else value.reshape(1, 1, -1, value.shape[-1])


def are_pictures(output: Tensor) -> bool:
    """Whether the output is what people look at: frames (N, 3, [T,] H, W) large enough for LPIPS."""
    return output.ndim in (4, 5) and output.shape[1] == 3 and min(output.shape[-2:]) >= _LPIPS_SIDE


def lpips_from(folder: str) -> Perceptual:
    """LPIPS (Zhang et al. 2018, AlexNet) by torchmetrics, with the backbone's weights from a local torch hub folder.

    Takes two batches (N, 3, H, W) in [-1, 1], what is beyond is cut off; nothing is fetched. Raises UserError where
    the weights or torchvision, which builds the backbone, are missing.
    """
    weights = Path(folder) / "checkpoints" / _ALEXNET
    if not weights.is_file():
        raise UserError(f"--lpips {folder}: there is no {weights}; put torchvision's AlexNet weights there.")
    if importlib.util.find_spec("torchvision") is None:
        raise UserError("--lpips: torchmetrics builds AlexNet with torchvision, which is not installed; install it.")
    from torchmetrics.functional.image import learned_perceptual_image_patch_similarity

    torch.hub.set_dir(folder)

    def distance(images: Tensor, true: Tensor) -> float:
        one, other = images.clamp(-1, 1), true.clamp(-1, 1)
        return float(learned_perceptual_image_patch_similarity(one, other, net_type="alex"))

    return distance


def library_version(library: str) -> str:
    """`name version` of the distribution the model code is from."""
    return f"{library} {importlib.metadata.version(library)}"


def checkpoint_sha256(folder: str) -> str:
    """Hash of a checkpoint's file names and sizes and of its JSON files (configuration, index of the weights)."""
    digest = hashlib.sha256()
    for file in sorted(Path(folder).rglob("*")):
        if file.is_file():
            digest.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\n".encode())
            if file.suffix == ".json":
                digest.update(file.read_bytes())
    return digest.hexdigest()


def attention_backend(model: nn.Module) -> str:
    """What the model's attention runs on, as its library says; `default` where nothing is set."""
    config: Any = getattr(model, "config", None)
    named = getattr(config, "_attn_implementation", None)
    for module in model.modules():
        backend = getattr(getattr(module, "processor", None), "_attention_backend", None)
        if backend is not None:
            named = str(getattr(backend, "value", backend))
    return str(named) if named else "default"
