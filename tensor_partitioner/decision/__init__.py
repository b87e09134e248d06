"""The decision: of all ways to train a model on a machine that people use, and our own, the fastest that fits."""

from tensor_partitioner.decision.deciding import decide
from tensor_partitioner.decision.record import Decision
from tensor_partitioner.decision.tables import candidates_table

__all__ = ["Decision", "candidates_table", "decide"]
