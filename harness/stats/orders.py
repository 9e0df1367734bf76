"""The order in which the arms of a comparison run."""

import numpy as np


def block_orders(arms: int, blocks: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """Per block, a random order of the arms on the way out; the way back is its reverse.

    Out and back together cancel any drift that is linear in time, for every pair of arms. With two arms these are the
    ABBA and BAAB blocks, by a fair coin. The same seed gives the same orders. Raises ValueError for fewer than two
    arms or one block.
    """
    if arms < 2 or blocks < 1:
        raise ValueError(f"a comparison needs at least 2 arms and 1 block, got {arms} arms and {blocks} blocks")
    rng = np.random.default_rng(seed)
    return tuple(tuple(int(arm) for arm in rng.permutation(arms)) for _ in range(blocks))
