"""What leaving an op out still moves, and how calls of a model are counted."""

import torch
import torch.nn.functional as F

from harness.e2e.calls import bytes_of
from harness.e2e.wirings import wirings_of


def test_what_only_looks_at_its_inputs_moves_nothing() -> None:
    x = torch.ones(2, 8)
    assert bytes_of(lambda x: x, {"x": x}) == 0
    assert bytes_of(lambda x: x.view(16).unflatten(0, (4, 4)).transpose(0, 1), {"x": x}) == 0


def test_what_has_to_be_written_counts_with_what_is_read_for_it() -> None:
    x = torch.ones(2, 8, dtype=torch.bfloat16)
    assert bytes_of(lambda x: F.pad(x, (1, 1)), {"x": x}) == 2 * (2 * 8 + 2 * 10)
    assert bytes_of(lambda x: torch.cat((x, x)), {"x": x}) == 2 * (2 * 16 + 32)


def test_the_padded_contexts_are_told_from_those_that_return_their_input() -> None:
    """A padded convolution input is written whatever the candidate; alone the norm's input is handed on."""
    x, gamma = torch.ones(1, 4, 2, 6, 6, dtype=torch.bfloat16), torch.ones(4, 1, 1, 1)
    given = {"x": x, "gamma": gamma, "bias": None, "eps": 1e-12, "upcast": True}
    moved = {one.context: bytes_of(one.nothing, given) for one in wirings_of("rmsnorm_vae")}
    padded = 2 * (4 * 2 * 36 + 4 * 4 * 64)
    assert moved == {None: 0, "silu_cache_pad": padded, "silu_pad": padded}
