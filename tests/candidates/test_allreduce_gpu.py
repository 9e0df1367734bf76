"""All-reduce + RMSNorm on two GPUs of one host: `pytest -m gpu tests/candidates/test_allreduce_gpu.py`."""

from typing import Any

import pytest
import torch

from tests.candidates import ranked

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.device_count() < 2, reason=f"needs two NVIDIA GPUs: torch sees {torch.cuda.device_count()} here"
    ),
]


@pytest.fixture(scope="module")
def gpus() -> list[dict[str, Any]]:
    """A first run compiles flashinfer's module, for minutes: `python -m candidates._providers.flashinfer_ipc`."""
    return ranked.run("tests.candidates.allreduce_gpu", 2, limit_s=900)


def test_every_candidate_agrees_with_the_fp64_sum_and_repeats(gpus: list[dict[str, Any]]) -> None:
    """Two roundings of the sum and two of the norm: within two ULPs."""
    for seen in gpus:
        print(seen["missing"])
        assert {"inhouse.triton_one_shot", "inhouse.triton_two_shot"} <= seen["agree"].keys()
        for name, one in seen["agree"].items():
            assert one["shapes"] > 0, name
            assert one["worst"] <= 2, (name, one)
            assert one["repeats"], name


def test_replays_of_a_graph_agree_whoever_is_late(gpus: list[dict[str, Any]]) -> None:
    for seen in gpus:
        for name, one in seen["replayed"].items():
            assert one["worst"] <= 2, (name, one)


def test_our_kernels_keep_what_they_promise(gpus: list[dict[str, Any]]) -> None:
    for seen in gpus:
        assert seen["ours"] == {"same": True, "as_nccl": True}
        assert seen["agree"]["inhouse.triton_one_shot"]["equal"]
        assert seen["agree"]["inhouse.triton_two_shot"]["equal"]
        assert seen["empty"] == [[0, 2048], [0, 2048]]
