"""Writing trained tensors: one file of safetensors, of which every rank writes the tiles that it holds."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
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
from planner.layout.region import coarser, holders

ALIGNMENT = 8
"""The header of a safetensors file is filled up to a multiple of so many bytes."""

Entries = Mapping[str, Entry]
Contents = Mapping[str, HostArray]


def save_weights(path: Path, trainer: Trainer, steps_done: int) -> list[str]:
    """Write the state dict that the module has after so many steps, as safetensors (collective).

    Every rank must see the folder. Returns the names of entries that are left out, whose content is not known. Raises
    SharedError where a rank cannot write.
    """
    path, cluster = path.resolve(), trainer.cluster
    beside = path.with_name(f".{path.name}.part")
    entries = entries_of(trainer.graph)
    untrained = {name: entry for name, entry in entries.items() if entry.tensor is None}
    known = {name: _content(trainer.weights, name, entry, steps_done) for name, entry in untrained.items()}
    contents = {name: content for name, content in known.items() if content is not None}
    left_out = [name for name in known if name not in contents]
    try:
        kept = {name: entry for name, entry in entries.items() if name not in left_out}
        write_tensors(beside, trainer, kept, contents)
        on_first_rank(cluster, lambda: take_place(beside, path))
    except SharedError:
        on_first_rank(cluster, lambda: beside.unlink(missing_ok=True))
        raise
    return left_out


def state_dict(trainer: Trainer, steps_done: int) -> dict[str, HostArray]:
    """Return, on rank 0, the state dict that the module has after so many steps (collective); nothing elsewhere."""
    contents: dict[str, HostArray] = {}
    for name, entry in entries_of(trainer.graph).items():
        held = entry.tensor is not None
        whole = trainer.whole(entry.tensor or "") if held else _content(trainer.weights, name, entry, steps_done)
        if whole is not None and trainer.cluster.rank == 0:
            contents[name] = whole.astype(entry.dtype).reshape(entry.shape)
    return contents


def _content(weights: Weights | None, name: str, entry: Entry, steps_done: int) -> HostArray | None:
    """Return what an entry holds that no tensor does; None where that is not known."""
    content = None if weights is None else weights.content(name)
    if not entry.counts:
        return content
    return np.asarray((0 if content is None else content) + entry.counts * steps_done, entry.dtype)


def write_tensors(path: Path, trainer: Trainer, entries: Entries, contents: Contents) -> None:
    """Write entries, and their `contents` where no tensor holds them, into one file of safetensors (collective).

    Of ranks that hold equal tiles one writes, in turn. Raises SharedError where a rank cannot write.
    """
    header, starts = _laid_out(entries)
    on_first_rank(trainer.cluster, lambda: _begin(path, header, starts, contents))
    agree(trainer.cluster, lambda: _write_tiles(path, starts, trainer, entries))


def _laid_out(entries: Entries) -> tuple[bytes, dict[str, int]]:
    """Return the file's header, and where in the file every entry begins."""
    described, starts, end = dict[str, object](), dict[str, int](), 0
    # The largest items first: then each begins at a multiple of its size.
    for name in sorted(entries, key=lambda key: (-np.dtype(entries[key].dtype).itemsize, key)):
        entry, start = entries[name], end
        end += np.dtype(entry.dtype).itemsize * prod(entry.shape)
        described[name] = {"dtype": CODES[entry.dtype], "shape": entry.shape, "data_offsets": [start, end]}
        starts[name] = start
    text = json.dumps(described).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: len(header) + start for name, start in starts.items()}


def _begin(path: Path, header: bytes, starts: Mapping[str, int], contents: Contents) -> None:
    """Write the header, and what no tensor holds."""
    with named_errors(path), path.open("wb") as file:
        file.write(header)
        for name, content in contents.items():
            file.seek(starts[name])
            file.write(raw_bytes(np.ascontiguousarray(content)).data)


def _write_tiles(path: Path, starts: Mapping[str, int], trainer: Trainer, entries: Entries) -> None:
    rank, regions = trainer.cluster.rank, trainer.programs.training.regions
    with named_errors(path), path.open("r+b") as file:
        for number, (name, start) in enumerate(starts.items()):
            tensor = entries[name].tensor
            if tensor is None:
                continue
            workers = holders(regions[tensor]).get(regions[tensor][rank], [])
            if workers and workers[number % len(workers)] == rank:
                _write_tile(file, start, entries[name], trainer)
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
