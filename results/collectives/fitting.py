"""What a library attains on a machine, fitted on half of the published rows: latencies and shares of bandwidth."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from topologies import Machine, load_topology
from topologies.schema import Algorithm, CollectiveEntry, Nodes, Operation
from topologies.traffic import Choice, choices, fastest

Floats = NDArray[np.float64]

SEED = 20
TOLERANCES = ((1 << 20, 0.15), (0, 0.30))  # from so many bytes on, so near
STARTS, MOVES = 4, 20_000
DIGITS = 3
LINES = 2


@dataclass(frozen=True, slots=True)
class Row:
    """A published time of one operation among the first devices of each node of a machine of the package."""

    machine: str
    nodes: int
    operation: Operation
    devices: int
    algorithm: Algorithm | None
    nbytes: int
    seconds: float
    name: str

    @property
    def members(self) -> tuple[int, ...]:
        """The devices that take part."""
        return tuple(range(self.devices))

    @property
    def curve(self) -> tuple[str, int, str, str]:
        """What rows have in common that differ in size and number of devices alone."""
        return self.name, self.nodes, self.operation, self.algorithm or ""

    @property
    def point(self) -> tuple[tuple[str, int, str, str], int, int]:
        """What was measured; some points were published twice."""
        return self.curve, self.devices, self.nbytes

    @property
    def tolerance(self) -> float:
        """How near a prediction is to be."""
        return next(error for least, error in TOLERANCES if self.nbytes >= least)


@dataclass(frozen=True, slots=True)
class Fit:
    """Which entries of a machine are fitted; without `hops` messages in a row take what links say."""

    machine: str
    algorithm: Algorithm
    operations: tuple[Operation, ...]
    nodes: Nodes = "one"
    hops: bool = False


def halves(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Draw the rows that are fitted on, one of every two neighbours of a curve by size; points of no such row judge."""
    fitted, judged, chance = list[Row](), list[Row](), random.Random(SEED)
    for curve in sorted({row.curve for row in rows}):
        by_size = sorted((row for row in rows if row.curve == curve), key=lambda row: (row.nbytes, row.devices))
        for start in range(0, len(by_size), 2):
            neighbours = by_size[start : start + 2]
            chance.shuffle(neighbours)
            fitted += neighbours[1:]
            judged += neighbours[:1]
    known = {row.point for row in fitted}
    return fitted, [row for row in judged if row.point not in known]


def predicted(machine: Machine, row: Row) -> float:
    """Return the seconds of a row on a machine, by its algorithm if it names one."""
    candidates = choices(machine, row.operation, row.members)
    among = [choice for choice in candidates if row.algorithm in (None, choice.algorithm)]
    return fastest(among, row.nbytes).alone.seconds(row.nbytes)


def fitted_entries(fit: Fit, rows: Sequence[Row]) -> tuple[CollectiveEntry, ...]:
    """Fit the entries by hill climbing from several starts, on errors relative to what is tolerated."""
    probe = CollectiveEntry(algorithm=fit.algorithm, operations=fit.operations, nodes=fit.nodes)
    machine = load_topology(fit.machine)
    plain = replace(machine, collectives=(msgspec.structs.replace(probe, hop_s=0.0 if fit.hops else None),))
    unit = [_only(choices(plain, row.operation, row.members)) for row in rows]
    wire_s = np.array([choice.alone.s_per_byte * row.nbytes for choice, row in zip(unit, rows, strict=True)])
    base_s = np.array([choice.alone.delay_s for choice in unit])
    hops = np.array([sum(choice.pattern.chain.values()) if fit.hops else 0.0 for choice in unit])
    measured, tolerated = (np.array([getattr(row, name) for row in rows]) for name in ("seconds", "tolerance"))

    def errors(parameters: Floats) -> Floats:
        latency_s, share, hop_s = np.exp(parameters.reshape(3, LINES, 1))
        seconds = (base_s + latency_s + np.maximum(hop_s * hops, wire_s / np.minimum(share, 1.0))).min(axis=0)
        return np.asarray(np.log(seconds / measured) / tolerated)

    fitted = _climb(lambda parameters: float(np.abs(errors(parameters)).mean()))
    latency_s, share, hop_s = np.exp(fitted).reshape(3, LINES)
    lines = sorted(zip(latency_s.tolist(), share.tolist(), hop_s.tolist(), strict=True), key=lambda line: line[1])
    return tuple(
        msgspec.structs.replace(
            probe,
            latency_s=_rounded(latency),
            bandwidth_share=min(_rounded(attained), 1.0),
            hop_s=_rounded(hop) if fit.hops else None,
        )
        for latency, attained, hop in lines
    )


def fitted_share(rows: Sequence[Row]) -> float:
    """Return what share of the links' bandwidth rings of large payloads attain."""
    plain = [replace(load_topology(row.machine), collectives=()) for row in rows]
    shares = [
        row.nbytes
        * next(
            choice for choice in choices(on, row.operation, row.members) if choice.algorithm == "ring"
        ).alone.s_per_byte
        / row.seconds
        for on, row in zip(plain, rows, strict=True)
    ]
    return _rounded(float(np.exp(np.mean(np.log(shares)))))


def _climb(loss: Callable[[Floats], float]) -> Floats:
    """Return the best of several random walks downhill; parameters are logarithms: latencies, shares, hops."""
    chance, best, least = np.random.default_rng(SEED), np.zeros(3 * LINES), np.inf
    for _ in range(STARTS):
        low, high = (np.repeat(np.log(ends), LINES) for ends in ((1e-5, 0.1, 1e-7), (3e-4, 1.0, 5e-6)))
        at = chance.uniform(low, high)
        now = loss(at)
        for _ in range(MOVES):
            moved = at + chance.normal(size=at.size) * chance.choice((0.01, 0.05, 0.3)) * (chance.random(at.size) < 0.5)
            if (then := loss(moved)) < now:
                at, now = moved, then
        if now < least:
            best, least = at, now
    return best


def _only(candidates: Sequence[Choice]) -> Choice:
    (choice,) = candidates
    return choice


def _rounded(figure: float) -> float:
    return float(f"{figure:.{DIGITS}g}")
