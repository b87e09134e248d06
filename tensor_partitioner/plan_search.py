"""Search a plan for a decision: of a large graph, with few of its repeated segments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from msgspec import structs

from planner.graph.ir import Graph
from planner.graph.repeats import FewSegments, few_segments
from planner.planning import planned, request_of
from planner.plans.plan import Plan
from planner.search.coarse import Coarsenings
from planner.search.run import factorisations
from planner.search.solver.problem import Limits
from topologies import Machine

MANY_NODES = 1000
"""Nodes above which a graph is searched with few of its repeated segments."""

MOST_NODES = 2000
"""Nodes above which workers are divided in only one way, of at most two steps. This takes half the time, and the plans
of Swin-L, MaxViT and Stable Diffusion's UNet cost at most 0.3% more on 8 devices."""

QUICK = Limits(memory_bytes=1 << 29, operations=1.5e9)
"""Limits of a search for a plan, whose steps are then not all exact: seconds and half a gigabyte."""


@dataclass(eq=False)
class PlanSearch:
    """Searches for the plan with the fewest bytes or, on a machine, the shortest time.

    `graph` must be in structural order. Of a large graph's repeated segments only a few are searched, and all are
    planned alike.
    """

    graph: Graph
    workers: int

    def best(self, machine: Machine | None) -> tuple[Plan, tuple[int, ...]]:
        """Return the best plan and, if it is one of few segments, the number in each run."""
        objective = "bytes" if machine is None else "time"
        few = self._few.graph
        in_two = next(ways for ways in factorisations(self.workers) if len(ways) <= 2)
        ways = {"ways": in_two} if len(few.nodes) > MOST_NODES else {}
        request = request_of(few, self.workers, machine=machine, objective=objective, limits=QUICK, **ways)
        return planned(few, request, self._coarsenings), self._few.layers

    def whole(self, plan: Plan) -> Plan:
        """Return the plan of the whole graph; segments that were left out are planned like their stand-in."""
        tensors, nodes = self._few.tensors, self._few.nodes
        layouts = {name: plan.layouts[tensors.get(name, name)] for name in self.graph.tensors}
        strategies = {node.name: plan.strategies[nodes.get(node.name, node.name)] for node in self.graph.nodes}
        search = plan.search
        if self._few.layers and search is not None:  # the bound is of plans whose segments are alike
            search = structs.replace(search, lower_bound=None, bound_by="")
        return replace(plan, graph=self.graph, layouts=layouts, strategies=strategies, search=search)

    @cached_property
    def _few(self) -> FewSegments:
        return few_segments(self.graph) if len(self.graph.nodes) > MANY_NODES else FewSegments(self.graph)

    @cached_property
    def _coarsenings(self) -> Coarsenings:
        return Coarsenings(self._few.graph, few=self._few)
