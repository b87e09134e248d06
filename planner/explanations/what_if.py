"""What-if questions: what a plan would cost under additional pins, with everything else chosen anew."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from planner.errors import PlanError
from planner.explanations.words import Words, over_ways, pattern_of, placement_word
from planner.graph.ir import ROLES, Tensor
from planner.planning import planned, request_of
from planner.plans.plan import Plan
from planner.plans.rewriting import without_copies
from planner.search.coarse import Coarsenings
from planner.search.pins import Degree, Pin, pinned, read_forbids, read_pins
from tensor_partitioner import display
from tensor_partitioner.display import Shown, exact_bytes, facts, percent, product, seconds, table

CHANGES_SHOWN = 12

SHOWN = ("weight", "state", *(role for role in ROLES if role not in ("weight", "state")))
"""The order of roles in tables."""


@dataclass(frozen=True, slots=True)
class Change:
    """Tensors of equivalent layers whose layouts change from `before` to `after`."""

    pattern: str
    role: str
    names: tuple[str, ...]
    before: str
    after: str


@dataclass(frozen=True, slots=True, repr=False)
class WhyNot(Shown):
    """The cost of pins: the plan without and with them, in bytes and in the search's objective.

    Costs are bytes, or seconds under the objective time. With `is_kept`, the plan already satisfies the pins.
    """

    question: str
    costs: tuple[int | float, int | float]
    nbytes: tuple[int, int]
    ways: tuple[tuple[int, ...], tuple[int, ...]]
    changes: tuple[Change, ...]
    is_kept: bool = False

    @property
    def extra(self) -> int | float:
        """Additional cost; negative if a search without proof of optimality found a better plan."""
        return self.costs[1] - self.costs[0]


def why_not(plan: Plan, *pins: Any, forbids: Any = (), **options: Any) -> WhyNot:
    """Return the cost of additional pins, with everything else chosen anew.

    `options` are those of `planner.plan` with which the plan was found; pins among them hold in both plans. Raises
    PlanError as `planner.plan` does.

    >>> import planner
    >>> plan = planner.plan(planner.model("mlp-2-16", batch=8), workers=4)
    >>> planner.why_not(plan, "fc1.w=R", workers=4).nbytes
    (2200, 5272)
    """
    added, forbidden = read_pins([text for given in pins for text in read_pins(given)]), read_forbids(forbids)
    question = ", ".join(pin.asked for pin in (*added, *forbidden))
    if not question:
        raise PlanError("why not: expected GLOB=PLACEMENT, as in 'embedding.w=R', found nothing")
    options["pins"] = (*read_pins(options.get("pins", ())), *added)
    options["forbids"] = (*read_forbids(options.get("forbids", ())), *forbidden)
    graph, other = without_copies(plan.graph), plan
    request = request_of(graph, **options)
    if not (is_kept := keeps(plan, added, forbidden)):
        other = planned(graph, request, Coarsenings(graph))
    return WhyNot(
        question,
        (plan.search.cost, other.search.cost),
        (plan.total_bytes, other.total_bytes),
        (plan.ways.factors, other.ways.factors),
        changes_between(plan, other, graph.tensors, Words(plan.graph, plan.traffic().signatures)),
        is_kept,
    )


def keeps(plan: Plan, pins: Sequence[Pin | Degree], forbids: Sequence[Pin]) -> bool:
    """Return True if a plan satisfies the pins; raise PlanError for pins that match nothing."""
    of_names = (*(pin for pin in pins if isinstance(pin, Pin)), *forbids)
    constraints = pinned(plan.graph, of_names, len(plan.ways))
    of_kind = {"tensor": plan.layouts, "node": plan.strategies}
    return constraints is None or all(
        constraints.pins[number].allows(str(option), step)
        for (kind, name), numbers in constraints.of_name.items()
        for step, option in enumerate(of_kind[kind][name])
        for number in numbers
    )


def changes_between(plan: Plan, other: Plan, tensors: Mapping[str, Tensor], words: Words) -> tuple[Change, ...]:
    """Return the tensors whose layouts differ in another plan of the model: weights first, then by their number.

    An updated weight has the layout of the weight and is left out.
    """
    groups, updated = dict[tuple[str, Hashable, str, str], list[str]](), frozenset(plan.graph.updates.values())
    for name, tensor in tensors.items():
        if name in updated:
            continue
        if plan.ways == other.ways and plan.layouts[name] == other.layouts[name]:
            continue
        before, after = (
            over_ways([placement_word(words, name, placement) for placement in side.layouts[name]], side.ways.factors)
            for side in (plan, other)
        )
        if before != after:
            groups.setdefault((tensor.role, words.alike.group_of(name), before, after), []).append(name)
    changes = [
        Change(pattern_of(names), role, tuple(names), before, after)
        for (role, _, before, after), names in groups.items()
    ]
    return tuple(sorted(changes, key=lambda change: (SHOWN.index(change.role), -len(change.names))))


@display.tables.register
def tables(answer: WhyNot) -> tuple[Table, ...]:
    """Return the tables of what pins cost."""
    of_bytes = all(isinstance(cost, int) for cost in answer.costs)
    now, then = answer.costs
    rows = [("now", _cost(now)), (f"with {answer.question}", _cost(then))]
    share = f" ({percent(answer.extra / now)})" if now else ""
    rows.append(("difference", f"{answer.extra:+,} bytes{share}" if of_bytes else f"{seconds(answer.extra)}{share}"))
    if not of_bytes:
        rows.append(("bytes", " -> ".join(map(exact_bytes, answer.nbytes))))
    if answer.ways[0] != answer.ways[1]:
        rows.append(("ways", " -> ".join(map(product, answer.ways))))
    if answer.is_kept:
        rows.append(("", "the plan already satisfies it"))
    elif answer.extra < 0:
        rows.append(("", "the first plan was not proved optimal; this one is better"))
    return (facts("what if", rows), *((_changes_table(answer.changes),) if answer.changes else ()))


def _cost(cost: int | float) -> str:
    return f"{exact_bytes(cost)} bytes" if isinstance(cost, int) else seconds(cost)


def _changes_table(changes: Sequence[Change]) -> Table:
    shown, more = changes[:CHANGES_SHOWN], changes[CHANGES_SHOWN:]
    rows = [[change.pattern, change.role, str(len(change.names)), change.before, change.after] for change in shown]
    if more:
        rows.append([f"{len(more)} more groups", "", str(sum(len(change.names) for change in more)), "", ""])
    columns = ["tensors", "of", "number", "now", "then"]
    return table("layouts that would change", columns, rows, text=("of", "now", "then"))
