"""How workers are divided, step by step and in which shares, and the placements of a tensor at each step."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, product

from msgspec import Struct

from planner.errors import PlanError

AXES = ("dp", "ep", "cp", "tp")
"""What a step may divide: the batch, the batch and the experts, the sequence (context), the model's tensors.

The outermost comes first.
"""

STAGES, ANY = "pp", ""
"""Other axes: the nodes, with a stage per group of workers; and whatever a plan chooses."""


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """The factors into which workers are divided, one per step, and the workers' shares if they differ.

    A worker is a number with a digit per step, the first the most significant. `shares` are those of all workers, in
    the order of their ranks and in lowest terms; empty if equal. `axes`, if given, names each step's axis: a dimension
    is then cut only at the steps of the axes along which it is split, and may be shorter than the product of all ways.

    >>> ways = Ways((2, 2), (6, 2, 4, 4))
    >>> ways.workers, ways.digits(2), ways.shares
    (4, (1, 0), (3, 1, 2, 2))
    >>> ways.prefix(1), ways.prefix(1) == (2,)
    (Ways(factors=(2,), shares=(), axes=()), True)
    """

    factors: tuple[int, ...] = ()
    shares: tuple[int, ...] = ()
    axes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reduce shares to lowest terms; equal shares become none."""
        if not all(isinstance(share, int) for share in self.shares):
            return  # reported by whoever checks them
        divisor, equal = math.gcd(*self.shares), len(set(self.shares)) <= 1
        object.__setattr__(self, "shares", () if equal else tuple(share // divisor for share in self.shares))

    def __eq__(self, other: object) -> bool:
        """Return True for equal fields; ways without shares and axes also equal the tuple of their factors."""
        if isinstance(other, tuple):
            return not self.shares and not self.axes and self.factors == other
        if not isinstance(other, Ways):
            return False
        return self.factors == other.factors and self.shares == other.shares and self.axes == other.axes

    def __hash__(self) -> int:
        return hash(self.factors)

    def __len__(self) -> int:
        return len(self.factors)

    def __iter__(self) -> Iterator[int]:
        return iter(self.factors)

    def __getitem__(self, step: int) -> int:
        return self.factors[step]

    @property
    def workers(self) -> int:
        """The number of workers."""
        return math.prod(self.factors)

    def prefix(self, steps: int) -> Ways:
        """Return the first steps alone; each worker then has the shares of the group it stands for."""
        size = math.prod(self.factors[steps:])
        firsts = range(0, len(self.shares), size)
        shares = tuple(sum(self.shares[first : first + size]) for first in firsts)
        return Ways(self.factors[:steps], shares, self.axes[:steps])

    def within_stages(self, stages: int) -> Ways:
        """Return these ways after a first step whose groups of workers are stages; that step cuts no dimension.

        >>> Ways((2, 2)).within_stages(4)
        Ways(factors=(4, 2, 2), shares=(), axes=('pp', '', ''))
        """
        axes = self.axes or (ANY,) * len(self)
        return Ways((stages, *self.factors), self.shares * stages, (STAGES, *axes))

    @property
    def is_nested(self) -> bool:
        """True if a part at two steps is the intersection of the parts at each; not with two axes that cut."""
        return len({*self.axes} - {STAGES}) < 2

    def cutting(self, steps: Collection[int]) -> Sequence[int]:
        """Return the steps that cut a dimension split at the given steps, in order."""
        if not self.axes:
            return range(len(self))
        used = {self.axes[step] for step in steps}
        return [step for step in range(len(self)) if self.axes[step] in used]

    def digits(self, worker: int) -> tuple[int, ...]:
        """Return a worker's digits, one per step."""
        reversed_digits = []
        for factor in reversed(self.factors):
            worker, digit = divmod(worker, factor)
            reversed_digits.append(digit)
        return tuple(reversed(reversed_digits))

    def digits_of_workers(self) -> list[tuple[int, ...]]:
        """Return every worker's digits, in the order of workers."""
        return list(product(*map(range, self.factors)))


class Shard(Struct, frozen=True):
    """At this step each part of the workers holds its part of dimension `dim`."""

    dim: int

    def __str__(self) -> str:
        return f"S{self.dim}"


class Replicate(Struct, frozen=True):
    """At this step every part of the workers holds the same."""

    def __str__(self) -> str:
        return "R"


class Partial(Struct, frozen=True):
    """At this step every part holds a term of a sum: the tensor is the sum over the parts."""

    def __str__(self) -> str:
        return "P+"


class At(Struct, frozen=True):
    """At this step only the workers with digit `group` hold anything."""

    group: int

    def __str__(self) -> str:
        return f"@{self.group}"


Placement = Shard | Replicate | Partial | At
Layout = tuple[Placement, ...]
REPLICATE = Replicate()
PARTIAL = Partial()


def parse_placement(text: str) -> Placement:
    """Return the placement `S<dim>`, `R`, `P+` or `@<group>`; raise PlanError for anything else."""
    if text == "R":
        return REPLICATE
    if text == "P+":
        return PARTIAL
    if match := re.fullmatch(r"([S@])(0|[1-9][0-9]{0,8})", text):
        return (Shard if match[1] == "S" else At)(int(match[2]))
    raise PlanError(f"expected a placement S<dimension>, R, P+ or @<group>, found {text!r}")


class PlacementSet(StrEnum):
    """Placements that a search may choose from, spelt as in options and files: `S`, `S,R` or `S,R,P`.

    >>> PlacementSet.parse("R, S").allows_replicated
    True
    """

    SPLIT = "S"
    REPLICATED = "S,R"
    PARTIAL = "S,R,P"

    @classmethod
    def parse(cls, text: object) -> PlacementSet | None:
        """Return the set of this spelling, in any order; None if there is none."""
        parts = {part.strip() for part in text.split(",")} if isinstance(text, str) else set()
        return next((placements for placements in cls if parts == placements.letters), None)

    @property
    def letters(self) -> frozenset[str]:
        """The kinds of placements in it: S, R, P."""
        return frozenset(self.value.split(","))

    @property
    def allows_replicated(self) -> bool:
        """True if tensors may be replicated."""
        return "R" in self.letters

    @property
    def allows_partial(self) -> bool:
        """True if tensors may be left as partial sums."""
        return "P" in self.letters


# Layouts in terms of meshes, as in DTensor: axes of a mesh of workers, each with a placement.
#
# Adjacent steps with the same placement are one axis; the first axis is the most significant digit of a worker. A
# dimension sharded after steps at which its digits are free is interleaved: it is first cut into as many chunks as
# those steps have ways together, and each chunk is divided among the workers (DTensor's `_StridedShard`, with its
# `split_factor`).


@dataclass(frozen=True, slots=True)
class StridedShard:
    """Dimension `dim` is cut into `split_factor` chunks; a worker holds its part of each, one after the other."""

    dim: int
    split_factor: int

    def __str__(self) -> str:
        return f"S{self.dim}/{self.split_factor}"


AxisPlacement = Placement | StridedShard


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of the mesh: its number of workers, how they hold the tensor, and its steps.

    `steps` are adjacent, counted from 0.
    """

    ways: int
    placement: AxisPlacement
    steps: tuple[int, ...]


def mesh_axes(layout: Layout, ways: Ways, shape: Sequence[int], groups: Sequence[Sequence[int]]) -> tuple[Axis, ...]:
    """Return the fewest axes that express a tensor's layout for a view of it with coarser dimensions.

    Dimension i of the view spans the dimensions groups[i] of the tensor. A shard of one of them is a part of every
    chunk that the dimensions before it make, unless they are split themselves. Adjacent steps with the same placement
    must be one axis, because DTensor reassembles an interleaved dimension correctly only then.
    """
    local, placements = list(shape), list[AxisPlacement]()
    for step, placement in enumerate(layout):
        if isinstance(placement, Shard):
            dim, group = next((dim, group) for dim, group in enumerate(groups) if placement.dim in group)
            outer = math.prod(local[axis] for axis in group if axis < placement.dim)
            free = math.prod(way for way, earlier in zip(ways, layout[:step], strict=False) if earlier != placement)
            local[placement.dim] //= ways[step]
            placements.append(Shard(dim) if outer * free == 1 else StridedShard(dim, outer * free))
        else:
            placements.append(placement)
    runs = [tuple(run) for _, run in groupby(range(len(layout)), key=placements.__getitem__)]
    return tuple(Axis(math.prod(ways[step] for step in steps), placements[steps[0]], steps) for steps in runs)


def uneven(shape: Sequence[int], layout: Layout, ways: Ways) -> str | None:
    """Return why no mesh of another framework can express the layout; None if one can.

    That is so if only some workers hold the tensor, if shares differ, or if splits do not divide an extent: with a
    remainder, parts start at n*j//k here and at multiples of ceil(n/k) elsewhere.
    """
    for step, placement in enumerate(layout):
        if isinstance(placement, At):
            return f"step {step + 1}: expected a placement on all workers, found {placement}"
    for dim in sorted({placement.dim for placement in layout if isinstance(placement, Shard)}):
        steps = [step for step, placement in enumerate(layout) if placement == Shard(dim)]
        if shares := ways.shares:
            return f"dimension {dim}: expected workers with equal shares, found {', '.join(map(str, shares))}"
        parts = math.prod(ways.factors[: steps[-1] + 1])  # the steps from the first on: those before cut chunks
        if shape[dim] % parts:
            return f"dimension {dim}: expected an extent that {parts} parts divide, found {shape[dim]}"
    return None


def interleaved_twice(axes: Sequence[Axis]) -> str | None:
    """Return which dimension is interleaved along several axes, which DTensor reassembles wrongly; else None.

    This happens to views of a tensor whose finer dimensions are sharded at several steps, and to dimensions sharded at
    three steps with others between.
    """
    counts = Counter(axis.placement.dim for axis in axes if isinstance(axis.placement, StridedShard))
    for dim, count in counts.items():
        if count > 1:
            return f"dimension {dim}: expected to be interleaved along one axis, found {count}"
    return None
