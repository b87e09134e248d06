"""Checkpoints: the state of training after a step, which any number of workers can resume from.

A checkpoint is a folder `step-N` with a manifest and one safetensors file, to which every rank writes its tiles. The
folder gets its name when it is complete.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO
from zlib import crc32

import msgspec
import numpy as np

from executor.backend import asnumpy
from executor.cluster import Cluster, HostArray, raw_bytes
from executor.process.guard import ERRORS
from executor.process.launch import SharedError, agree, on_first_rank, require_alike
from executor.training import Trainer
from executor.weights import Safetensors
from executor.weights.saving import write_tensors
from planner.errors import InputError
from planner.files import format_of, named_errors, write_json
from planner.graph.graph_json import to_data
from planner.graph.ir import Entry, Graph, Tensor
from planner.layout.region import holders, whole
from planner.plans.plan import Plan
from topologies.reading import read_bytes

FORMAT = "checkpoint/2"
MANIFEST = "manifest.json"
LOCK = ".lock"
TENSORS = "tensors.safetensors"
_NAME = re.compile(r"step-(\d{8,})")

KEPT = 2
"""Number of checkpoints that are kept. The previous one stays valid while the next is written."""

CHUNK_BYTES = 1 << 26
"""Bytes per digest. Ranks share the work of computing and checking them."""


class CheckpointError(InputError):
    """A checkpoint is damaged, missing, or of another run. The message says what was found and expected, and where."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a checkpoint after `step` steps.

    `data` identifies the data set; `graph` is a digest; `chunks` are the digests of the file's parts of `CHUNK_BYTES`.
    """

    step: int
    graph: str
    seed: int
    data: str
    schedule: str
    chunks: list[str] = []


class _Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest's file: its format, the manifest, and the SHA-256 of its JSON."""

    format: str
    sha256: str
    manifest: Manifest


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write a manifest with its digest, which `read_manifest` checks."""
    write_json(path, _Signed(FORMAT, digest(msgspec.to_builtins(manifest)), manifest))


def read_manifest(path: Path) -> Manifest:
    """Read a manifest. Raises CheckpointError, naming the file, or OSError."""
    text = read_bytes(path)
    if format_of(text) != FORMAT:
        raise CheckpointError(f"{path}: expected a manifest of format {FORMAT!r}, found another")
    try:
        signed = msgspec.json.decode(text, type=_Signed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if signed.sha256 != digest(msgspec.to_builtins(signed.manifest)):
        raise CheckpointError(f"{path}: damaged: expected SHA-256 {signed.sha256[:12]}, found that of other content")
    return signed.manifest


def digest(data: Any) -> str:
    """Return the SHA-256 of JSON-compatible data."""
    return sha256(json.dumps(data).encode()).hexdigest()


def graph_digest(graph: Graph) -> str:
    """Return a digest of a graph."""
    return digest(to_data(graph))


def saved_tensors(graph: Graph) -> tuple[Tensor, ...]:
    """Return the tensors that a checkpoint holds: those that training changes or was given.

    All others follow from the seed.
    """
    begun = (entry.tensor for entry in graph.entries.values() if entry.tensor is not None)
    return tuple(graph.tensors[name] for name in dict.fromkeys((*graph.updates, *begun)))


def chunk_digests(path: Path, rank: int, size: int) -> dict[int, str]:
    """Return the SHA-256 of a rank's share of a file's chunks, by number."""
    digests: dict[int, str] = {}
    with path.open("rb") as file:
        for number in range(rank, -(-path.stat().st_size // CHUNK_BYTES), size):
            file.seek(number * CHUNK_BYTES)
            digests[number] = sha256(file.read(CHUNK_BYTES)).hexdigest()
    return digests


def name_of(step: int) -> str:
    """Return the name of the checkpoint after `step` steps."""
    return f"step-{step:08}"


def checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints in a folder, ordered by step."""
    named = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()] if folder.is_dir() else []
    return [path for _, path in sorted((int(match[1]), path) for match, path in named if match is not None)]


def last_checkpoint(path: Path) -> Path:
    """Return the last checkpoint in a run's folder, or the path itself if it is one.

    Raises CheckpointError if there is none.
    """
    folders = [path] if (path / MANIFEST).exists() else checkpoints(path)
    if _NAME.fullmatch(path.name) and not folders:
        raise CheckpointError(f"{path}: expected a {MANIFEST}, found none: remove this folder to resume from another")
    if not folders:
        raise CheckpointError(f"{path}: expected checkpoints, found neither a {MANIFEST} nor a folder step-N")
    return folders[-1]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint to read."""

    folder: Path
    manifest: Manifest

    @classmethod
    def of(cls, path: Path, plan: Plan) -> Checkpoint:
        """Open the last checkpoint in a run's folder, or the one that the path names.

        Raises CheckpointError if there is none, or if its graph or seed is not the plan's, and OSError.
        """
        folder = last_checkpoint(path)
        manifest = read_manifest(folder / MANIFEST)
        if manifest.graph != graph_digest(plan.graph):
            raise CheckpointError(f"{folder}: expected a checkpoint of the plan's graph, found one of another graph")
        if manifest.seed != plan.seed:
            raise CheckpointError(f"{folder}: expected the plan's seed, {plan.seed}, found {manifest.seed}")
        return cls(folder, manifest)

    def restore(self, trainer: Trainer) -> None:
        """Load the saved value of every tensor (collective). Raises SharedError if the file is damaged.

        Each rank checks its share of the chunks, and reads the tiles that it needs.
        """
        cluster = trainer.cluster
        agree(cluster, lambda: self._verify(cluster.rank, cluster.size))
        agree(cluster, lambda: self._read(trainer))

    def _verify(self, rank: int, size: int) -> None:
        path, chunks = self.folder / TENSORS, self.manifest.chunks
        if chunk_digests(path, rank, size) != {number: chunks[number] for number in range(rank, len(chunks), size)}:
            raise CheckpointError(
                f"{path}: damaged: its SHA-256 is not that of the manifest; remove the folder to resume from the "
                "previous checkpoint"
            )

    def _read(self, trainer: Trainer) -> None:
        saved = Safetensors(self.folder / TENSORS)
        for tensor in saved_tensors(trainer.graph):
            region = trainer.programs.training.regions[tensor.name][trainer.cluster.rank]
            trainer.view(tensor.name)[...] = trainer.xp.asarray(saved.read(tensor.name, region))


class Saver:
    """Writes the checkpoints of a training to a folder. `data` identifies the data set; `schedule` is text.

    All ranks must see the folder. It is locked until `close`; if another job has locked it, also one of the same
    process, all ranks raise SharedError.
    """

    def __init__(self, folder: Path, trainer: Trainer, data: str, schedule: str) -> None:
        self._lock = on_first_rank(trainer.cluster, lambda: _locked(folder))
        on_first_rank(trainer.cluster, lambda: (folder / ERRORS).unlink(missing_ok=True))
        plan = trainer.programs.plan
        self._folder = folder
        self._trainer = trainer
        self._entries = {t.name: Entry(t.name, t.shape, t.dtype) for t in saved_tensors(plan.graph)}
        self._manifest = Manifest(0, graph_digest(plan.graph), plan.seed, data, schedule)

    def close(self) -> None:
        """Unlock the folder."""
        if self._lock is not None:
            self._lock.close()

    def save(self, step: int) -> None:
        """Write the checkpoint after `step` steps and remove all but the last two (collective).

        If a rank cannot write, the incomplete folder is removed and all ranks raise SharedError.
        """
        cluster = self._trainer.cluster
        hidden = self._folder / f".{name_of(step)}.part"
        try:
            on_first_rank(cluster, lambda: _make_empty(hidden))
            write_tensors(hidden / TENSORS, self._trainer, self._entries, {})
            digests = agree(cluster, lambda: chunk_digests(hidden / TENSORS, cluster.rank, cluster.size))
            shares = cluster.gather(digests)
            on_first_rank(cluster, lambda: self._publish(hidden, step, dict(ChainMap(*shares))))
        except SharedError:
            on_first_rank(cluster, lambda: shutil.rmtree(hidden, ignore_errors=True))
            raise

    def _publish(self, hidden: Path, step: int, digests: dict[int, str]) -> None:
        """Write the manifest, then rename the folder. From then on the checkpoint exists."""
        chunks = [digests[number] for number in sorted(digests)]
        write_manifest(hidden / MANIFEST, msgspec.structs.replace(self._manifest, step=step, chunks=chunks))
        _settle(hidden / MANIFEST)
        _settle(hidden)
        hidden.rename(self._folder / name_of(step))
        _settle(self._folder)
        for old in checkpoints(self._folder)[:-KEPT]:
            _remove(old)


def _locked(folder: Path) -> TextIO:
    """Return the open file by which a folder, made if need be, is locked; the system frees the lock of a killed job."""
    folder.mkdir(parents=True, exist_ok=True)
    with named_errors(folder / LOCK):
        file = os.fdopen(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # lockf would let in a second job of this process
        except BlockingIOError as error:
            file.seek(0)
            raise CheckpointError(
                f"{folder}: another job writes checkpoints here ({file.read().strip() or 'unknown'}): wait for it to "
                "end, or name another folder"
            ) from error
        except OSError:
            pass  # a file system without locks
        file.truncate(0)
        print(f"process {os.getpid()} on {os.uname().nodename}", file=file, flush=True)
    return file


def _make_empty(hidden: Path) -> None:
    """Create a folder, and remove the incomplete ones of runs that were killed."""
    for left in hidden.parent.glob(".step-*.part"):
        _remove(left)
    hidden.mkdir(parents=True)


def _remove(folder: Path) -> None:
    """Remove a folder; where a link has its name, only the link."""
    (Path.unlink if folder.is_symlink() else shutil.rmtree)(folder)


def _settle(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Checks that all ranks have the same inputs and replicas, and that values are finite.


ADVICE = ": give all ranks the same, or skip this check with --no-agree"


def require_agreement(trainer: Trainer, given: Mapping[str, str], advice: str = ADVICE) -> None:
    """Raise a SharedError if ranks have other inputs (`given`), or replicas with other values (collective)."""
    require_alike(trainer.cluster, {**given, **replicas(trainer)}, advice)


def replicas(trainer: Trainer) -> dict[str, str]:
    """Return checksums of this rank's trained tensors, by name, where other ranks hold the same part."""
    rank, regions = trainer.cluster.rank, trainer.programs.training.regions
    checksums: dict[str, str] = {}
    for tensor in saved_tensors(trainer.graph):
        first, *others = holders(regions[tensor.name]).get(regions[tensor.name][rank], [rank])
        if others:
            part = "" if regions[tensor.name][rank] == whole(tensor.shape) else f" (the part of rank {first})"
            checksums[f"{tensor.name}{part}"] = checksum(asnumpy(trainer.view(tensor.name)))
    return checksums


def file_digest(path: Path, cluster: Cluster) -> str:
    """Return a digest of a file's content (collective). Ranks that see the same file share the work."""
    status = agree(cluster, path.stat)
    files = cluster.all_gather((os.uname().nodename, status.st_dev, status.st_ino))
    sharing = [rank for rank, file in enumerate(files) if file == files[cluster.rank]]
    shares = cluster.all_gather(agree(cluster, lambda: chunk_digests(path, sharing.index(cluster.rank), len(sharing))))
    chunks = dict(ChainMap(*(shares[rank] for rank in sharing)))
    return f"content {digest([chunks[number] for number in sorted(chunks)])[:12]}"


def checksum(array: HostArray) -> str:
    """Return a checksum of an array's bytes."""
    return f"content {crc32(raw_bytes(np.ascontiguousarray(array)).data):08x}"


FINITE = 1 << 62
"""Returned in place of an index if all tensors are finite."""


def not_finite_here(trainer: Trainer, names: Sequence[str]) -> int:
    """Return the index of the first of these tensors with a non-finite value on this rank; FINITE if there is none."""
    places = (place for place, name in enumerate(names) if not trainer.xp.isfinite(trainer.view(name)).all())
    return next(places, FINITE)


def first_not_finite(trainer: Trainer, names: Sequence[str]) -> str:
    """Return the name of the first of these tensors with a non-finite value on any rank (collective).

    "" if there is none.
    """
    place = trainer.cluster.least(not_finite_here(trainer, names))
    return "" if place == FINITE else names[place]
