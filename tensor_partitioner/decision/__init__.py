"""The decision: of all ways to train a model on a machine that people use, and our own, the fastest that fits."""

from tensor_partitioner.decision.answer import Answer
from tensor_partitioner.decision.deciding import decide
from tensor_partitioner.decision.record import Decision

__all__ = ["Answer", "Decision", "decide"]
