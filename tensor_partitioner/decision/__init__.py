"""The decision: of all ways to train a model on a machine that people use, and our own, the fastest that fits."""

from tensor_partitioner.decision.decide import decide
from tensor_partitioner.decision.record import Decision

__all__ = ["Decision", "decide"]
