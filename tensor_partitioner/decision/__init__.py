"""Decisions: the fastest way to train a model on a machine that fits, among standard strategies and searched plans."""

from tensor_partitioner.decision.answer import Answer as Answer
from tensor_partitioner.decision.deciding import decide as decide
from tensor_partitioner.decision.record import Decision as Decision
