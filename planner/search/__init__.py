"""Search: find the plan of a graph that moves the fewest bytes or takes the least time."""

from planner.search.coarse import Ties as Ties
from planner.search.options import (
    SEARCHERS as SEARCHERS,
    Searcher as Searcher,
    SearchOptions as SearchOptions,
    register as register,
)
from planner.search.run import best_plan as best_plan, search as search, space_of as space_of
from planner.search.solver.problem import Limits as Limits
from planner.search.space import Outcome as Outcome, Space as Space
