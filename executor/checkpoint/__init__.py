"""Checkpoints: what training is made of after a step, in files that any number of workers can go on from.

A checkpoint is a folder `step-N` with one file per rank, in which tiles of tensors lie one after the other, and a
manifest, which says under which plan they were written. What lies where in the files follows from that plan's layouts
(`places`); of workers that hold equal tiles one writes, in turn. It is written beside its place and renamed at the end:
a folder of that name is complete.
"""

from executor.checkpoint.manifest import CheckpointError
from executor.checkpoint.reading import Checkpoint, checkpoints, last_checkpoint
from executor.checkpoint.writing import Saver

__all__ = ("Checkpoint", "CheckpointError", "Saver", "checkpoints", "last_checkpoint")
