"""What each worker holds, needs and produces, and the resulting exchanges (docs/explanation/transfers.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil, gcd, prod
from typing import Any

import tdl
from planner.layout.communication import Exchange
from planner.layout.region import (
    REMEMBERED,
    Region,
    Runs,
    Signature,
    eligible,
    first_to_share,
    intersect,
    is_free,
    iteration_runs,
    normalize,
    nothing,
    runs_of_workers,
)
from planner.layout.ways import REPLICATE, At, Layout, Partial, Placement, Replicate, Shard, Ways
from tdl.traits import traits_of
from topologies.kernels import ALIGNED, Product, Role, Window

Strategy = tuple[str, ...]
"""One choice per step.

An index variable; `*` (every part computes the same); `+` (every part computes with its terms of partial operands, and
gets a term of the result); or `@0`, `@1`, ... (only that group of workers computes).
"""

EVERYWHERE = "*"
TERMS = "+"
AT = "@"

SMALL_SUM = 1 << 12
"""Up to this many elements of a sum, two workers send each other all of their terms.

This moves as many bytes as adding up halves and sending them back, in half as many messages, with twice the additions.
"""


def owned(shape: Sequence[int], layout: Layout, ways: Ways, worker: int) -> Region:
    """Return the region that a worker holds of a tensor of this shape and layout."""
    return owned_by_all(tuple(shape), layout, ways)[worker]


@lru_cache(REMEMBERED)
def owned_by_all(shape: tuple[int, ...], layout: Layout, ways: Ways) -> tuple[Region, ...]:
    """Return the region of a tensor that each worker holds: [worker]."""
    steps_of = [tuple(step for step, p in enumerate(layout) if p == Shard(dim)) for dim in range(len(shape))]
    dimensions = (runs_of_workers(extent, steps, ways) for extent, steps in zip(shape, steps_of, strict=True))
    groups = [(step, placement.group) for step, placement in enumerate(layout) if isinstance(placement, At)]
    return _regions(dimensions, shape, _in_groups(groups, ways))


def _regions(dimensions: Iterable[Sequence[Runs]], shape: Sequence[int], flags: tuple[bool, ...]) -> tuple[Region, ...]:
    """Return every worker's region, given its runs of each dimension; empty for workers whose flag is not set."""
    regions = zip(*dimensions, strict=True) if shape else ((),) * len(flags)
    return tuple(region if flag else nothing(shape) for region, flag in zip(regions, flags, strict=True))


def _in_groups(groups: Sequence[tuple[int, int]], ways: Ways) -> tuple[bool, ...]:
    """Return True for each worker that belongs to all of the given (step, group) pairs: [worker]."""
    return tuple(all(own[step] == group for step, group in groups) for own in ways.digits_of_workers())


def can_split(signature: Signature, variable: str, ways: Ways, step: int) -> bool:
    """Return True if a step can split an operator along a variable.

    Every part then has an iteration, or a single part is meant to run it.
    """
    return variable == tdl.ON_ONE or eligible(signature.extents[variable], ways, step)


def group_of(choice: str) -> int | None:
    """Return the only group that computes, by a strategy's choice at a step; None for any other choice."""
    return int(choice[1:]) if choice.startswith(AT) and choice[1:].isdecimal() else None


@lru_cache(REMEMBERED)
def computing(strategy: Strategy, ways: Ways) -> tuple[bool, ...]:
    """Return True for each worker in the groups that compute a node: [worker]."""
    groups = [(step, group) for step, choice in enumerate(strategy) if (group := group_of(choice)) is not None]
    return _in_groups(groups, ways)


def split_steps(strategy: Strategy) -> dict[str, tuple[int, ...]]:
    """Return the steps at which a strategy splits each index variable, for the variables that it splits."""
    names = (name for name in dict.fromkeys(strategy) if name not in (EVERYWHERE, TERMS) and group_of(name) is None)
    return {name: tuple(step for step, choice in enumerate(strategy) if choice == name) for name in names}


def split_runs(signature: Signature, strategy: Strategy, ways: Ways, worker: int) -> dict[str, Runs]:
    """Return the worker's runs of every index variable that the strategy splits."""
    return {
        name: iteration_runs(signature.extents[name], steps, ways, worker)
        for name, steps in split_steps(strategy).items()
    }


def reached(index: tdl.Index, extents: Mapping[str, int], runs: Mapping[str, Runs], extent: int) -> Runs:
    """Return the indices of a dimension that an index expression reaches from the given runs of split variables.

    A dimension whose index contains no split variable is needed whole. Otherwise the result is the union over the
    contiguous runs of the hull of their images, clipped to the dimension.
    """
    if isinstance(index, tdl.Whole) or not any(name in runs for name in index.variables):
        return ((0, extent),)
    if isinstance(index, tdl.Digits):
        return _reached_digits(index.variables, extents, runs)
    per_variable = [runs.get(name, ((0, extents[name]),)) for name in index.variables]
    images = (index.image(dict(zip(index.variables, bounds, strict=True))) for bounds in product(*per_variable))
    return normalize((max(low, 0), min(high, extent)) for low, high in images)


def _reached_digits(variables: Iterable[str], extents: Mapping[str, int], runs: Mapping[str, Runs]) -> Runs:
    """Return the exact image of a mixed-radix tuple: every combination of the variables' runs."""
    image: Runs = ((0, 1),)
    for name in variables:
        radix = extents[name]
        inner = runs.get(name, ((0, radix),))
        if inner == ((0, radix),):
            image = tuple((start * radix, stop * radix) for start, stop in image)
        else:
            image = normalize(
                (value * radix + low, value * radix + high)
                for start, stop in image
                for value in range(start, stop)
                for low, high in inner
            )
    return image


@lru_cache(REMEMBERED)
def needed(signature: Signature, operand: int, strategy: Strategy, ways: Ways) -> tuple[Region, ...]:
    """Return what each worker needs of an operand: a product over its dimensions, united over the accesses."""
    shape = signature.shapes[operand]
    indices = [access.index for access in signature.description.accesses if access.operand == operand]
    return _reached_by_all(signature, tuple(zip(*indices, strict=True)), shape, strategy, ways)


def produced(signature: Signature, output: int, strategy: Strategy, ways: Ways) -> tuple[Region, ...]:
    """Return the elements of an output that each worker computes (whole values or partial results)."""
    indices = signature.description.outputs[output].index
    return _reached_by_all(signature, [(index,) for index in indices], signature.outputs[output], strategy, ways)


def _reached_by_all(
    signature: Signature, indices: Sequence[Sequence[tdl.Index]], shape: Sequence[int], strategy: Strategy, ways: Ways
) -> tuple[Region, ...]:
    """Return what each worker reaches of a tensor, given the indices of each dimension; many workers reach the same."""
    steps_of = split_steps(strategy).items()
    split = {name: runs_of_workers(signature.extents[name], steps, ways) for name, steps in steps_of}
    dimensions = (
        reached_along_dimension(of_dim, extent, signature.extents, split, ways)
        for of_dim, extent in zip(indices, shape, strict=True)
    )
    return _regions(dimensions, shape, computing(strategy, ways))


def reached_along_dimension(
    indices: Sequence[tdl.Index],
    extent: int,
    extents: Mapping[str, int],
    split: Mapping[str, Sequence[Runs]],
    ways: Ways,
) -> Sequence[Runs]:
    """Return what each worker reaches of a dimension, given its runs of split variables."""
    names = [name for name in split if any(name in index.variables for index in indices)]
    if len(names) == len(indices) == 1 and indices[0].is_plain and extents[names[0]] == extent:
        return split[names[0]]
    runs = list(zip(*(split[name] for name in names), strict=True)) or [()] * ways.workers
    results = {
        key: normalize(
            run for index in indices for run in reached(index, extents, dict(zip(names, key, strict=True)), extent)
        )
        for key in dict.fromkeys(runs)
    }
    return [results[key] for key in runs]


def fetch(
    shape: tuple[int, ...], layout: Layout, targets: tuple[Region, ...], ways: Ways, terms: frozenset[int] = frozenset()
) -> Exchange:
    """Return the exchange by which workers fetch what they need of a stored tensor.

    A replicated operand is read from the replica that shares the reader's digits at the replicated steps. The terms of
    a partial operand are summed on the way, except at the steps `terms`, where the reader computes with its own terms.
    """
    partial = steps_with(layout, Partial)
    fixed = steps_with(layout, Replicate) | (partial & terms)
    reducer = "Sum" if partial - terms else None
    return Exchange(ways, owned_by_all(shape, layout, ways), targets, fixed, reducer)


def steps_with(layout: Layout, kind: type[Placement]) -> frozenset[int]:
    """Return the steps at which a layout has a placement of this kind."""
    return frozenset(step for step, placement in enumerate(layout) if isinstance(placement, kind))


@dataclass(frozen=True, slots=True, eq=False)
class Production:
    """An output as its operator leaves it: what each worker has computed, and the steps at which it must be reduced.

    `same` are the steps at which every part computes the same. `split` gives, per step, the output dimension that the
    strategy's choice splits, if any.
    """

    shape: tuple[int, ...]
    regions: tuple[Region, ...]
    split: Layout
    reducing: frozenset[int]
    same: frozenset[int]
    reducer: str | None


@lru_cache(REMEMBERED)
def production(signature: Signature, output: int, strategy: Strategy, ways: Ways) -> Production:
    """Return how a strategy leaves an output."""
    summed = signature.description.reduction_variables
    dims = {index: dim for dim, index in enumerate(signature.description.outputs[output].index) if index.is_plain}
    along = {name: Shard(dim) for index, dim in dims.items() for name in index.variables}
    return Production(
        signature.outputs[output],
        produced(signature, output, strategy, ways),
        tuple(along.get(choice, REPLICATE) for choice in strategy),
        frozenset(step for step, choice in enumerate(strategy) if choice in summed or choice == TERMS),
        frozenset(step for step, choice in enumerate(strategy) if choice == EVERYWHERE),
        "Sum" if TERMS in strategy else signature.description.outputs[output].reducer,
    )


@lru_cache(REMEMBERED)
def store(output: Production, layout: Layout, ways: Ways) -> tuple[Exchange, ...]:
    """Return the exchanges that take an output from where it is computed to where it is stored.

    There is no exchange if it is stored as computed. There is one hop if nothing is reduced, nothing is stored
    replicated, or two workers send each other their terms of a small sum. Otherwise partial results are reduced to
    shares, then the shares are fetched. At a step with a partial placement every worker keeps its own term.
    """
    stored = owned_by_all(output.shape, layout, ways)
    partial = steps_with(layout, Partial)
    reducing, same = output.reducing - partial, output.same | partial
    if not reducing:
        return () if output.regions == stored else (Exchange(ways, output.regions, stored, same),)
    if not steps_with(layout, Replicate):
        return (Exchange(ways, output.regions, stored, same, output.reducer),)
    kept = same if ways.shares else frozenset(range(len(ways))) - reducing  # else nobody else has part of a share
    is_pair = not ways.shares and prod(ways[step] for step in reducing) == 2
    if output.regions == stored and is_pair and prod(output.shape) <= SMALL_SUM:
        return (Exchange(ways, output.regions, stored, kept, output.reducer),)
    cuts = owned_by_all(output.shape, share_layout(output, layout, ways), ways)
    shares = tuple(map(intersect, output.regions, cuts))
    reduction = Exchange(ways, output.regions, shares, kept, output.reducer)
    apart = same - steps_with(layout, Shard)  # shares are cut there, by shares of workers that may differ
    return (reduction,) if shares == stored else (reduction, Exchange(ways, shares, stored, apart))


def share_layout(output: Production, layout: Layout, ways: Ways) -> Layout:
    """Return the layout of the shares of partial results, from which they are fetched to where they are stored.

    At a reducing step, shares are cut along the stored dimension. If that is replicated, or another axis is in the way,
    they are cut along the first dimension to share (if there is none, the worker with digit 0 reduces). At a `*` step,
    the share is the stored part; at a step that splits an output variable, it is what was produced.
    """
    split = [[step for step, p in enumerate(output.split) if p == Shard(dim)] for dim in range(len(output.shape))]

    def at(step: int) -> Placement:
        stored = layout[step]
        if isinstance(stored, Shard) and not is_free(ways, step, split[stored.dim]):
            stored = REPLICATE
        if step in output.reducing and isinstance(stored, Replicate):
            dim = first_to_share(output.shape, ways, step, split)
            return At(0) if dim is None else Shard(dim)
        return stored if step in output.reducing or step in output.same else output.split[step]

    return tuple(at(step) for step in range(len(ways)))


# Matrix products among operators: their shapes, read off the descriptions, for the price of a kernel.
#
# Of two operands, variables that index only the first count rows (m), only the second columns (n), summed variables
# k, and all others a batch. Of two variables in one index, which form a window, the one with the smaller extent
# counts taps, the other pixels.


PRODUCTS = ("matmul", "convolution")
OPERANDS = 2
ROLES: tuple[Role, ...] = ("batch", "m", "n", "k")


@dataclass(frozen=True, slots=True)
class Contraction:
    """An operator as a product: the role of every variable, and (taps, pixels) of every window dimension.

    `density` is the fraction of iterations that count, since strides leave gaps in a gradient; `dense` is that of
    `Window`. Rows of the operands and of the result are contiguous in memory along variables of the roles in
    `contiguous`. `grouped` has a role and a number of groups: the iterations of the role are divided evenly among the
    groups, each of which is one product.
    """

    roles: Mapping[str, Role]
    contiguous: frozenset[Role]
    windows: tuple[tuple[str, str], ...]
    density: float
    dense: bool
    grouped: tuple[Role, int] | None = None

    def product(self, extents: Mapping[str, int]) -> Product:
        """Return the product over these numbers of iterations of each variable."""
        totals = {role: prod(extents[name] for name, own in self.roles.items() if own == role) for role in ROLES}
        totals["k"] = ceil(totals["k"] * self.density)
        if self.grouped is not None:
            role, groups = self.grouped
            totals["batch"] = min(totals["batch"], totals[role])  # a row has one group
            totals[role] = ceil(totals[role] / groups)
        aligned = gcd(ALIGNED, *(totals[role] for role in self.contiguous if totals[role] >= ALIGNED))
        return Product(totals["batch"], totals["m"], totals["n"], totals["k"], self._window(extents), aligned)

    def _window(self, extents: Mapping[str, int]) -> Window | None:
        if not self.windows:
            return None
        taps, pixels = zip(*self.windows, strict=True)
        return Window(
            taps=tuple(extents[name] for name in taps),
            pixels=tuple(extents[name] for name in pixels),
            taps_in=self.roles[taps[0]],
            pixels_in=self.roles[pixels[0]],
            dense=self.dense,
        )


@lru_cache(REMEMBERED)
def contraction(signature: Signature) -> Contraction | None:
    """Return an operator as a product of two operands; None if it is not one."""
    description = signature.description
    first, second, *more = [*_variables_read(description), set[str](), set[str]()]
    grouped = traits_of(description).grouped
    if signature.category not in PRODUCTS or not first or not second or len(more) > OPERANDS + (grouped is not None):
        return None
    summed = description.reduction_variables
    roles = {name: _role(name in first, name in second, name in summed) for name in description.variables}
    shared: tuple[Role, int] | None = None
    if grouped is not None:
        (row, *_), group = grouped
        roles[group], shared = "batch", (roles[row], signature.extents[group])
    indices = (index for access in description.accesses for index in access.index)
    two_variables = (index for index in indices if isinstance(index, tdl.Affine) and len(index.variables) == 2)
    window_indices = list(dict.fromkeys(two_variables))
    windows = tuple(_taps_and_pixels(index, signature.extents) for index in window_indices)
    density = prod(1 / index.denominator for index in window_indices)
    dense = all(abs(factor) == 1 for index in window_indices for _, factor in index.terms)
    contiguous = frozenset(() if windows else (roles[name] for name in _contiguous(description)))
    return Contraction(roles, contiguous, windows, density, dense, shared)


def share_of_groups(signature: Signature, held: Mapping[str, Any]) -> Any:
    """Return the share of a grouped product's operations for iterations `held` of each variable; 1 for other operators.

    A row has one group, so workers with fewer groups have fewer rows: as many as all have on average.
    """
    grouped = traits_of(signature.description).grouped
    return 1.0 if grouped is None else held[grouped[1]] / signature.extents[grouped[1]]


def _contiguous(description: tdl.Description) -> set[str]:
    """Return the variables that index the last dimensions of both operands and of the result."""
    accesses = [access for access in description.accesses if access.operand < OPERANDS]
    read = {name for access in accesses for last in access.index[-1:] for name in last.variables}
    return read | set(description.output_variables[-1:])


def _variables_read(description: tdl.Description) -> list[set[str]]:
    read: dict[int, set[str]] = {}
    for access in description.accesses:
        read.setdefault(access.operand, set()).update(name for index in access.index for name in index.variables)
    return [read[operand] for operand in sorted(read)]


def _role(in_first: bool, in_second: bool, summed: bool) -> Role:
    if summed:
        return "k"
    return "batch" if in_first == in_second else "m" if in_first else "n"


def _taps_and_pixels(index: tdl.Affine, extents: Mapping[str, int]) -> tuple[str, str]:
    taps, pixels = sorted(index.variables, key=extents.__getitem__)
    return taps, pixels
