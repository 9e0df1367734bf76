"""The fp32 reference is that of a whole fp32 copy, and what real weights are judged by says what it should."""

import copy
import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor

from harness.e2e.quality import are_pictures, checkpoint_sha256, difference, judged, lpips_from, reference_output
from harness.errors import UserError
from tests.e2e.twins import twin

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
KIB = 1 << 10


@pytest.mark.parametrize("most_bytes", [KIB, 1 << 30], ids=["module by module", "at once"])
@pytest.mark.parametrize("name", ["wan2.1-t2v-1.3b", "qwen3-omni-thinker", "qwen-image-vae"])
@torch.no_grad()
def test_the_reference_is_the_model_in_fp32_and_leaves_the_model_alone(name: str, most_bytes: int) -> None:
    of, model, inputs = twin(name)
    before = {key: (value.dtype, value.data_ptr()) for key, value in model.state_dict(keep_vars=True).items()}
    output = of.run(model, inputs)
    whole = of.run(copy.deepcopy(model).float(), of.in_fp32(inputs))
    assert torch.equal(reference_output(of, model, inputs, most_bytes), whole)
    assert {key: (value.dtype, value.data_ptr()) for key, value in model.state_dict(keep_vars=True).items()} == before
    assert torch.equal(of.run(model, inputs), output)


def pictures(seed: int = 0) -> Tensor:
    return torch.rand((2, 3, 64, 64), generator=torch.Generator().manual_seed(seed)) * 2 - 1


def test_psnr_and_ssim_are_of_the_output_against_native() -> None:
    native = pictures()
    noisy = native + 0.01 * torch.randn(native.shape, generator=torch.Generator().manual_seed(1))
    record = judged(noisy, native, native, 1.0, real=True)
    assert record.psnr_db == pytest.approx(46.0, abs=0.3)  # 10 log10(2² / 0.01²)
    assert record.ssim is not None
    assert 0.99 < record.ssim < 0.9999
    assert judged(pictures(5), native, native, 1.0, real=True).psnr_db < 12  # type: ignore[operator]
    same = judged(native, native, native, 1.0, real=True)
    assert (same.bit_exact, same.psnr_db, same.ssim) == (True, None, pytest.approx(1.0))


def test_a_difference_says_how_many_and_how_far() -> None:
    native = torch.tensor([4.0, -8.0, 0.0, 1.0], dtype=torch.bfloat16)
    assert difference(native + torch.tensor([0, 0.5, 0, -0.25], dtype=torch.bfloat16), native) == (
        "2 of 4 values differ, by at most 0.5 where native reaches 8"
    )
    assert difference(native[:2].float(), native) == "(2,) torch.float32 instead of (4,) torch.bfloat16"


def test_random_weights_get_none_of_them() -> None:
    record = judged(pictures(5), pictures(), pictures(), 1.0, real=False)
    assert (record.psnr_db, record.ssim, record.lpips) == (None, None, None)


def test_videos_and_tokens_are_images_too() -> None:
    video = torch.rand((1, 3, 2, 64, 64))
    assert judged(video, video, video, 1.0, real=True).ssim == pytest.approx(1.0)
    tokens = torch.rand((1, 32, 16))
    assert judged(tokens, tokens, tokens, 1.0, real=True).ssim == pytest.approx(1.0)
    few = torch.rand((1, 4, 16))
    assert judged(few, few, few, 1.0, real=True).ssim is None, "no window of 11 fits"


def test_the_perceptual_distance_is_asked_about_pictures_alone() -> None:
    asked: list[tuple[int, ...]] = []

    def distance(images: Tensor, true: Tensor) -> float:
        asked.append(tuple(images.shape))
        return 0.25

    assert judged(pictures(1), pictures(), pictures(), 1.0, real=True, perceptual=distance).lpips == 0.25
    latent = torch.rand((1, 16, 2, 64, 64))
    assert judged(latent, latent, latent, 1.0, real=True, perceptual=distance).lpips is None
    assert asked == [(2, 3, 64, 64)]
    assert not are_pictures(torch.rand((1, 3, 32, 64)))


def test_weights_that_are_not_there_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no .*/checkpoints/alexnet-owt-7be5be79\.pth"):
        lpips_from(str(tmp_path))


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchmetrics' LPIPS needs torchvision")
def test_lpips_takes_its_backbone_from_a_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    weights = torchvision.models.alexnet().state_dict()
    torch.save(weights, tmp_path / "checkpoints" / "alexnet-owt-7be5be79.pth")
    before = torch.hub.get_dir()
    try:
        distance = lpips_from(str(tmp_path))
        assert distance(pictures(), pictures()) == 0.0
        assert distance(3 * pictures(1), pictures()) > 1e-4
    finally:
        torch.hub.set_dir(before)


def test_a_checkpoint_is_known_by_its_files_and_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "weights.safetensors").write_bytes(b"1234")
    first = checkpoint_sha256(str(tmp_path))
    (tmp_path / "config.json").write_text('{"a":1}')
    assert checkpoint_sha256(str(tmp_path)) != first
