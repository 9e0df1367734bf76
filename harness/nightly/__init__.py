"""`harness nightly`: what a GPU host measures by itself within a budget, in which order, and what became of it."""
