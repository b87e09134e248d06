"""The planner: from a training graph to a plan, and from a plan to a program.

Names are loaded on first use, so running a plan does not load the search.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.errors import GraphError, PlanError
    from planner.explanations.difference import PlanDifference, diff
    from planner.explanations.explanation import explain
    from planner.explanations.summary import summary
    from planner.explanations.what_if import Workbench
    from planner.extensions import load_operators
    from planner.graph import Graph, GraphBuilder, Optimizer, training_graph
    from planner.model_source import from_torch, model
    from planner.planning import plan
    from planner.plans.plan import Plan
    from planner.plans.plan_json import load_plan as load
    from planner.program.lower import lower
    from planner.search import SEARCHERS

_HOMES = {
    "planner.errors": ("GraphError", "PlanError"),
    "planner.explanations.difference": ("PlanDifference", "diff"),
    "planner.explanations.explanation": ("explain",),
    "planner.explanations.summary": ("summary",),
    "planner.explanations.what_if": ("Workbench",),
    "planner.extensions": ("load_operators",),
    "planner.graph": ("Graph", "GraphBuilder", "Optimizer", "training_graph"),
    "planner.model_source": ("from_torch", "model"),
    "planner.planning": ("plan",),
    "planner.plans.plan": ("Plan",),
    "planner.plans.plan_json": ("load",),
    "planner.program.lower": ("lower",),
    "planner.search": ("SEARCHERS",),
}
__all__ = [
    "SEARCHERS",
    "Graph",
    "GraphBuilder",
    "GraphError",
    "Optimizer",
    "Plan",
    "PlanDifference",
    "PlanError",
    "Workbench",
    "diff",
    "explain",
    "from_torch",
    "load",
    "load_operators",
    "lower",
    "model",
    "plan",
    "summary",
    "training_graph",
]


def __getattr__(name: str) -> object:
    """Load a public name from its module."""
    for module, names in _HOMES.items():
        if name in names:
            import_module("planner.report")  # registers the text and HTML forms of plans and programs
            return getattr(import_module(module), "load_plan" if name == "load" else name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
