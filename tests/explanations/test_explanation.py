"""What is said of a plan adds up to its bytes, and an alternative costs what the plan with it would move."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings

from planner import report
from planner.explanations import explanation
from planner.explanations.accounts import NODE, OPERATOR, TENSOR, bytes_by, flows, kinds_of, stored, write_choices
from planner.explanations.explanation import candidates, costliest, explain, kinds_table, rejected, tables
from planner.explanations.words import Words
from planner.graph import GraphBuilder, Init, Optimizer, training_graph
from planner.layout import elements, owned
from planner.models import build
from planner.plans.check import check_plan
from planner.plans.records import SearchRecord
from planner.program.lower import lower
from planner.search import SearchOptions, search
from tensor_partitioner.commands.console import stdout
from tests.explanations.plans import any_plan
from tests.search.test_partial import two_products

ALL = 10**9
SEARCHED = [
    ("mlp-2-12", {"batch": 8}, (2, 2), "S"),
    ("rnn-2-6", {"batch": 4, "unroll": 3, "input_width": 5, "classes": 7}, (2, 2), "S"),
    ("wresnet-14-0.0625", {"batch": 4, "image": 16, "classes": 6}, (2, 2), "S,R"),
]


def searched(case):
    name, options, ways, placements = case
    return search(build(name, **options), SearchOptions(ways, placements=placements))


def check_sums(plan):
    costs = {op: kind.step_bytes for op, kind in kinds_of(plan).items()}
    assert tuple(map(sum, zip(*costs.values(), strict=True))) == plan.step_bytes()
    assert {op: sum(steps) for op, steps in costs.items() if any(steps)} == +bytes_by(OPERATOR, flows(plan))
    for key in (OPERATOR, NODE, TENSOR):
        assert bytes_by(key, flows(plan)).total() == plan.total_bytes
    everything = costliest(plan, ALL)
    assert sum(unit.nbytes for unit in everything) == plan.total_bytes
    assert [unit.nbytes for unit in everything] == sorted((unit.nbytes for unit in everything), reverse=True)


@given(any_plan())
@settings(max_examples=40, deadline=None)
def test_sums_are_the_bytes_of_any_plan(plan):
    check_sums(plan)


@given(any_plan())
@settings(max_examples=25, deadline=None)
def test_an_alternative_costs_what_the_plan_with_it_moves(plan):
    check_alternatives(plan, units=4, each=4)


def check_alternatives(plan, units, each):
    compared, words = 0, Words(plan.graph, plan.traffic().signatures)
    for unit in costliest(plan, ALL)[:units]:
        others = rejected(plan, unit, words)
        assert [other.extra_bytes for other in others] == sorted(other.extra_bytes for other in others)
        assert unit.strategy not in {other.strategy for other in others}
        assert len(others) + 1 == len(candidates(plan, unit))
        for other in others[:each]:
            names = {unit.node.name}
            changed = replace(plan, strategies={**plan.strategies, **dict.fromkeys(names, other.strategy)})
            check_plan(changed)
            assert changed.total_bytes - plan.total_bytes == other.extra_bytes
            compared += 1
    return compared


@pytest.mark.parametrize("case", SEARCHED, ids=lambda case: f"{case[0]}-{case[3]}")
def test_searched_plans(case):
    """Backward groups that share fetches, sums over timesteps, windows, partial sums."""
    plan = searched(case)
    check_sums(plan)
    assert check_alternatives(plan, units=12, each=3) > 3


def test_partial_tensors():
    """What is partial is not replicated, and its strategies stay as they are at that step."""
    plan = search(two_products(), SearchOptions((2, 2), placements="S,R,P"))
    check_sums(plan)
    assert check_alternatives(plan, units=12, each=9)
    partial = [group for group in stored(plan) if "P+" in group.layout]
    assert partial
    assert any("P+" in write_choices(group.layout) for group in partial)


def test_many_strategies_are_not_all_tried(monkeypatch):
    plan = searched(SEARCHED[2])
    unit = next(unit for unit in costliest(plan, ALL) if unit.node.op == "convolution")
    every = candidates(plan, unit)
    monkeypatch.setattr(explanation, "MOST_STRATEGIES", 10)
    some, own = candidates(plan, unit), plan.strategies[unit.node.name]
    assert own in some
    assert set(some) < set(every)
    assert all(len(set(strategy)) == 1 or sum(map(str.__ne__, strategy, own)) <= 1 for strategy in some)


@given(any_plan())
@settings(max_examples=25, deadline=None)
def test_stored_tensors_are_counted(plan):
    groups = {(group.role, group.layout): group for group in stored(plan)}
    held = Counter()
    for name, tensor in plan.graph.tensors.items():
        key = tensor.role, tuple(map(str, plan.layouts[name]))
        for worker in range(plan.workers):
            held[key] += 4 * elements(owned(tensor.shape, plan.layouts[name], plan.ways, worker))
    assert {key: group.held_bytes for key, group in groups.items()} == held
    assert sum(group.nbytes for group in groups.values()) == sum(t.nbytes for t in plan.graph.tensors.values())
    assert sum(group.tensors for group in groups.values()) == len(plan.graph.tensors)


def cells(table):
    return [list(column.cells) for column in table.columns]


def test_tables_show_the_sums():
    plan = searched(SEARCHED[2])
    explained = explain(plan)
    columns = cells(kinds_table(explained.kinds))
    assert [int(column[-1].replace(",", "")) for column in columns[1:5]] == [
        len(plan.graph.nodes),
        *plan.step_bytes(),
        plan.total_bytes,
    ]
    assert sum(int(cell.replace(",", "")) for cell in columns[4][:-1]) == plan.total_bytes
    assert explained.arena_bytes == tuple(worker.arena_bytes for worker in lower(plan).workers)
    assert sum(sum(kind.step_bytes) for kind in explained.kinds.values()) == plan.total_bytes
    assert len(explained.costliest) == 10


def test_a_plan_prints_as_a_table(capsys):
    assert report.plan_facts  # it says how a plan is shown
    plan = searched(SEARCHED[0])
    assert f"{plan.total_bytes:,}" in str(plan)
    assert all(len(line) <= 80 for line in str(plan).splitlines())
    assert repr(plan) == f"<plan of {len(plan.graph.nodes)} nodes for 4 as 2 x 2 workers, seed 0>"
    assert str(replace(plan, search=SearchRecord())).startswith("plan\n")
    for table in tables(explain(plan)):
        stdout().print(table)
    shown = capsys.readouterr().out
    assert f"{plan.total_bytes:,}" in shown
    assert all(len(line) <= 120 for line in map(str.rstrip, shown.splitlines()))


@pytest.mark.parametrize("workers", [1, 5])
def test_plans_in_which_little_moves(workers):
    ways = (workers,) if workers > 1 else ()
    plan = search(build("mlp-2-8", batch=10), SearchOptions(ways))
    assert len(tables(explain(plan))) == 4
    assert "1" in str(plan)


def test_choices_are_written_once_where_all_are_one():
    assert write_choices(("n", "n", "n")) == "n"
    assert write_choices(("n", "c", "n")) == "n c n"
    assert write_choices(()) == "-"


def test_a_sum_beside_the_operator_is_looked_at_as_a_whole():
    """A backward group in which a gradient is summed, of parts that belong to other groups."""
    b = GraphBuilder()
    x = b.apply("mm", b.input("x", (4, 8)), b.weight("w0", (8, 8), Init("uniform", 1.0)), name="fc0")
    w = b.weight("w", (8, 8), Init("uniform", 1.0))
    product, other = b.apply("mm", x, w, name="one"), b.apply("mm", x, w, name="other")
    loss = b.apply("sum", b.apply("add", product, other, name="both"), name="loss", dims=(0, 1))
    graph = training_graph(b, {"loss": loss}, Optimizer("sgd"))
    for ways in ((2,), (2, 2)):
        check_alternatives(search(graph, SearchOptions(ways)), units=20, each=9)
