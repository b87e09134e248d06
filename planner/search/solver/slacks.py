"""What shared fetches add to a pairwise view: each gives to the pairs of its nodes and tensor what it costs beyond.

The gifts of a fetch never exceed what it costs, whatever the choice, so that the sum stays a lower bound. Fetches that
look alike give alike: what is worked out for one layer holds for all of its kind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.search.costs.tables import Scope, Table
from planner.search.solver.isomorphism import colours
from planner.search.solver.messages import Floats, Messages
from planner.search.solver.problem import Problem

BLOCK_ENTRIES = 1 << 16

ROUNDS = 3
"""How far around two shared fetches must look alike to be treated alike."""


@dataclass(frozen=True, slots=True, eq=False)
class Slack:
    """What a shared fetch costs beyond a pairwise view: `table` [layout, state of each node...], at least 0.

    Costs are times 2**SCALE_BITS; `scope` is (node..., tensor).
    """

    scope: Scope
    table: NDArray[np.float32]


@dataclass(slots=True)
class _Alike:
    """Slacks of one table: per node the terms that it makes with the tensor, and what each has been given so far."""

    table: NDArray[np.float32]
    pairs: list[list[int]]
    given: list[Table]


class Sharing:
    """Slacks that give to the pairs of messages; their problem must be `with_pairs` of them."""

    def __init__(self, messages: Messages, slacks: Sequence[Slack]) -> None:
        self._messages = messages
        _, terms = messages.parts()
        at = {scope: f for f, (scope, _) in enumerate(terms)}
        colour = colours(messages.problem.sizes, messages.problem.terms, ROUNDS)
        alike: dict[object, list[Slack]] = defaultdict(list)
        for slack in slacks:
            alike[id(slack.table), *(colour[v] for v in slack.scope)].append(slack)
        self._kinds = []
        for members in alike.values():
            table = members[0].table
            pairs = [[at[pair] for pair in pairs] for pairs in zip(*map(_pairs, members), strict=True)]
            given = [np.zeros((len(table), size), dtype=np.int64) for size in table.shape[1:]]
            self._kinds.append(_Alike(table, pairs, given))

    def share(self, turn: int) -> None:
        """Let all give anew; the turn says which node comes first.

        Each node but the last gets an equal part of what is best for it, and the last all that is then left.
        """
        for kind in self._kinds:
            nodes = len(kind.pairs)
            order = [(turn + node) % nodes for node in range(nodes)]
            left = [self._mean_left(pairs) - given for pairs, given in zip(kind.pairs, kind.given, strict=True)]
            gifts = gifts_of(kind.table.transpose(0, *(1 + node for node in order)), [left[node] for node in order])
            for node, gift in zip(order, gifts, strict=True):
                self._messages.add(kind.pairs[node], gift - kind.given[node])
                kind.given[node] = gift

    def _mean_left(self, pairs: Sequence[int]) -> Floats:
        total = self._messages.left(pairs[0]).astype(np.float64)
        for f in pairs[1:]:
            total += self._messages.left(f)
        return total / len(pairs)


def with_pairs(problem: Problem, slacks: Sequence[Slack]) -> Problem:
    """Return the problem with a term, if only of zeros, for every pair that a slack gives to."""
    known = {scope for scope, _ in problem.terms}
    wanted = dict.fromkeys(pair for slack in slacks for pair in _pairs(slack) if pair not in known)
    terms = tuple(
        (pair, problem.tables.intern(np.zeros([problem.sizes[v] for v in pair], dtype=np.int64))) for pair in wanted
    )
    return Problem(problem.tables, problem.sizes, problem.terms + terms, problem.constant)


def _pairs(slack: Slack) -> list[Scope]:
    """Return the tensor with each node."""
    *nodes, tensor = slack.scope
    if tensor > min(nodes):
        raise ValueError(f"expected the tensor before its nodes, got {slack.scope}")
    return [(tensor, node) for node in nodes]


def gifts_of(slack: Floats, left: Sequence[Floats]) -> list[Table]:
    """Return what a slack [layout, state of each node...] gives to each pair [layout, state].

    `left` is what the pairs have without it.
    """
    gifts = []
    for at, mine in enumerate(left):
        others = len(left) - at - 1
        if not others:
            gifts.append(np.floor(slack).astype(np.int64))
            break
        best = _least(slack, {1 + i: left[at + i] for i in range(1, others + 1)}, 1) + mine
        gift = np.floor(best / (others + 1) - mine).astype(np.int64)
        slack = _least(slack, {1: -gift.astype(np.float64)}, *range(2, others + 2))
        gifts.append(gift)
    return gifts


def _least(slack: Floats, costs: dict[int, Floats], *kept: int) -> Floats:
    """Return, per layout and state along the kept axes, the least of slack + costs [layout, state along an axis]."""
    others = tuple(axis for axis in range(1, slack.ndim) if axis not in kept)
    least = np.empty([slack.shape[axis] for axis in (0, *kept)])
    rows = max(1, BLOCK_ENTRIES // max(1, slack[0].size))
    for start in range(0, len(slack), rows):
        block = slice(start, start + rows)
        total = slack[block].astype(np.float64)
        for axis, cost in costs.items():
            along = [-1 if a == axis else 1 for a in range(1, slack.ndim)]
            total += cost[block].reshape(len(total), *along)
        total.min(axis=others, out=least[block])
    return least
