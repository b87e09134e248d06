"""Theorem 1 on models of the papers' size: what a step costs, what is believed of it, what crosses its level."""

from __future__ import annotations

from typing import Any

from planner.models import build
from planner.plans.plan import Plan
from planner.search import SearchOptions, space_of
from results.theorems import accounts, recursions

MODELS = (("mlp-4-8192", 512), ("wresnet-152-10", 8), ("rnn-10-8k", 64))
WAYS = (2, 2, 2)


def rows() -> list[dict[str, Any]]:
    """One row per model and placement set; bytes."""
    return [row(name, batch, placements) for name, batch in MODELS for placements in ("S", "S,R")]


def row(name: str, batch: int, placements: str) -> dict[str, Any]:
    """Plan one model by the recursion, and by the recursion that charges as Lemma 2 does."""
    graph = build(name, batch=batch)
    space = space_of(graph, SearchOptions(WAYS, placements=placements))
    choice, believed = recursions.at_its_word(space)
    outcome = recursions.exact(space, "recursive")
    plan = Plan(graph, 0, space.ways, space.layouts(outcome.choice), space.strategies(outcome.choice))
    item = accounts.ITEM
    return {
        "model": name,
        "batch": batch,
        "placements": placements,
        "bytes": outcome.cost,
        "steps": list(plan.step_bytes()),
        "levels": [item * elements for elements in accounts.counted_by_level(plan)],
        "lemma_2": {"believed_steps": believed, "believed": sum(believed), "bytes": space.cost(choice)},
    }
