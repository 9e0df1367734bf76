"""Qwen3-Omni's thinker: its MoE text model (transformers)."""

from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTextConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeThinkerTextModel

from harness.e2e.models._text import Text


class Qwen3OmniThinker(Text):
    """See `Text`."""

    model_class = Qwen3OmniMoeThinkerTextModel
    config_class = Qwen3OmniMoeTextConfig


FAMILY = Qwen3OmniThinker()
