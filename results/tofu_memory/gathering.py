"""Reductions that are not spread (Tofu, Sec 6): one worker of each group adds up all, the others fetch from it."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from planner.layout import REPLICATE, Exchange, Placement, owned_by_all
from planner.layout.geometry import steps_with
from planner.layout.region import intersect
from planner.layout.ways import At, Partial
from planner.plans.plan import Plan
from planner.plans.traffic import NodeTraffic, Traffic, Write


class Gathering(Traffic):
    """A plan's traffic in which the worker whose digits are 0 at the steps summed over adds up all terms."""

    @cached_property
    def work(self) -> tuple[NodeTraffic, ...]:
        """Every node's work."""
        return tuple(replace(traffic, writes=tuple(map(self._gathered, traffic.writes))) for traffic in super().work)

    def _gathered(self, write: Write) -> Write:
        production, ways, layout = write.production, self.plan.ways, self.plan.layouts[write.tensor]
        partial = steps_with(layout, Partial)
        reducing, same = production.reducing - partial, production.same | partial
        if not reducing:
            return write

        def at(step: int) -> Placement:
            if step in reducing:
                return At(0)
            return layout[step] if step in same else REPLICATE

        gathering = owned_by_all(production.shape, tuple(map(at, range(len(ways)))), ways)
        sums = tuple(map(intersect, production.regions, gathering))
        kept = frozenset(range(len(ways))) - reducing
        reduction = Exchange(ways, production.regions, sums, kept, production.reducer)
        stored = owned_by_all(production.shape, layout, ways)
        return replace(write, hops=(reduction, Exchange(ways, sums, stored, same)))


class GatheringPlan(Plan):
    """A plan whose program reduces so."""

    def traffic(self) -> Traffic:
        """Return what every node reads and writes in one iteration."""
        return Gathering(self)
