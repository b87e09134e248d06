"""The planner: from a training graph to a plan, and from a plan to a program.

Names are loaded on first use, so running a plan does not load the search.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.errors import GraphError as GraphError, PlanError as PlanError
    from planner.explanations.accounts import PlanDifference as PlanDifference, diff as diff
    from planner.explanations.explanation import explain as explain
    from planner.explanations.summary import summary as summary
    from planner.explanations.what_if import why_not as why_not
    from planner.extensions import load_operators as load_operators
    from planner.graph import (
        Graph as Graph,
        GraphBuilder as GraphBuilder,
        Optimizer as Optimizer,
        training_graph as training_graph,
    )
    from planner.model_source import from_torch as from_torch, model as model
    from planner.planning import plan as plan
    from planner.plans.plan import Plan as Plan
    from planner.plans.plan_json import load_plan
    from planner.program.lower import lower as lower
    from planner.search import SEARCHERS as SEARCHERS

    load = load_plan

_HOMES = {
    "planner.errors": ("GraphError", "PlanError"),
    "planner.explanations.accounts": ("PlanDifference", "diff"),
    "planner.explanations.explanation": ("explain",),
    "planner.explanations.summary": ("summary",),
    "planner.explanations.what_if": ("why_not",),
    "planner.extensions": ("load_operators",),
    "planner.graph": ("Graph", "GraphBuilder", "Optimizer", "training_graph"),
    "planner.model_source": ("from_torch", "model"),
    "planner.planning": ("plan",),
    "planner.plans.plan": ("Plan",),
    "planner.plans.plan_json": ("load",),
    "planner.program.lower": ("lower",),
    "planner.search": ("SEARCHERS",),
}


def __getattr__(name: str) -> object:
    """Load a public name from its module."""
    for module, names in _HOMES.items():
        if name in names:
            import_module("planner.report")  # registers the text and HTML forms of plans and programs
            return getattr(import_module(module), "load_plan" if name == "load" else name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return [name for names in _HOMES.values() for name in names]
