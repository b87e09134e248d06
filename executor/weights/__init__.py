"""Weights in files: a module's state dict, read into a plan's tensors and written from them.

The entries of a graph are in the plan (`planner.graph.entries`). Each rank reads and writes its own part.
"""

from executor.weights.files import WeightsError
from executor.weights.loading import Weights

__all__ = ("Weights", "WeightsError")
