"""Qwen3-Omni's talker: its MoE speech-token model (transformers)."""

from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTalkerTextConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeTalkerModel

from harness.e2e.models._text import Text


class Qwen3OmniTalker(Text):
    """See `Text`."""

    model_class = Qwen3OmniMoeTalkerModel
    config_class = Qwen3OmniMoeTalkerTextConfig


FAMILY = Qwen3OmniTalker()
