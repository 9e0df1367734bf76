"""All-reduce + RMSNorm wired into the thinker's twin, split over two processes: exact, complete, restoring."""

from typing import Any

import pytest

from candidates.allreduce_rmsnorm.wiring import WIRINGS
from harness.e2e.calls import upstream_sources
from tests.candidates import ranked
from tests.e2e.twins import twin


@pytest.fixture(scope="module")
def twins() -> list[dict[str, Any]]:
    return ranked.run("tests.e2e.allreduce_twin", 2)


@pytest.mark.slow
def test_the_split_twin_is_the_whole_one_up_to_rounding(twins: list[dict[str, Any]]) -> None:
    """fp32: relative L2 of the outputs; bf16: the end-to-end stage's rule for them."""
    for seen in twins:
        assert 0 < seen["torch.float32"]["split_error"] < 2e-6
        assert 0.8 < seen["torch.bfloat16"]["quality"] < 1.2
        for one in seen.values():
            assert one["keys"]
            assert one["sharded_elements"] < 0.6


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16"])
def test_native_through_the_wiring_is_the_split_twin(twins: list[dict[str, Any]], dtype: str) -> None:
    for seen in twins:
        assert seen[dtype]["wired_equal"]
        assert seen[dtype]["in_place_equal"]
        assert seen[dtype]["restored"]
        assert seen[dtype]["nothing_differs"]
        assert seen[dtype]["calls"] == seen[dtype]["sites"] == 4
        assert seen[dtype]["described"] == [
            {"T": 16, "D": 64},
            {"eps": 1e-6, "rounding": "before_weight", "residual": True},
        ]


@pytest.mark.slow
def test_it_compiles_into_one_graph_with_as_many_all_reduces(twins: list[dict[str, Any]]) -> None:
    for seen in twins:
        assert seen["torch.float32"]["compiled_equal"]
        assert seen["torch.float32"]["all_reduces"] == [4, 4]


def test_a_whole_model_is_refused() -> None:
    (wiring,) = WIRINGS
    _, model, _ = twin("qwen3-omni-thinker")
    with pytest.raises(ValueError, match=r"call wiring_shards\.shard on it first"), wiring.apply(model, wiring.native):
        pass


def test_what_it_binds_to_is_as_it_was() -> None:
    (wiring,) = WIRINGS
    assert upstream_sources(wiring) == dict(wiring.pinned)
