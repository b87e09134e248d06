"""Reading checkpoints: which there are, and what a rank needs of their files, under whatever plan it runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import file_digest
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET

from executor.checkpoint.manifest import (
    MANIFEST,
    CheckpointError,
    FileRecord,
    Manifest,
    Place,
    file_name,
    graph_digest,
    places,
    read_manifest,
    saved_tensors,
)
from executor.cluster import HostArray
from executor.process.launch import agree
from executor.training import Trainer
from planner.graph.ir import Tensor
from planner.layout import Region, Ways, local_shape, owned_by_all, parse_placement
from planner.layout.region import boxes, intersect
from planner.plans.plan import Plan

_NAME = re.compile(r"step-(\d{8,})")


def name_of(step: int) -> str:
    """Return the name of the checkpoint after so many steps."""
    return f"step-{step:08}"


def checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints of a folder, by their steps."""
    named = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()] if folder.is_dir() else []
    return [path for _, path in sorted((int(match[1]), path) for match, path in named if match is not None)]


def last_checkpoint(path: Path) -> Path:
    """Return the last checkpoint of a run's folder, or the very one that a path names; CheckpointError for none."""
    folders = [path] if (path / MANIFEST).exists() else checkpoints(path)
    if not folders:
        raise CheckpointError(f"{path}: expected checkpoints, found none")
    return folders[-1]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is there to read; `tensors` are those that it holds."""

    folder: Path
    manifest: Manifest
    tensors: tuple[Tensor, ...]

    @classmethod
    def of(cls, path: Path, plan: Plan) -> Checkpoint:
        """Read the last checkpoint of a run's folder, or the very one that a path names.

        Raises CheckpointError where there is none, or none of the plan's graph and seed; OSError.
        """
        folder = last_checkpoint(path)
        manifest = read_manifest(folder / MANIFEST)
        if manifest.graph != graph_digest(plan.graph):
            raise CheckpointError(f"{folder}: expected a checkpoint of the plan's graph, found one of another")
        if manifest.seed != plan.seed:
            raise CheckpointError(f"{folder}: expected the plan's seed, {plan.seed}, found {manifest.seed}")
        return cls(folder, manifest, saved_tensors(plan.graph))

    def restore(self, trainer: Trainer) -> None:
        """Give every tensor saved the value that it has here (collective); SharedError where a file is damaged.

        Each rank checks some files whole, and reads of all what it needs.
        """
        cluster = trainer.cluster
        agree(cluster, lambda: self._verify(cluster.rank, cluster.size))
        agree(cluster, lambda: self._read_all(trainer))

    def _verify(self, rank: int, size: int) -> None:
        for number in range(rank, len(self.manifest.files), size):
            expected, path = self.manifest.files[number], self.folder / file_name(number)
            if not expected.nbytes:
                continue
            with path.open("rb") as file:
                actual = FileRecord(path.stat().st_size, file_digest(file, "sha256").hexdigest())
            if actual != expected:
                raise CheckpointError(
                    f"{path}: damaged: expected {expected.nbytes} bytes of SHA-256 {expected.sha256[:12]}, found "
                    f"{actual.nbytes} of {actual.sha256[:12]}; with its folder removed, the checkpoint before counts"
                )

    def tile(self, tensor: Tensor, region: Region) -> HostArray:
        """Return a region of a tensor, put together from the tiles that overlap it; ValueError if it is not saved."""
        if tensor.name not in self._places:
            raise ValueError(f"{self.folder}: expected a tensor that was saved, found {tensor.name}")
        tile = np.empty(local_shape(region), tensor.dtype)
        for place in self._places[tensor.name]:
            saved = self._files[place.rank][place.start : place.stop].view(tensor.dtype)
            saved = saved.reshape(local_shape(place.region))
            for box in boxes(place.region, region, intersect(place.region, region)):
                source: Any = tuple(slice(here, here + size) for here, _, size in box)
                target: Any = tuple(slice(there, there + size) for _, there, size in box)
                tile[(*target, ...)] = saved[(*source, ...)]  # an ellipsis makes arrays of scalars
        return tile

    def _read_all(self, trainer: Trainer) -> None:
        for tensor in self.tensors:
            region = trainer.programs.training.regions[tensor.name][trainer.cluster.rank]
            trainer.view(tensor.name)[...] = trainer.xp.asarray(self.tile(tensor, region))

    @cached_property
    def _places(self) -> Mapping[str, list[Place]]:
        """Where the tiles of every tensor lie, by the plan that wrote them."""
        shares = () if self.manifest.shares is UNSET else self.manifest.shares
        ways, layouts = Ways(tuple(self.manifest.ways), tuple(shares)), self.manifest.layouts
        regions = {
            tensor.name: owned_by_all(tensor.shape, tuple(map(parse_placement, layouts[tensor.name])), ways)
            for tensor in self.tensors
        }
        places_by_name: dict[str, list[Place]] = {}
        for place in places(self.tensors, regions):
            places_by_name.setdefault(place.tensor.name, []).append(place)
        return places_by_name

    @cached_property
    def _files(self) -> Mapping[int, HostArray]:
        """The ranks' files, mapped into memory."""
        paths = {
            rank: self.folder / file_name(rank) for rank, record in enumerate(self.manifest.files) if record.nbytes
        }
        return {rank: np.memmap(path, np.uint8, "r") for rank, path in paths.items()}
