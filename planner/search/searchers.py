"""The searchers, which share one signature, and which alternatives are tried besides."""

from __future__ import annotations

from collections.abc import Sequence

from planner.search import alternatives, joint, recursive
from planner.search.space import Searcher, Space

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

FREE = ("recursive", "joint")
"""The searchers that choose from all plans of a space; the others are alternatives, which choose from some."""

WITH_PARTIAL = ("recursive", "joint")
"""The searchers that let tensors be partial."""

HEURISTICS = {"S": ("equalchop",), "S,R": ("equalchop", "data-parallel"), "S,R,P": ("equalchop", "data-parallel")}
"""What is tried besides a search that is not exact; for a small graph, every alternative is."""

HEURISTIC_STEPS = 4
"""With more steps than this, heuristics are tried only by name: they look at whole plans of every variable."""


def heuristics(space: Space, placements: str) -> Sequence[str]:
    """Return the alternatives to try besides a search that is not exact."""
    if not space.is_small:
        return HEURISTICS[placements]
    needs = {name: set(alternatives.IMPLIED.get(name, "S").split(",")) for name in SEARCHERS if name not in FREE}
    return [name for name, needed in needs.items() if needed <= set(placements.split(","))]
