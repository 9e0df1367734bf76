"""Forwards of diffusers' transformer blocks, in our words, whose AdaLN arithmetic a wiring replaces piece by piece.

The blocks write that arithmetic out in their forward, where no submodule could be put in its place; so the forward is
bound anew on the instance, calls the same submodules, and leaves the arithmetic to `Pieces`.
"""
