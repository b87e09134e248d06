"""What a checkpoint says of itself, and where in its files every tile lies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from planner.errors import InputError
from planner.files import write_json
from planner.graph.graph_json import to_data
from planner.graph.ir import ITEM_BYTES, Graph, Tensor
from planner.layout import Region, elements
from planner.layout.region import holders
from planner.plans.plan import Plan

FORMAT = "checkpoint/1"
MANIFEST = "manifest.json"


class CheckpointError(InputError):
    """A checkpoint is damaged, of another run, or none: says what was found, what was expected, and where."""


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank's file: its size and the SHA-256 of what it holds; one that would be empty is not there."""

    nbytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a checkpoint holds after `step` steps.

    `data` is the data set's identity; `graph` and `plan` are digests; `ways`, `shares` where they differ, and
    `layouts`, the placements of every tensor saved, say what each rank held.
    """

    format: str = FORMAT
    step: int
    graph: str
    plan: str
    seed: int
    data: str
    schedule: str
    ways: list[int]
    shares: list[int] | msgspec.UnsetType = msgspec.UNSET
    layouts: dict[str, list[str]]
    files: list[FileRecord]


class _Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file: a manifest, and the SHA-256 of its JSON."""

    sha256: str
    manifest: Manifest


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write a manifest, with the digest that `read_manifest` expects."""
    write_json(path, _Signed(digest(msgspec.to_builtins(manifest)), manifest))


def read_manifest(path: Path) -> Manifest:
    """Read a manifest; raises CheckpointError, which names the file, and OSError."""
    try:
        signed = msgspec.json.decode(path.read_bytes(), type=_Signed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if signed.sha256 != digest(msgspec.to_builtins(signed.manifest)):
        raise CheckpointError(f"{path}: damaged: expected SHA-256 {signed.sha256[:12]}, found that of other content")
    if signed.manifest.format != FORMAT:
        raise CheckpointError(f"{path}: expected format {FORMAT!r}, found {signed.manifest.format!r}")
    return signed.manifest


def digest(data: Any) -> str:
    """Return the SHA-256 of plain data."""
    return sha256(json.dumps(data).encode()).hexdigest()


def graph_digest(graph: Graph) -> str:
    """Return what only equal graphs have in common."""
    return digest(to_data(graph))


def plan_digest(plan: Plan) -> str:
    """Return what only plans of equal graphs that decide everything alike have in common."""
    layouts = {name: list(map(str, layout)) for name, layout in plan.layouts.items()}
    strategies = {name: list(strategy) for name, strategy in plan.strategies.items()}
    shares = [list(shares)] if (shares := plan.ways.shares) else []
    return digest([graph_digest(plan.graph), list(plan.ways), *shares, layouts, strategies])


def file_name(rank: int) -> str:
    """Return the name of a rank's file."""
    return f"rank-{rank:04}.bin"


def saved_tensors(graph: Graph) -> tuple[Tensor, ...]:
    """Return what a checkpoint holds: what training changes, or began with. All else follows from the seed."""
    begun = (entry.tensor for entry in graph.entries.values() if entry.tensor is not None)
    return tuple(graph.tensors[name] for name in dict.fromkeys((*graph.updates, *begun)))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tile lies: in a rank's file, from one byte to another."""

    tensor: Tensor
    region: Region
    rank: int
    start: int

    @property
    def stop(self) -> int:
        """The end of the tile."""
        return self.start + elements(self.region) * ITEM_BYTES[self.tensor.dtype]


def places(tensors: Sequence[Tensor], regions: Mapping[str, Sequence[Region]]) -> list[Place]:
    """Return where all tiles lie, given what each worker holds; workers that hold equal ones write them in turn."""
    tiles: list[Place] = []
    ends: dict[int, int] = {}
    for number, tensor in enumerate(tensors):
        for region, workers in holders(regions[tensor.name]).items():
            rank = workers[number % len(workers)]
            tiles.append(Place(tensor, region, rank, ends.get(rank, 0)))
            ends[rank] = tiles[-1].stop
    return tiles
