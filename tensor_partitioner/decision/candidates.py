"""Candidates: degrees of parallelism, ZeRO, schedules, micro-batches and recomputation that make sense together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from planner.parallel import Parallel

MOST_MICRO_BATCH = 16
CHUNKS = (2, 3, 4, 6, 8)
LONG_SEQUENCE = 8192
"""From so many tokens on, context parallelism is tried."""

MOST_CONTEXT = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """What candidates depend on: devices in all and in a node, samples, layers that repeat (0: none), tokens a sample.

    `stores_scores` is True for a model whose attention keeps its matrix, which selective recomputation makes again.
    """

    devices: int
    per_node: int
    batch: int
    layers: int
    sequence: int
    stores_scores: bool


def divisors(number: int) -> list[int]:
    """Return all divisors, ascending."""
    return [part for part in range(1, number + 1) if number % part == 0]


def candidates(shape: Shape) -> Iterator[Parallel]:
    """Yield every candidate for all devices; inner workers that cannot divide a model are found later."""
    for tp, cp, pp in _degrees(shape):
        dp = shape.devices // (tp * cp * pp)
        if shape.batch % dp:
            continue
        for micro_batch in _micro_batches(shape.batch // dp):
            count = shape.batch // dp // micro_batch
            for zero, schedule, recompute in product(_zero(dp, pp), _schedules(shape, pp, count), _recompute(shape)):
                yield Parallel(
                    pp=pp,
                    dp=dp,
                    cp=cp,
                    tp=tp,
                    sp=tp > 1 and shape.sequence > 1,
                    zero=zero,
                    micro_batch=micro_batch,
                    schedule=schedule,
                    recompute=recompute,
                )


def _degrees(shape: Shape) -> Iterator[tuple[int, int, int]]:
    inside = shape.per_node if shape.per_node > 1 else shape.devices
    for tp in divisors(inside):
        for cp in divisors(shape.devices // tp) if shape.devices % tp == 0 else ():
            if cp > 1 and (shape.sequence < LONG_SEQUENCE or cp > MOST_CONTEXT or tp * cp > 8 * inside):
                continue
            for pp in divisors(shape.devices // (tp * cp)):
                if pp == 1 or pp <= shape.layers:
                    yield tp, cp, pp


def _micro_batches(samples: int) -> list[int]:
    """Return what a replica may take of its samples at once: powers of two, and all where that is few."""
    found = [part for part in divisors(samples) if part & (part - 1) == 0 and part <= MOST_MICRO_BATCH]
    return found if samples in found or samples > 4 * MOST_MICRO_BATCH else [*found, samples]


def _zero(dp: int, pp: int) -> tuple[int, ...]:
    """Return ZeRO's stages: sharing gradients or weights out has no use where micro-batches come one by one."""
    if dp == 1:
        return (0,)
    return (0, 1, 2, 3) if pp == 1 else (0, 1)


def _schedules(shape: Shape, pp: int, count: int) -> list[str]:
    if pp == 1:
        return ["1f1b"]
    chunks = [v for v in CHUNKS if shape.layers % (pp * v) == 0 and count % pp == 0]
    return ["1f1b", "zero-bubble", *(f"interleaved:{v}" for v in chunks)]


def _recompute(shape: Shape) -> tuple[str, ...]:
    if not shape.layers:
        return ("none",)
    return ("none", "selective", "full") if shape.stores_scores else ("none", "full")


def family(parallel: Parallel) -> str:
    """Return what people call a candidate's kind."""
    parts = []
    if parallel.pp > 1:
        parts.append("pipeline")
    if parallel.tp > 1:
        parts.append("tensor")
    if parallel.cp > 1:
        parts.append("context")
    if parallel.dp > 1:
        parts.append({0: "data (DDP)", 1: "ZeRO-1", 2: "ZeRO-2", 3: "FSDP (ZeRO-3)"}[parallel.zero])
    return " x ".join(parts) or "one device"


def candidate_name(parallel: Parallel) -> str:
    """Return a candidate as it is written for `--parallel`."""
    return str(parallel) or "dp=1"
