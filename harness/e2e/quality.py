"""How far a wired model's output moves, and what it was loaded from.

On random weights PSNR and SSIM pass anything (no RoPE at all still gives 64 dB): what separates a legal change of
rounding from a wrong kernel is the error against an fp32 copy of the same weights over native's own error.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harness.e2e.build import in_fp32
from harness.e2e.models import Family, Inputs
from harness.schema.process import QualityRecord

LIMIT = 1.5
"""Most that an arm's error may be of native's: legal rounding lies at 1.00 to 1.07, wrong kernels at 1.95 and above."""


@torch.no_grad()
def reference_output(family: Family, model: nn.Module, inputs: Inputs) -> Tensor:
    """The model's output in fp32, on a copy of the same weights that is gone afterwards."""
    return family.run(in_fp32(model), family.in_fp32(inputs))


def relative_error(output: Tensor, reference: Tensor) -> float:
    """RMS error relative to the reference's RMS."""
    true = reference.double()
    return float((output.double() - true).square().mean().sqrt() / true.square().mean().sqrt())


def judged(output: Tensor, native: Tensor, reference: Tensor, own_error: float, *, real: bool) -> QualityRecord:
    """An arm's output against the fp32 reference and native's; PSNR and SSIM with a real checkpoint only."""
    psnr = ssim = None
    if real:
        from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure

        images, true = _images(output), _images(native)
        spread = (float(true.min()), float(true.max()))
        psnr = float(peak_signal_noise_ratio(images, true, data_range=spread))
        ssim = float(structural_similarity_index_measure(images, true, data_range=spread))  # type: ignore[arg-type]
    return QualityRecord(
        rms_error=relative_error(output, reference),
        rms_error_native=own_error,
        bit_exact=torch.equal(output, native),
        psnr_db=psnr,
        ssim=ssim,
    )


def _images(output: Tensor) -> Tensor:
    """Outputs as a batch of images (N, C, H, W): frames of a video, or tokens as one image of one channel."""
    value = output.float()
    if value.ndim == 5:
        return value.transpose(1, 2).flatten(0, 1)
    return value if value.ndim == 4 else value.reshape(1, 1, -1, value.shape[-1])


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
