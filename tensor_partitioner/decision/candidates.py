"""Candidates: degrees of parallelism, ZeRO, schedules, micro-batches and recomputation that make sense together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from planner.layout.ways import AXES
from planner.parallel import Parallel

MOST_MICRO_BATCH = 16
CHUNKS = (2, 3, 4, 5, 6, 8)
"""Of a stage; where none divides the layers alike, any that there are layers for."""

LONG_SEQUENCE = 8192
"""From so many tokens on, context parallelism is tried."""

MOST_CONTEXT = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """What candidates depend on: devices in all and in a node, samples, layers that repeat (0: none), tokens a sample.

    `stores_scores` is True for a model whose attention keeps its matrix, which selective recomputation makes again;
    `updates` for one whose weights are updated. `experts` are those of a layer, 1 without any.
    """

    devices: int
    per_node: int
    batch: int
    layers: int
    sequence: int
    stores_scores: bool
    updates: bool = True
    experts: int = 1


def divisors(number: int) -> list[int]:
    """Return all divisors, ascending."""
    return [part for part in range(1, number + 1) if number % part == 0]


def candidates(shape: Shape) -> Iterator[Parallel]:
    """Yield every candidate for all devices; inner workers that cannot divide a model are found later."""
    for tp, cp, pp in _degrees(shape):
        dp = shape.devices // (tp * cp * pp)
        if shape.batch % dp:
            continue
        for micro_batch in _micro_batches(shape.batch // dp, pp):
            count = shape.batch // dp // micro_batch
            settings = _experts(shape, dp), _zero(shape, dp, pp), _schedules(shape, pp, count), _recompute(shape)
            for ep, zero, schedule, recompute in product(*settings):
                yield Parallel(
                    pp=pp,
                    dp=dp,
                    ep=ep,
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


def undivided(shape: Shape, pins: Mapping[str, int | str]) -> Iterator[Parallel]:
    """Yield ways to take all samples at once, with pinned degrees: a micro-batch a stage, nothing computed again."""
    held = {"pp": 1, "cp": 1} | {axis: degree for axis, degree in pins.items() if axis in ("pp", *AXES)}
    zeros = (int(pins["zero"]),) if "zero" in pins else (0, 3)
    for tp, cp, pp in _degrees(shape):
        dp = shape.devices // (tp * cp * pp)
        if shape.batch % (dp * pp):
            continue
        sp, micro_batch = tp > 1 and shape.sequence > 1, shape.batch // (dp * pp)
        for ep, zero in product(_experts(shape, dp), zeros):
            degrees = {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": ep}
            if zero in _zero(shape, dp, pp) and degrees == degrees | held:
                yield Parallel(pp=pp, dp=dp, ep=ep, cp=cp, tp=tp, sp=sp, zero=zero, micro_batch=micro_batch)


def _experts(shape: Shape, dp: int) -> list[int]:
    """Return among how many data parallel workers experts may be shared out."""
    return [ep for ep in divisors(shape.experts) if dp % ep == 0]


def _micro_batches(samples: int, pp: int) -> list[int]:
    """Return what a replica may take of its samples at once: powers of two, few where stages wait; all of few."""
    powers = [part for part in divisors(samples) if part & (part - 1) == 0]
    sizes = [part for part in powers if pp == 1 or part <= MOST_MICRO_BATCH]
    return sizes if samples in sizes or samples > 4 * MOST_MICRO_BATCH else [*sizes, samples]


def _zero(shape: Shape, dp: int, pp: int) -> tuple[int, ...]:
    """Return ZeRO's stages: those that share out gradients or weights exchange them with every micro-batch.

    So they are left out where stages have many of these; and the first where nothing is updated.
    """
    if dp == 1:
        return (0,)
    stages = (0, 1, 2, 3) if pp == 1 else (0, 1)
    return stages if shape.updates else tuple(stage for stage in stages if stage not in (1, 2))


def _schedules(shape: Shape, pp: int, count: int) -> list[str]:
    if pp == 1:
        return ["1f1b"]
    possible = [v for v in CHUNKS if pp * v <= shape.layers and count % pp == 0]
    even = [v for v in possible if shape.layers % (pp * v) == 0]
    return ["1f1b", "zero-bubble", *(f"interleaved:{v}" for v in even or possible)]


def _recompute(shape: Shape) -> tuple[str, ...]:
    if not shape.layers:
        return ("none",)
    return ("none", "selective", "full") if shape.stores_scores else ("none", "full")


KEPT = ("none", "selective", "full")
"""Recomputation, that which keeps most first."""


def by_hand(ways: Iterable[Parallel]) -> Iterator[list[Parallel]]:
    """Yield what people would do anyway: DDP, FSDP, and tensor parallelism in a node with as few stages as may be.

    Of each the ways that are among these, those with least recomputation and the largest micro-batch first; stages take
    a sample at once, in as many chunks as there are.
    """
    every = [way for way in ways if way.cp == way.ep == 1]
    data = [way for way in every if way.dp == way.workers > 1]
    for zero in (0, 3):
        alike = (way for way in data if way.zero == zero)
        yield sorted(alike, key=lambda way: (KEPT.index(way.recompute), -(way.micro_batch or 0)))
    most = max((way.tp for way in every), default=1)
    tensor = (way for way in every if way.tp == most > 1 and way.zero == min(1, way.dp - 1) and _is_plain(way))
    yield sorted(tensor, key=lambda way: (KEPT.index(way.recompute), way.pp, -(way.micro_batch or 0), -way.chunks))


def _is_plain(way: Parallel) -> bool:
    """True but for stages that take more than a sample at once, or part a layer's backward pass."""
    return way.pp == 1 or (way.micro_batch == 1 and way.schedule != "zero-bubble")


def family(parallel: Parallel) -> str:
    """Return what people call a candidate's kind."""
    parts = []
    if parallel.pp > 1:
        parts.append("pipeline")
    if parallel.tp > 1:
        parts.append("tensor")
    if parallel.cp > 1:
        parts.append("context")
    if parallel.ep > 1:
        parts.append("expert")
    if parallel.dp > 1:
        parts.append({0: "data (DDP)", 1: "ZeRO-1", 2: "ZeRO-2", 3: "FSDP (ZeRO-3)"}[parallel.zero])
    return " x ".join(parts) or "one device"


def candidate_name(parallel: Parallel) -> str:
    """Return a candidate as it is written for `--parallel`."""
    return str(parallel) or "dp=1"
