"""Stands for the sources of an op."""
