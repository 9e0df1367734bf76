"""Attention of models, in our words, where a wiring says how projected q and k become what attention takes.

The models write QK-norm and RoPE out in an attention processor or in the attention's forward, where no submodule could
be put in their place. So a processor of ours (for Qwen3-Omni, which has none, a forward) stands on the instance, calls
the same submodules, and leaves norms and rotation to a `Turn`.
"""
