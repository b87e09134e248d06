"""Element masks: every element of every worker, one at a time; nothing here comes from the code under test."""

import math
from functools import cache
from itertools import product

import numpy as np

import tdl
from planner.layout import Shard


def shares_below(ways, prefix):
    """The shares of all workers whose digits begin so, added up one by one."""
    everyone = workers(ways)
    shares = ways.shares or [1] * len(everyone)
    return sum(share for worker, share in zip(everyone, shares, strict=True) if worker[: len(prefix)] == prefix)


@cache
def digit_table(extent, ways, worker=None):
    """[index, step]: the part of each nested split that an index falls in, as this worker cuts."""
    table = np.zeros((extent, len(ways)), dtype=int)
    worker = worker or (0,) * len(ways)

    def cut(low, high, step):
        if step == len(ways):
            return
        below = [shares_below(ways, (*worker[:step], j)) for j in range(ways[step])]
        for j in range(ways[step]):
            a = low + (high - low) * sum(below[:j]) // sum(below)
            b = low + (high - low) * sum(below[: j + 1]) // sum(below)
            table[a:b, step] = j
            cut(a, b, step + 1)

    cut(0, extent, 0)
    return table


def eligible(extent, ways, step):
    """Whether every worker's cuts, up to this step, give every digit an index."""
    leaves = math.prod(ways.factors[: step + 1])
    return all(
        len({tuple(row) for row in digit_table(extent, ways, worker)[:, : step + 1].tolist()}) == leaves
        for worker in workers(ways)
    )


def workers(ways):
    return list(product(*map(range, ways)))


def owned(shape, layout, ways, worker):
    mask = np.ones(shape, dtype=bool)
    for step, placement in enumerate(layout):
        if isinstance(placement, Shard):
            along = digit_table(shape[placement.dim], ways, worker)[:, step] == worker[step]
            mask &= along.reshape([-1 if d == placement.dim else 1 for d in range(len(shape))])
    return mask


def iterations(signature, strategy, ways, worker):
    """Which values of every index variable a worker runs through."""
    return {
        name: [
            x
            for x, own in enumerate(digit_table(extent, ways, worker).tolist())
            if all(own[step] == worker[step] for step, choice in enumerate(strategy) if choice == name)
        ]
        for name, extent in signature.extents.items()
    }


def contiguous(values):
    runs = []
    for x in values:
        if runs and runs[-1][1] == x:
            runs[-1][1] = x + 1
        else:
            runs.append([x, x + 1])
    return runs


def reached(index, extent, strategy, ranges, extents):
    """The indices of one dimension that an index expression reaches."""
    names = () if isinstance(index, tdl.Whole) else index.variables
    if not set(names) & set(strategy):
        return set(range(extent))
    if isinstance(index, tdl.Digits):
        indices = set()
        for values in product(*(ranges[name] for name in names)):
            at = 0
            for name, value in zip(names, values, strict=True):
                at = at * extents[name] + value
            indices.add(at)
        return indices
    indices = set()
    for bounds in product(*(contiguous(ranges[name]) for name in names)):
        low, high = index.image(dict(zip(names, map(tuple, bounds), strict=True)))
        indices |= set(range(max(low, 0), min(high, extent)))
    return indices


def needed(signature, operand, strategy, ways, worker):
    shape = signature.shapes[operand]
    ranges = iterations(signature, strategy, ways, worker)
    mask = np.ones(shape, dtype=bool)
    for dim, extent in enumerate(shape):
        inside = set()
        for access in signature.description.accesses:
            if access.operand == operand:
                inside |= reached(access.index[dim], extent, strategy, ranges, signature.extents)
        along = np.array([x in inside for x in range(extent)], dtype=bool)
        mask &= along.reshape([-1 if d == dim else 1 for d in range(len(shape))])
    return mask


def fetched(shape, readers, layout, ways):
    """Elements fetched when `readers` [(signature, operand, strategy)] share one fetch of a tensor."""
    total = 0
    for worker in workers(ways):
        need = np.zeros(shape, dtype=bool)
        for signature, operand, strategy in readers:
            need |= needed(signature, operand, strategy, ways, worker)
        total += int((need & ~owned(shape, layout, ways, worker)).sum())
    return total


def produced(signature, output, strategy, ways, worker):
    shape = signature.outputs[output]
    ranges = iterations(signature, strategy, ways, worker)
    mask = np.ones(shape, dtype=bool)
    for dim, index in enumerate(signature.description.outputs[output].index):
        inside = reached(index, shape[dim], strategy, ranges, signature.extents)
        along = np.array([x in inside for x in range(shape[dim])], dtype=bool)
        mask &= along.reshape([-1 if d == dim else 1 for d in range(len(shape))])
    return mask


def share(signature, output, strategy, layout, ways, worker):  # noqa: PLR0917
    """What a worker reduces of an output that is stored replicated at some step."""
    shape = signature.outputs[output]
    mask = produced(signature, output, strategy, ways, worker)
    for step, choice in enumerate(strategy):
        reducing = choice in signature.description.reduction_variables
        if not reducing and choice != "*":
            continue
        dim = layout[step].dim if isinstance(layout[step], Shard) else None
        if dim is None and reducing:
            fits = [d for d, n in enumerate(shape) if eligible(n, ways, step)]
            if not fits and worker[step]:
                return np.zeros(shape, dtype=bool)
            dim = fits[0] if fits else None
        if dim is not None:
            along = digit_table(shape[dim], ways, worker)[:, step] == worker[step]
            mask = mask & along.reshape([-1 if d == dim else 1 for d in range(len(shape))])
    return mask


def moved(signature, output, strategy, layout, ways):
    """Elements moved to store an output."""
    shape, everyone = signature.outputs[output], workers(ways)
    computed = {w: produced(signature, output, strategy, ways, w) for w in everyone}
    own = {w: owned(shape, layout, ways, w) for w in everyone}
    reducing = [s for s, choice in enumerate(strategy) if choice in signature.description.reduction_variables]
    same = [s for s, choice in enumerate(strategy) if choice == "*"]
    replicates = any(not isinstance(placement, Shard) for placement in layout)

    def pulled(wanted, fixed):
        return sum(
            int((wanted[w] & computed[u]).sum())
            for w in everyone
            for u in everyone
            if u != w and all(u[step] == w[step] for step in fixed)
        )

    if reducing and not replicates:
        return pulled(own, same)
    shares = {w: share(signature, output, strategy, layout, ways, w) if reducing else computed[w] for w in everyone}
    alike = same if ways.shares else [s for s in range(len(ways)) if s not in reducing]
    total = pulled(shares, alike) if reducing else 0
    return total + sum(int((own[w] & ~shares[w]).sum()) for w in everyone)
