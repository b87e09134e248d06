"""Search: find the plan of a graph that moves the fewest bytes or takes the least time."""

from planner.search.coarse.coarsen import Ties
from planner.search.factorisations import best_plan
from planner.search.options import SearchOptions
from planner.search.run import search, space_of
from planner.search.searchers import SEARCHERS, Searcher, register
from planner.search.solver.problem import Limits
from planner.search.space import Outcome, Space

__all__ = [
    "SEARCHERS",
    "Limits",
    "Outcome",
    "SearchOptions",
    "Searcher",
    "Space",
    "Ties",
    "best_plan",
    "register",
    "search",
    "space_of",
]
