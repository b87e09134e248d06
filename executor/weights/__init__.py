"""Weights in files: a module's state dict, read into a plan's tensors and written from them.

The entries of a graph are in the plan (`planner.graph.ir`). Each rank reads and writes its own part.
"""

from executor.weights.loading import Weights as Weights, WeightsError as WeightsError
