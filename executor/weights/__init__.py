"""Weights in files: the state dict of a module read into a plan's tensors, and written from them.

The entries of a graph are in the plan (`planner.graph.entries`); every rank reads and writes the part that it holds.
"""

from executor.weights.files import WeightsError
from executor.weights.loading import Weights

__all__ = ("Weights", "WeightsError")
