"""Classes of workers, messages and links that are alike: one of each is simulated for all of its class.

Classes are the coarsest equitable partition that tells apart what a plan or a machine does: every worker of a class
has as many messages of each class, every link of one carries as many. So all of a class start and end together, and
what it loads a link with is known from the sizes of classes (docs/explanation/classes.md). Found by refinement of
colours: Weisfeiler and Leman 1968; Grohe and others, "Dimension reduction via colour refinement" (ESA 2014).
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
from planner.program.likeness import Likeness, by_value, numbered
from topologies import Machine
from topologies.collectives import choices, fastest

Numbers = NDArray[np.int64]

DIGITS = 12
"""Loads that agree to so many digits are equal: sums in another order are."""


@dataclass(frozen=True, eq=False)
class WorkerClasses:
    """The class of every worker, of every pair of workers, [from, to], and of every resource; from 0, by first member.

    Pairs without messages have class -1. `groups` are those of a collective on elements of so many bytes, by class.
    """

    workers: Numbers
    pairs: Numbers
    resources: Numbers
    groups: Mapping[tuple[Collective, int], tuple[tuple[Group, ...], ...]]

    @cached_property
    def representatives(self) -> Numbers:
        """The first worker of each class."""
        return np.unique(self.workers, return_index=True)[1]

    @cached_property
    def ends(self) -> Numbers:
        """The first pair of each class, [class, (from, to)]."""
        numbers, first = np.unique(self.pairs, return_index=True)
        return np.stack(np.unravel_index(first[numbers >= 0], self.pairs.shape), axis=1)

    @cached_property
    def of_resource(self) -> list[int]:
        """The class of every resource, as a list."""
        return list(map(int, self.resources))

    @cached_property
    def sizes(self) -> tuple[Numbers, Numbers, Numbers]:
        """How many workers, pairs and resources each class has."""
        return np.bincount(self.workers), np.bincount(self.pairs[self.pairs >= 0]), np.bincount(self.resources)

    def capacities(self, machine: Machine) -> list[float]:
        """Return the capacity of a resource of each class."""
        first = np.unique(self.resources, return_index=True)[1]
        return [machine.resources[number].capacity for number in first.tolist()]

    def of_pairs(self, values: Numbers) -> Numbers:
        """Return the value of every pair's class, 0 of those without messages, [from, to]."""
        return np.append(values, 0)[self.pairs]

    def groups_of(self, collective: Collective, item_bytes: int) -> tuple[tuple[Group, ...], ...]:
        """Return the groups of a collective on elements of so many bytes, by class."""
        return self.groups.get((collective, item_bytes)) or tuple((group,) for group in collective.groups)

    def folded(self, uses: Iterable[tuple[int, float]], members: int) -> tuple[tuple[int, float], ...]:
        """Return what all members of a class use of one resource of each class, given what one member uses."""
        total: defaultdict[int, float] = defaultdict(float)
        for resource, amount in uses:
            total[self.of_resource[resource]] += amount
        sizes = self.sizes[2]
        return tuple((number, amount * members / int(sizes[number])) for number, amount in sorted(total.items()))


def each_alone(workers: int, machine: Machine) -> WorkerClasses:
    """Return the classes where everything is its own: what `classes` must agree with."""
    return WorkerClasses(
        np.arange(workers), np.arange(workers**2).reshape(workers, workers), np.arange(len(machine.resources)), {}
    )


def classes(likeness: Likeness, machine: Machine, *, library: bool) -> WorkerClasses:
    """Return the classes of a plan's workers, w on the machine's w-th device; with a `library`, collectives are its."""
    return _Refinement(likeness, machine, library).classes()


class _Refinement:
    """Colours of workers, pairs, groups and resources, told apart by each other's until nothing changes.

    Of pairs, which are listed [from, to], and groups the first colours say all that does not depend on others.
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
        """Tell apart what the colours of all others tell apart; return how many colours there are."""
        workers, resources = self._workers, np.append(self._resources, -1)  # -1: nothing is crossed
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
        """Yield what uses each resource, and its colour."""
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
    """What a group's operation on elements of so many bytes does, and how much of resources it uses a payload byte."""

    collective: tuple[Collective, int]
    group: Group
    told: Hashable
    uses: tuple[tuple[int, float], ...]

    def colored(self, resources: Numbers) -> Iterable[tuple[int, float]]:
        """Yield colours of resources with how much is used, in order."""
        return sorted((int(resources[resource]), amount) for resource, amount in self.uses)


def _loads(likeness: Likeness, machine: Machine) -> Iterable[_Load]:
    """Yield what each group of each collective uses of the machine."""
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
            told = (
                number,
                group.elements,
                choice.algorithm,
                *(f"{value:.{DIGITS}g}" for value in speed),
            )
            yield _Load(operation, group, told, rounded)


def _routes(machine: Machine, routed: NDArray[np.bool_], pairs: tuple[Numbers, Numbers]) -> tuple[Numbers, ...]:
    """Return pairs' first colours, what each crosses, [place in the route, pair], and numbers of how much of it.

    What is not `routed` crosses nothing: the number behind the last resource.
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
    """Return the colours that each owner has, in ascending order."""
    order = np.lexsort((colors, owners))
    bounds = np.searchsorted(owners[order], np.arange(count + 1))
    return [colors[order[begin:end]].tobytes() for begin, end in pairwise(bounds.tolist())]


def _columns(rows: Sequence[tuple[int, int]]) -> tuple[Numbers, Numbers]:
    table = np.array(rows, dtype=np.int64).reshape(len(rows), 2)
    return table[:, 0], table[:, 1]
