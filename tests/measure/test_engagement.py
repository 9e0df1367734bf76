"""The kernels that ran against those declared."""

import pytest
import torch

from harness.measure.engagement import Profile, disengaged, missing_kernels, profiled


def profile(*kernels: str, streams: int = 1) -> Profile:
    return Profile(kernels, float(len(kernels)), 10.0, streams)


OURS = profile("_groupnorm_stats_kernel", "_groupnorm_apply_kernel")
ATEN = profile("void at::native::RowwiseMomentsCUDAKernel<float>(long)", "vectorized_elementwise_kernel")
INDUCTOR = profile("triton_red_fused_native_group_norm_silu_0")


def test_every_pattern_must_match_some_kernel() -> None:
    assert missing_kernels((r"groupnorm_(stats|apply)", "_apply_"), OURS.kernels) == ()
    assert missing_kernels(("groupnorm_stats", "welford"), OURS.kernels) == ("welford",)
    assert missing_kernels((), ()) == ()


def test_our_kernels_seen_is_engaged() -> None:
    assert disengaged(("groupnorm_stats", "groupnorm_apply"), OURS, INDUCTOR) == ""


def test_a_silent_fall_back_names_what_ran_instead() -> None:
    reason = disengaged(("groupnorm_stats",), ATEN, INDUCTOR)
    assert reason.startswith("declared kernel 'groupnorm_stats' not seen; kernels that ran: void at::native::Rowwise")
    assert disengaged(("x",), profile(), None).endswith("kernels that ran: none")


def test_swapped_arms_show_in_the_names() -> None:
    """Each arm launches the other's kernels: both have fallen back."""
    assert disengaged(("groupnorm_stats",), profile("rmsnorm_tile"), INDUCTOR)
    assert disengaged(("rmsnorm_tile",), OURS, INDUCTOR)


def test_candidate_that_resolves_to_the_baseline() -> None:
    reason = disengaged(("triton_red_fused",), INDUCTOR, INDUCTOR)
    assert reason == "the declared kernels also run in the baseline: two arms resolve to the same code"
    assert disengaged(("triton_red_fused",), INDUCTOR, None) == "", "rewrites may share Inductor's names"


def test_launches_on_a_side_stream() -> None:
    reason = disengaged(("groupnorm",), profile("groupnorm", streams=2), None)
    assert reason == "launches on 2 streams; the clock follows one"


def test_profile_of_cpu_calls_names_the_dispatched_ops() -> None:
    x = torch.ones(4)
    seen = profiled([lambda: torch.sin(x), lambda: torch.cos(x)], "cpu", lambda: None)
    assert {"aten::sin", "aten::cos"} <= set(seen.kernels)
    assert seen.device_us is None
    assert seen.streams == 0
    assert seen.launches_per_call == pytest.approx(1.0)


def test_a_clone_in_the_timed_call_is_in_the_profile() -> None:
    """An in-place op behind an adapter that clones: the copy is timed, and reported."""
    x = torch.ones(4)
    seen = profiled([lambda: x.clone().mul_(2)], "cpu", lambda: None)
    assert {"aten::clone", "aten::copy_", "aten::mul_"} <= set(seen.kernels)
