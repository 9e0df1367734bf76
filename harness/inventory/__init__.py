"""`harness inventory`: one page of every fused op there is, from the declarations alone."""
