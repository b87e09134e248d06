"""Checks that all ranks have the same inputs and replicas, and that values are finite."""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Mapping, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np

from executor.backend import asnumpy
from executor.checkpoint import chunk_digests, digest, saved_tensors
from executor.cluster import Cluster, HostArray, raw_bytes
from executor.process.launch import agree, require_alike
from executor.training import Trainer
from planner.layout.region import holders, whole

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
