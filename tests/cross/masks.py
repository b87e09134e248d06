"""A recount of whole plans from element masks: boolean arrays and loops, sharing no code with the layouts."""

import itertools
import math
from fractions import Fraction

import numpy as np

import tdl
from tests.graph.unrolled import every_micro_batch

ITEM = {"float32": 4, "float64": 8, "int32": 4, "bool": 1}


def shares_below(ways, worker):
    """At every step, the shares of those who have the worker's digits before, and a lower one than 0, 1, ... there."""
    everyone = list(itertools.product(*map(range, ways)))
    shares = dict(zip(everyone, ways.shares or itertools.repeat(1), strict=False))
    return [
        [
            sum(shares[digits] for digits in everyone if digits[:at] == worker[:at] and digits[at] < n)
            for n in range(way + 1)
        ]
        for at, way in enumerate(ways)
    ]


def digit(index, extent, cutting, below):
    """The digit of an index at the last of the cutting steps, by the shares below every digit."""
    low, high = 0, extent
    for shares in map(below.__getitem__, cutting):
        way = len(shares) - 1
        cuts = [low + (high - low) * number // shares[-1] for number in shares]
        part = max(number for number in range(way) if cuts[number] <= index and cuts[number] < cuts[number + 1])
        low, high = cuts[part], cuts[part + 1]
    return part


class Recount:
    """Counts a plan element by element."""

    def __init__(self, plan):
        self.plan, self.ways = plan, plan.ways
        self.workers = list(itertools.product(*map(range, plan.ways)))
        self.matrix = np.zeros((len(self.workers),) * 2, dtype=np.int64)
        self.digits = {}
        self.fetches = {}
        self.often = every_micro_batch(plan.graph)

    def along(self, extent, step, worker, split=()):
        """Every index's digit at a step, where the dimension is split at some; steps of other axes do not cut it."""
        used = {self.ways.axes[at] for at in (step, *split)} if self.ways.axes else ()
        cutting = tuple(at for at in range(step + 1) if not used or self.ways.axes[at] in used)
        key = extent, cutting, worker[:step] if self.ways.shares else ()
        if key not in self.digits:
            below = shares_below(self.ways, worker)
            self.digits[key] = np.array([digit(x, extent, cutting, below) for x in range(extent)])
        return self.digits[key]

    def eligible(self, extent, step):
        """Whether no worker's cuts up to this step leave a part empty; steps of other axes cut nothing."""
        steps = [at for at in range(step + 1) if not self.ways.axes or self.ways.axes[at] == self.ways.axes[step]]
        leaves = math.prod(self.ways[at] for at in steps)
        return all(
            len(set(zip(*(self.along(extent, at, worker).tolist() for at in steps), strict=True))) == leaves
            for worker in self.workers
        )

    def count(self):
        for node in self.plan.graph.nodes:
            self.reads(node)
            self.stores(node, node.outputs)
        self.fetch()
        return self.matrix

    def fetch(self):
        for (*_, name, terms, times), masks in self.fetches.items():
            tensor, layout = self.plan.graph.tensors[name], self.plan.layouts[name]
            fixed = [i for i, p in enumerate(layout) if str(p) == "R" or (str(p) == "P+" and i in terms)]
            owned = [self.mask(tensor.shape, list(map(str, layout)), worker) for worker in self.workers]
            self.move(owned, masks, fixed, times * ITEM[tensor.dtype])

    def times(self, node):
        return self.plan.graph.micro_batches if node.name in self.often else 1

    def fours(self, node, name):
        """Which four of its forward node's backward nodes that read a tensor one is of; -1 for no backward node."""
        nodes = self.plan.graph.nodes
        alike = [other.name for other in nodes if other.forward == node.forward and name in other.inputs]
        return -1 if node.forward is None else alike.index(node.name) // 4

    def move(self, having, wanting, fixed, item):
        for (u, source), (w, target) in itertools.permutations(enumerate(self.workers), 2):
            if all(source[i] == target[i] for i in fixed):
                self.matrix[u, w] += int((having[u] & wanting[w]).sum()) * item

    def mask(self, shape, placements, worker):
        """Elements whose digit is the worker's at every step written S<dim>; `@1`: all of them on digit 1 alone."""
        mask = np.ones(shape, dtype=bool)
        for step, placement in enumerate(placements):
            if placement.startswith("@"):
                mask &= worker[step] == int(placement[1:])
            elif placement not in ("R", "P+"):
                dim = int(placement[1:])
                split = [at for at, other in enumerate(placements) if other == placement]
                mine = self.along(shape[dim], step, worker, split) == worker[step]
                mask &= mine.reshape([-1 if d == dim else 1 for d in range(len(shape))])
        return mask

    def described(self, node):
        shapes = tuple(self.plan.graph.tensors[name].shape for name in node.inputs)
        description = tdl.catalog[node.op].describe(tuple(map(len, shapes)), node.attrs)
        return description, description.extents(shapes, node.attrs)

    def computes(self, node, worker):
        """Whether the worker's digit is the group's at every step at which a group alone computes a node."""
        groups = [(n, choice) for n, choice in enumerate(self.plan.strategies[node.name]) if choice.startswith("@")]
        return all(worker[step] == int(choice[1:]) for step, choice in groups)

    def iterations(self, node, extents, worker):
        """The iterations of each split variable, as lists of contiguous runs of indices."""
        runs = {}
        for name in extents.keys() & set(self.plan.strategies[node.name]):
            split = [step for step, choice in enumerate(self.plan.strategies[node.name]) if choice == name]
            mine = [
                x
                for x in range(extents[name])
                if all(self.along(extents[name], step, worker, split)[x] == worker[step] for step in split)
            ]
            runs[name] = [
                [x for _, x in run] for _, run in itertools.groupby(enumerate(mine), lambda pair: pair[1] - pair[0])
            ]
        return runs

    def reach(self, index, extents, runs, extent):
        """A mask of one dimension: the clipped hull of what each combination of runs reaches, or everything."""
        names = [] if isinstance(index, tdl.Whole) else list(index.variables)
        if not set(names) & set(runs):
            return np.ones(extent, dtype=bool)
        reached = np.zeros(extent, dtype=bool)
        for combination in itertools.product(*(runs.get(n, [range(extents[n])]) for n in names)):
            if isinstance(index, tdl.Digits):
                for values in itertools.product(*combination):
                    at = 0
                    for name, value in zip(names, values, strict=True):
                        at = at * extents[name] + value
                    reached[at] = True
                continue
            factors = dict(index.terms)
            scale = math.lcm(*(Fraction(f).denominator for f in [*factors.values(), index.constant]))
            total = np.array([int(index.constant * scale)])
            for name, values in zip(names, combination, strict=True):
                total = np.add.outer(total, np.array(values) * int(factors[name] * scale)).ravel()
            points = total[total % scale == 0] // scale
            if len(points):
                reached[max(0, points.min()) : max(0, points.max() + 1)] = True
        return reached

    def reads(self, node):
        description, extents = self.described(node)
        for operand, name in enumerate(node.inputs):
            shape = self.plan.graph.tensors[name].shape
            masks = []
            for worker in self.workers:
                runs = self.iterations(node, extents, worker)
                mask = np.full(shape, self.computes(node, worker))
                for dim, extent in enumerate(shape):
                    line = np.zeros(extent, dtype=bool)
                    for access in description.accesses:
                        if access.operand == operand:
                            line |= self.reach(access.index[dim], extents, runs, extent)
                    mask &= line.reshape([-1 if d == dim else 1 for d in range(len(shape))])
                masks.append(mask)
            partial = [i for i, p in enumerate(self.plan.layouts[name]) if str(p) == "P+"]
            terms = tuple(i for i in partial if self.plan.strategies[node.name][i] == "+")
            key = (node.forward or node.name, self.fours(node, name), name, terms, self.times(node))
            if key in self.fetches:
                masks = [earlier | other for earlier, other in zip(self.fetches[key], masks, strict=True)]
            self.fetches[key] = masks

    def stores(self, node, names):
        description, extents = self.described(node)
        strategy = self.plan.strategies[node.name]
        for output, name in zip(description.outputs, names, strict=True):
            tensor = self.plan.graph.tensors[name]
            layout = list(map(str, self.plan.layouts[name]))
            summed = [i for i, choice in enumerate(strategy) if choice in (*description.reduction_variables, "+")]
            reducing = [i for i in summed if layout[i] != "P+"]
            same = [i for i, choice in enumerate(strategy) if choice == "*" or layout[i] == "P+"]
            computed = []
            for worker in self.workers:
                runs = self.iterations(node, extents, worker)
                mask = np.full(tensor.shape, self.computes(node, worker))
                for dim, index in enumerate(output.index):
                    line = self.reach(index, extents, runs, tensor.shape[dim])
                    mask &= line.reshape([-1 if d == dim else 1 for d in range(len(tensor.shape))])
                computed.append(mask)
            stored = [self.mask(tensor.shape, layout, worker) for worker in self.workers]
            item = ITEM[tensor.dtype] * (1 if name in self.plan.graph.accumulated else self.times(node))
            if not reducing or "R" not in layout:
                self.move(computed, stored, same, item)
                continue
            lies = [
                next((f"S{d}" for d, at in enumerate(output.index) if at.is_plain and at.variables == (choice,)), "R")
                for choice in strategy
            ]
            cuts = [lies[step] if self.ways.axes else "R" for step in range(len(self.ways))]
            for step in range(len(self.ways)):
                if step in reducing and layout[step] == "R":
                    later = [
                        lies[at]
                        for at in range(step, len(lies))
                        if self.ways.axes and self.ways.axes[at] != self.ways.axes[step]
                    ]
                    fits = [d for d, n in enumerate(tensor.shape) if self.eligible(n, step) and f"S{d}" not in later]
                    ways = math.prod(self.ways[: step + 1])
                    even = [d for d in fits if tensor.shape[d] % ways == 0]
                    cuts[step] = f"S{(even or fits)[0]}" if fits else "@0"
                elif step in reducing or step in same:
                    cuts[step] = layout[step]
            shares = [m & self.mask(tensor.shape, cuts, w) for m, w in zip(computed, self.workers, strict=True)]
            alike = same if self.ways.shares else [i for i in range(len(self.ways)) if i not in reducing]
            self.move(computed, shares, alike, item)
            apart = [i for i in same if not layout[i].startswith("S")]  # unlike workers cut the same step elsewhere
            self.move(shares, stored, apart, item)
