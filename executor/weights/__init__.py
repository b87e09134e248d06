"""Weights in files: the state dict of a module read into a plan's tensors, and written from them.

What entries a graph has, and in which of its tensors their elements are, the plan says (`planner/graph/entries.py`).
Every rank reads the part that it holds; `saving` writes, every rank its part of one file.
"""

from executor.weights.files import WeightsError
from executor.weights.loading import Weights

__all__ = ("Weights", "WeightsError")
