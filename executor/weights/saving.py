"""Writing trained weights: one file, of which every rank writes a part."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np

from executor.backend import asnumpy
from executor.cluster import HostArray, raw_bytes
from executor.process.launch import SharedError, agree, on_first_rank
from executor.training import Trainer
from executor.weights.files import CODES
from executor.weights.loading import Weights
from planner.files import named_errors, take_place
from planner.graph.entries import entries_of
from planner.graph.ir import Entry
from planner.layout.grouping import coarser
from planner.layout.region import holders

ALIGNMENT = 8
"""The header of a safetensors file is filled up to a multiple of so many bytes."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an entry lies in the file, in bytes, and what it holds where no tensor does."""

    name: str
    entry: Entry
    start: int
    content: HostArray | None


def save_weights(path: Path, trainer: Trainer, steps: int) -> list[str]:
    """Write the state dict that the module has after so many steps, as safetensors (collective).

    Every rank must see the folder. Returns the names of entries that are left out, whose content is not known. Raises
    SharedError where a rank cannot write.
    """
    path, cluster = path.resolve(), trainer.cluster
    beside = path.with_name(f".{path.name}.part")
    header, places, left_out = _laid_out(trainer, steps)

    try:
        on_first_rank(cluster, lambda: _begin(beside, header, places))
        agree(cluster, lambda: _write_own(beside, len(header), places, trainer))
        on_first_rank(cluster, lambda: take_place(beside, path))
    except SharedError:
        on_first_rank(cluster, lambda: beside.unlink(missing_ok=True))
        raise
    return left_out


def state_dict(trainer: Trainer, steps: int) -> dict[str, HostArray]:
    """Return, on rank 0, the state dict that the module has after so many steps (collective); nothing elsewhere."""
    contents: dict[str, HostArray] = {}
    for name, entry in entries_of(trainer.graph).items():
        whole = _content(trainer.weights, name, entry, steps) if entry.tensor is None else trainer.whole(entry.tensor)
        if whole is not None and trainer.cluster.rank == 0:
            contents[name] = whole.astype(entry.dtype).reshape(entry.shape)
    return contents


def _content(weights: Weights | None, name: str, entry: Entry, steps: int) -> HostArray | None:
    """Return what an entry holds that no tensor does; None where that is not known."""
    content = None if weights is None else weights.content(name)
    if not entry.counts:
        return content
    return np.asarray(steps if content is None else content + steps, entry.dtype)


def _laid_out(trainer: Trainer, steps: int) -> tuple[bytes, list[_Place], list[str]]:
    """Return the file's header, where every entry lies behind it, and which are left out."""
    entries, end = entries_of(trainer.graph), 0
    contents = {
        name: _content(trainer.weights, name, entry, steps) for name, entry in entries.items() if entry.tensor is None
    }
    left_out = [name for name, content in contents.items() if content is None]
    places, described = [], dict[str, object]()
    # The largest items first: then each begins at a multiple of its size.
    for name in sorted(entries.keys() - set(left_out), key=lambda key: (-np.dtype(entries[key].dtype).itemsize, key)):
        entry = entries[name]
        places.append(_Place(name, entry, end, contents.get(name)))
        end += np.dtype(entry.dtype).itemsize * prod(entry.shape)
        described[name] = {"dtype": CODES[entry.dtype], "shape": entry.shape, "data_offsets": [places[-1].start, end]}
    text = json.dumps(described).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, places, left_out


def _begin(path: Path, header: bytes, places: list[_Place]) -> None:
    """Write the header, and what no tensor holds."""
    with named_errors(path), path.open("wb") as file:
        file.write(header)
        for place in places:
            if place.content is not None:
                file.seek(len(header) + place.start)
                file.write(raw_bytes(np.ascontiguousarray(place.content)).data)


def _write_own(path: Path, start: int, places: list[_Place], trainer: Trainer) -> None:
    """Write the tiles that are this rank's to write; of workers that hold equal ones one writes, in turn."""
    regions = trainer.programs.training.regions
    with named_errors(path), path.open("r+b") as file:
        for number, place in enumerate(places):
            if place.entry.tensor is None:
                continue
            for workers in holders(regions[place.entry.tensor]).values():
                if workers[number % len(workers)] == trainer.cluster.rank:
                    _write_tile(file, start + place.start, place.entry, trainer)
        file.flush()
        os.fsync(file.fileno())


def _write_tile(file: BinaryIO, start: int, entry: Entry, trainer: Trainer) -> None:
    """Write this rank's tile of an entry, stretch by stretch as it lies in the whole."""
    tensor = trainer.graph.tensors[entry.tensor or ""]
    region = trainer.programs.training.regions[tensor.name][trainer.cluster.rank]
    tile = np.ascontiguousarray(asnumpy(trainer.view(tensor.name)).astype(entry.dtype)).reshape(-1)
    (stretches,), done = coarser(region, tensor.shape, (tensor.elements,)), 0
    for first, last in stretches:
        file.seek(start + first * tile.itemsize)
        file.write(raw_bytes(tile[done : done + last - first]).data)
        done += last - first
