"""Write trained tensors to one safetensors file. Each rank writes its own tiles."""

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
from executor.weights import CODES, Weights
from planner.files import named_errors, take_place
from planner.graph.ir import Entry, entries_of
from planner.layout.region import coarser, holders

ALIGNMENT = 8
"""The header of a safetensors file is padded to a multiple of this many bytes."""

Entries = Mapping[str, Entry]
Contents = Mapping[str, HostArray]


def save_weights(path: Path, trainer: Trainer, steps_done: int) -> list[str]:
    """Write the module's state dict after `steps_done` steps as a safetensors file (collective).

    All ranks must see the folder. Returns the names of entries that are omitted because their content is unknown.
    Raises SharedError if a rank cannot write.
    """
    path, cluster = Path(os.path.realpath(path)), trainer.cluster
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
    """Return the module's state dict after `steps_done` steps on rank 0 (collective); an empty dict on other ranks."""
    contents: dict[str, HostArray] = {}
    for name, entry in entries_of(trainer.graph).items():
        held = entry.tensor is not None
        whole = trainer.whole(entry.tensor or "") if held else _content(trainer.weights, name, entry, steps_done)
        if whole is not None and trainer.cluster.rank == 0:
            contents[name] = whole.astype(entry.dtype).reshape(entry.shape)
    return contents


def _content(weights: Weights | None, name: str, entry: Entry, steps_done: int) -> HostArray | None:
    """Return the content of an entry that no tensor holds; None if it is unknown."""
    content = None if weights is None else weights.content(name)
    if not entry.counts:
        return content
    return np.asarray((0 if content is None else content) + entry.counts * steps_done, entry.dtype)


def write_tensors(path: Path, trainer: Trainer, entries: Entries, contents: Contents) -> None:
    """Write entries, with their `contents` where no tensor holds them, to one safetensors file (collective).

    Ranks with equal tiles take turns writing. Raises SharedError if a rank cannot write.
    """
    header, starts = _laid_out(entries)
    on_first_rank(trainer.cluster, lambda: _begin(path, header, starts, contents))
    agree(trainer.cluster, lambda: _write_tiles(path, starts, trainer, entries))


def _laid_out(entries: Entries) -> tuple[bytes, dict[str, int]]:
    """Return the file's header, and the start of every entry in the file."""
    described, starts, end = dict[str, object](), dict[str, int](), 0
    # Largest items first, so that each starts at a multiple of its size.
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
    """Write the header, and the contents that no tensor holds."""
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
    """Write this rank's tile of an entry, run by run at its position in the whole."""
    tensor = trainer.graph.tensors[entry.tensor or ""]
    region = trainer.programs.training.regions[tensor.name][trainer.cluster.rank]
    tile = np.ascontiguousarray(asnumpy(trainer.view(tensor.name)).astype(entry.dtype)).reshape(-1)
    (stretches,), done = coarser(region, tensor.shape, (tensor.elements,)), 0
    for first, last in stretches:
        file.seek(start + first * tile.itemsize)
        file.write(raw_bytes(tile[done : done + last - first]).data)
        done += last - first
