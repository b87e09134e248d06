"""Coarsening: the graph as variables and factors (Tofu Sec 5.1)."""
