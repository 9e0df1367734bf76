"""What stands for an op that is left out with what is written behind it: the next operation's input, written by nobody.

Leaving the norm out and padding all the same is no ceiling: in HunyuanVideo's decode the compiler's padding alone takes
longer than our whole kernel up to the padded input.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.library.custom_op("harness_blocks::unwritten", mutates_args=())
def _unwritten(sources: Sequence[Tensor], shape: Sequence[int], channels_last: bool) -> Tensor:
    layout = torch.channels_last_3d if channels_last else torch.contiguous_format
    return torch.empty(tuple(shape), dtype=sources[0].dtype, device=sources[0].device, memory_format=layout)


_unwritten.register_fake(_unwritten._init_fn)


def unwritten(*sources: Tensor, shape: Sequence[int], channels_last: bool = False) -> Tensor:
    """Memory of `shape` in the sources' dtype, with whatever stands there; channels-last for 5 dims alone.

    A custom op, so that the compiler takes it for a function of the sources: what computes them would go with it.
    """
    memory: Tensor = _unwritten(list(sources), list(shape), channels_last)
    return memory
