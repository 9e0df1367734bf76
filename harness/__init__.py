"""Decides, with evidence anyone can recompute, whether a fused kernel is worth wiring into a model."""

__version__ = "0.1.0"
