"""Writing checkpoints: every rank its file, then the manifest, then the name."""

from __future__ import annotations

import os
import shutil
from hashlib import sha256
from pathlib import Path

import msgspec
import numpy as np

from executor.backend import asnumpy
from executor.checkpoint.manifest import (
    MANIFEST,
    FileRecord,
    Manifest,
    file_name,
    graph_digest,
    places,
    plan_digest,
    saved_tensors,
    write_manifest,
)
from executor.checkpoint.reading import checkpoints, name_of
from executor.cluster import raw_bytes
from executor.process.launch import SharedError, agree, on_first_rank
from executor.training import Trainer
from planner.files import named_errors

KEPT = 2
"""How many checkpoints are kept: the one before stays valid while the next is written."""


class Saver:
    """Writes checkpoints of one training into a folder; `data` is the data set's identity, `schedule` its text.

    Every rank must see the folder.
    """

    def __init__(self, folder: Path, trainer: Trainer, data: str, schedule: str) -> None:
        plan, rank = trainer.programs.plan, trainer.cluster.rank
        tensors = saved_tensors(plan.graph)
        self._folder = folder
        self._trainer = trainer
        self._mine = [
            place.tensor.name for place in places(tensors, trainer.programs.training.regions) if place.rank == rank
        ]
        self._manifest = Manifest(
            step=0,
            graph=graph_digest(plan.graph),
            plan=plan_digest(plan),
            seed=plan.seed,
            data=data,
            schedule=schedule,
            ways=list(plan.ways),
            shares=list(plan.ways.shares) or msgspec.UNSET,
            layouts={tensor.name: [*map(str, plan.layouts[tensor.name])] for tensor in tensors},
            files=[],
        )

    def save(self, step: int) -> None:
        """Write the checkpoint of what `step` steps made, and remove all but the last two (collective).

        Where a rank cannot write, nothing of it stays, and all ranks raise SharedError.
        """
        cluster = self._trainer.cluster
        hidden = self._folder / f".{name_of(step)}.part"
        try:
            on_first_rank(cluster, lambda: _make_empty(hidden))
            files = cluster.gather(agree(cluster, lambda: self._write_tiles(hidden)))
            on_first_rank(cluster, lambda: self._publish(hidden, step, files))
        except SharedError:
            on_first_rank(cluster, lambda: shutil.rmtree(hidden, ignore_errors=True))
            raise

    def _write_tiles(self, folder: Path) -> FileRecord:
        """Write this rank's file, unless it would be empty."""
        path, checksum, nbytes = folder / file_name(self._trainer.cluster.rank), sha256(), 0
        if not self._mine:
            return FileRecord(0, checksum.hexdigest())
        with named_errors(path), path.open("wb") as file:
            for name in self._mine:
                tile = raw_bytes(np.ascontiguousarray(asnumpy(self._trainer.view(name))))
                checksum.update(tile.data)
                nbytes += file.write(tile.data)
            file.flush()
            os.fsync(file.fileno())
        return FileRecord(nbytes, checksum.hexdigest())

    def _publish(self, hidden: Path, step: int, files: list[FileRecord]) -> None:
        """Write the manifest, then give the folder its name: from here on the checkpoint is there."""
        write_manifest(hidden / MANIFEST, msgspec.structs.replace(self._manifest, step=step, files=files))
        _settle(hidden / MANIFEST)
        _settle(hidden)
        hidden.rename(self._folder / name_of(step))
        _settle(self._folder)
        for old in checkpoints(self._folder)[:-KEPT]:
            shutil.rmtree(old)


def _make_empty(hidden: Path) -> None:
    """Make a folder; what killed runs left unfinished goes."""
    for left in hidden.parent.glob(".step-*.part"):
        shutil.rmtree(left)
    hidden.mkdir(parents=True)


def _settle(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
