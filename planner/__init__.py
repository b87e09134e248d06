"""The planner: from a training graph to a plan, from a plan to a program.

graph = planner.model("wresnet-50-4", batch=128)
plan = planner.plan(graph, workers=8)
print(plan)
"""

from planner.errors import GraphError, PlanError
from planner.explanations.difference import Difference, diff
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

__all__ = [
    "SEARCHERS",
    "Difference",
    "Explanation",
    "Graph",
    "GraphBuilder",
    "GraphError",
    "Optimizer",
    "Plan",
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
