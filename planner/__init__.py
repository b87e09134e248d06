"""The planner: from a training graph to a plan, from a plan to a program.

graph = planner.model("wresnet-50-4", batch=128)
plan = planner.plan(graph, workers=8)
print(plan)

A name is loaded when it is asked for, so that who runs a plan loads no search.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.errors import GraphError, PlanError
    from planner.explanations.difference import PlanDifference, diff
    from planner.explanations.explanation import Explanation, explain
    from planner.extensions import load_operators
    from planner.graph import Graph, GraphBuilder, Optimizer, Recipe, training_graph
    from planner.model_source import from_torch, model
    from planner.planning import plan
    from planner.plans.plan import Plan
    from planner.plans.plan_json import load_plan as load
    from planner.plans.search_record import SearchRecord
    from planner.program.lower import lower
    from planner.report.schema import Report
    from planner.search import SEARCHERS, SearchOptions, Ties

_HOMES = {
    "PlanDifference": "planner.explanations.difference",
    "Explanation": "planner.explanations.explanation",
    "Graph": "planner.graph",
    "GraphBuilder": "planner.graph",
    "GraphError": "planner.errors",
    "Optimizer": "planner.graph",
    "Plan": "planner.plans.plan",
    "PlanError": "planner.errors",
    "Recipe": "planner.graph",
    "Report": "planner.report.schema",
    "SEARCHERS": "planner.search",
    "SearchOptions": "planner.search",
    "SearchRecord": "planner.plans.search_record",
    "Ties": "planner.search",
    "diff": "planner.explanations.difference",
    "explain": "planner.explanations.explanation",
    "from_torch": "planner.model_source",
    "load_operators": "planner.extensions",
    "lower": "planner.program.lower",
    "model": "planner.model_source",
    "plan": "planner.planning",
    "training_graph": "planner.graph",
    "load": "planner.plans.plan_json:load_plan",
}
__all__ = [
    "SEARCHERS",
    "Explanation",
    "Graph",
    "GraphBuilder",
    "GraphError",
    "Optimizer",
    "Plan",
    "PlanDifference",
    "PlanError",
    "Recipe",
    "Report",
    "SearchOptions",
    "SearchRecord",
    "Ties",
    "diff",
    "explain",
    "from_torch",
    "load",
    "load_operators",
    "lower",
    "model",
    "plan",
    "training_graph",
]


def __getattr__(name: str) -> object:
    """Return a public name from the module that has it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(import_module(module), attribute or name)


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
