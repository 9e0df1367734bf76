"""How a wiring takes hold of vllm-omni's layers."""
