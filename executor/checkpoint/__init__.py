"""Checkpoints: what training is made of after a step, in files that any number of workers can go on from.

A checkpoint is a folder `step-N`, renamed so when it is complete, with one file of tiles per rank, and a manifest, from
whose layouts follows what lies where in the files (`places`); of workers that hold equal tiles one writes, in turn.
"""

from executor.checkpoint.manifest import CheckpointError
from executor.checkpoint.reading import Checkpoint, checkpoints, last_checkpoint
from executor.checkpoint.writing import Saver

__all__ = ("Checkpoint", "CheckpointError", "Saver", "checkpoints", "last_checkpoint")
