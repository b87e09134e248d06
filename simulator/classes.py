"""Symmetry classes of workers, messages and links. One member of each class is simulated for all.

The classes are the coarsest equitable partition: all workers of a class have the same number of messages of each class,
and all links of a class carry the same number. So the members of a class start and end together, and the load of a link
follows from the sizes of the classes (docs/explanation/classes.md). The partition is computed by colour refinement:
Weisfeiler and Leman 1968; Grohe et al., "Dimension reduction via colour refinement" (ESA 2014).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from planner.layout import Collective
from planner.layout.communication import Group
from planner.program.lower import Likeness, by_value, numbered
from topologies import Machine
from topologies.traffic import choices, fastest

Numbers = NDArray[np.int64]

DIGITS = 12
"""Loads that agree in this many digits count as equal. Sums in another order differ by rounding."""


@dataclass(frozen=True, eq=False)
class WorkerClasses:
    """The class of each worker, of each pair of workers [from, to], and of each resource. Classes are numbered from 0.

    They are numbered in the order of their first members. Pairs without messages have class -1. `groups` has the groups
    of each collective and element size in bytes, by class.
    """

    workers: Numbers
    pairs: Numbers
    resources: Numbers
    groups: Mapping[tuple[Collective, int], tuple[tuple[Group, ...], ...]]

    @cached_property
    def representatives(self) -> Numbers:
        """The first worker of each class: [class]."""
        return np.unique(self.workers, return_index=True)[1]

    @cached_property
    def ends(self) -> Numbers:
        """The first pair of each class: [class, (from, to)]."""
        numbers, first = np.unique(self.pairs, return_index=True)
        return np.stack(np.unravel_index(first[numbers >= 0], self.pairs.shape), axis=1)

    @cached_property
    def of_resource(self) -> list[int]:
        """The class of each resource, as a list."""
        return list(map(int, self.resources))

    @cached_property
    def sizes(self) -> tuple[Numbers, Numbers, Numbers]:
        """The number of workers, of pairs and of resources in each class."""
        return np.bincount(self.workers), np.bincount(self.pairs[self.pairs >= 0]), np.bincount(self.resources)

    def capacities(self, machine: Machine) -> list[float]:
        """Return the capacity of each class of resources."""
        first = np.unique(self.resources, return_index=True)[1]
        return [machine.resources[number].capacity for number in first.tolist()]

    def of_pairs(self, values: Numbers) -> Numbers:
        """Return the value of each pair's class, 0 for pairs without messages: [from, to]."""
        return np.append(values, 0)[self.pairs]

    def groups_of(self, collective: Collective, item_bytes: int) -> tuple[tuple[Group, ...], ...]:
        """Return the groups of a collective on elements of `item_bytes`, by class."""
        return self.groups.get((collective, item_bytes)) or tuple((group,) for group in collective.groups)

    def folded(self, uses: Iterable[tuple[int, float]], members: int) -> tuple[tuple[int, float], ...]:
        """Return how much all members of a class use one resource of each class, given the uses of one member."""
        total: defaultdict[int, float] = defaultdict(float)
        for resource, amount in uses:
            total[self.of_resource[resource]] += amount
        sizes = self.sizes[2]
        return tuple((number, amount * members / int(sizes[number])) for number, amount in sorted(total.items()))


def each_alone(workers: int, machine: Machine) -> WorkerClasses:
    """Return classes with one member each. Results must not depend on whether these or `classes` are used."""
    return WorkerClasses(
        np.arange(workers), np.arange(workers**2).reshape(workers, workers), np.arange(len(machine.resources)), {}
    )


def classes(likeness: Likeness, machine: Machine, *, library: bool) -> WorkerClasses:
    """Return the classes of a plan's workers, with worker w on device w. With a `library`, it runs the collectives."""
    return _Refinement(likeness, machine, library).classes()


class _Refinement:
    """Colours of workers, pairs, groups and resources, refined by each other's until they are stable.

    Pairs are listed [from, to]. The initial colours of pairs and groups contain everything that does not depend on
    others.
    """

    def __init__(self, likeness: Likeness, machine: Machine, library: bool) -> None:
        devices = machine.devices[: len(likeness.workers)]
        self._likeness = likeness
        self._workers = numbered(likeness.workers, by_value([id(device.spec) for device in devices]))
        self._resources = by_value([(resource.kind, resource.capacity) for resource in machine.resources])
        self._memory_of = [machine.memories[device.memory].resource for device in devices]
        self._processor_of = [-1 if device.processor is None else device.processor for device in devices]
        self._sources, self._targets = np.nonzero(likeness.pairs)
        routed = likeness.apart if library else likeness.pairs > 0
        self._pairs, self._crossed, self._amounts = _routes(machine, routed, (self._sources, self._targets))
        self._pairs = numbered(likeness.pairs[self._sources, self._targets], self._pairs)
        self._loads = list(_loads(likeness, machine)) if library else []
        self._groups = by_value([load.told for load in self._loads])

    def classes(self) -> WorkerClasses:
        before = 0
        while (after := self._refine()) != before:
            before = after
        pairs = np.full(self._likeness.pairs.shape, -1, dtype=np.int64)
        pairs[self._sources, self._targets] = by_value(self._pairs.tolist())
        groups: defaultdict[tuple[Collective, int], defaultdict[int, list[Group]]]
        groups = defaultdict(lambda: defaultdict(list))
        for load, color in self._colored_loads():
            groups[load.collective][color].append(load.group)
        return WorkerClasses(
            by_value(self._workers.tolist()),
            pairs,
            by_value(self._resources.tolist()),
            {collective: tuple(map(tuple, of_color.values())) for collective, of_color in groups.items()},
        )

    def _refine(self) -> int:
        """Refine all colours once by those of the others; return the number of colours."""
        workers, resources = self._workers, np.append(self._resources, -1)  # -1: no resource
        self._pairs = numbered(self._pairs, workers[self._sources], workers[self._targets], *resources[self._crossed])
        self._groups = by_value(
            [
                (color, *sorted(workers[[*load.group.workers]].tolist()), *load.colored(resources))
                for load, color in self._colored_loads()
            ]
        )
        members = [(w, color) for load, color in self._colored_loads() for w in load.group.workers]
        self._workers = by_value(
            list(
                zip(
                    workers.tolist(),
                    resources[self._memory_of].tolist(),
                    resources[self._processor_of].tolist(),
                    _multisets(self._sources, self._pairs, len(workers)),
                    _multisets(self._targets, self._pairs, len(workers)),
                    _multisets(*_columns(members), len(workers)),
                    strict=True,
                )
            )
        )
        self._resources = by_value(list(self._used(len(self._resources))))
        return sum(len(np.unique(c)) for c in (self._workers, self._pairs, self._groups, self._resources))

    def _colored_loads(self) -> Iterable[tuple[_Load, int]]:
        return zip(self._loads, self._groups.tolist(), strict=True)

    def _used(self, count: int) -> Iterable[Hashable]:
        """Yield, for each resource, its colour and the colours of what uses it."""
        crossing = self._crossed < count
        pairs = numbered(np.broadcast_to(self._pairs, crossing.shape)[crossing], self._amounts[crossing])
        loads = [(r, color, by) for load, color in self._colored_loads() for r, by in load.uses]
        amounts = by_value([(color, by) for _, color, by in loads])
        at_home = [*enumerate(self._memory_of), *enumerate(self._processor_of)]
        homes = [(resource, int(self._workers[worker])) for worker, resource in at_home if resource >= 0]
        return zip(
            self._resources.tolist(),
            _multisets(self._crossed[crossing], pairs, count),
            _multisets(np.array([r for r, _, _ in loads], dtype=np.int64), amounts, count),
            _multisets(*_columns(homes), count),
            strict=True,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Load:
    """What one group's operation on elements of a given size uses, in units per byte of payload.

    `told` contains everything that distinguishes it apart from the resources.
    """

    collective: tuple[Collective, int]
    group: Group
    told: Hashable
    uses: tuple[tuple[int, float], ...]

    def colored(self, resources: Numbers) -> Iterable[tuple[int, float]]:
        """Return the colours of the resources with the amounts used, sorted."""
        return sorted((int(resources[resource]), amount) for resource, amount in self.uses)


def _loads(likeness: Likeness, machine: Machine) -> Iterable[_Load]:
    """Yield the load of each group of each collective."""
    for number, operation in enumerate(likeness.collectives):
        collective, item_bytes = operation
        for group in collective.groups:
            kind, _ = collective.operation
            nbytes = group.elements * item_bytes
            choice = fastest(choices(machine, kind, group.workers), nbytes)
            speed = choice.alone.idle_s(nbytes), choice.alone.s_per_byte, choice.bandwidth_share
            uses: defaultdict[int, float] = defaultdict(float)
            for (source, target), share in choice.pattern.flows.items():
                uses[machine.memories[machine.devices[target].memory].resource] += share
                for resource, amount in machine.route(source, target).uses:
                    uses[resource] += share * amount
            rounded = tuple((resource, float(f"{amount:.{DIGITS}g}")) for resource, amount in uses.items())
            told = (number, group.elements, choice.algorithm, *(f"{value:.{DIGITS}g}" for value in speed))
            yield _Load(operation, group, told, rounded)


def _routes(machine: Machine, routed: NDArray[np.bool_], pairs: tuple[Numbers, Numbers]) -> tuple[Numbers, ...]:
    """Return the initial colours of pairs, the resources that each crosses, and colours of the amounts: [hop, pair].

    Pairs that are not `routed` cross nothing: their resource is one past the last.
    """
    told, crossed = list[Hashable](), list[tuple[tuple[int, float], ...]]()
    for source, target in zip(*(ends.tolist() for ends in pairs), strict=True):
        route = machine.route(source, target) if routed[source, target] else None
        told.append(route and (route.latency_s, route.half_bandwidth_bytes))
        crossed.append(route.uses if route else ())
    longest, nothing = max(map(len, crossed), default=0), ((len(machine.resources), 0.0),)
    table = np.array([(*uses, *nothing * (longest - len(uses))) for uses in crossed])
    table = table.reshape(len(crossed), longest, 2).transpose(2, 1, 0)
    amounts = by_value(table[1].ravel().tolist()).reshape(table[1].shape)
    return numbered(by_value(told), *amounts), table[0].astype(np.int64), amounts


def _multisets(owners: Numbers, colors: Numbers, count: int) -> list[bytes]:
    """Return the sorted colours of each owner, as bytes."""
    order = np.lexsort((colors, owners))
    bounds = np.searchsorted(owners[order], np.arange(count + 1))
    return [colors[order[begin:end]].tobytes() for begin, end in pairwise(bounds.tolist())]


def _columns(rows: Sequence[tuple[int, int]]) -> tuple[Numbers, Numbers]:
    table = np.array(rows, dtype=np.int64).reshape(len(rows), 2)
    return table[:, 0], table[:, 1]
