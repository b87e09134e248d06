"""The searchers, which share one signature, and the alternatives that are tried besides."""

from __future__ import annotations

from planner.search import alternatives, joint, recursive
from planner.search.space import Searcher

SEARCHERS: dict[str, Searcher] = {
    "recursive": recursive.recursive,
    "joint": joint.joint,
    "allrow": alternatives.allrow,
    "spartan": alternatives.spartan,
    "equalchop": alternatives.equalchop,
    "icml18": alternatives.icml18,
    "data-parallel": alternatives.data_parallel,
    "model-parallel": alternatives.model_parallel,
    "hybrid": alternatives.hybrid,
    "one-weird-trick": alternatives.one_weird_trick,
}
"""By name; add to it to search in a way of your own."""

FREE = ("recursive", "joint")
"""The searchers that choose from all plans of a space; the others choose from some, which their bounds are about."""

WITH_PARTIAL = ("recursive", "joint")
"""The searchers that let tensors be partial."""

UNIFORM = ("equalchop", "data-parallel")
"""Alternatives that do the same at every step, so that a single step of all workers, searched exactly, covers them."""

STEP_BY_STEP = ("model-parallel", "hybrid", "one-weird-trick")
"""Alternatives that choose from few plans."""

NEARLY_FREE = ("allrow", "spartan", "icml18")
"""Alternatives that choose from nearly as many plans as the joint search."""

DEAR = (*NEARLY_FREE, "S")
"""The rivals that are tried in small graphs only; "S" is the recursion without replication."""

ALTERNATIVES = (*UNIFORM, *STEP_BY_STEP, *NEARLY_FREE)
"""The searchers that choose from some of a space's plans."""

MOST_STEPS = 4
"""With more steps than this, rivals are tried only by name: alternatives look at whole plans of every variable."""
