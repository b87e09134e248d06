"""Everything public prints as its tables, in a terminal and in a notebook, and nothing drives the terminal."""

import re
import traceback
from dataclasses import fields, replace

import pytest
from msgspec.structs import replace as changed

import planner
import simulator
from planner.plans.records import SearchRecord
from planner.search import Searcher, SearchOptions, Ties
from tensor_partitioner import display
from tensor_partitioner.display import Shown, facts, printable, table
from topologies import load_topology

GRAPH = planner.model("mlp-2-16", batch=8)
PLAN = planner.plan(GRAPH, workers=4)
SHOWN = {
    "graph": (GRAPH, "graph of mlp-2-16"),
    "plan": (PLAN, f"{PLAN.total_bytes:,}"),
    "explanation": (planner.explain(PLAN), "most expensive operators"),
    "difference": (planner.diff(PLAN, planner.plan(GRAPH, workers=4, placements="S")), "two plans of one graph"),
    "report": (simulator.simulate(PLAN, "uniform-8"), "seconds per step"),
    "search": (PLAN.search, "recursive, placements S,R"),
    "search of a plan made by hand": (SearchRecord(), "written by hand"),
    "program": (planner.lower(PLAN), "arena bytes"),
    "optimizer": (planner.Optimizer("adam"), "beta1"),
    "machine": (load_topology("p2.8xlarge"), "machine p2.8xlarge"),
}


@pytest.mark.parametrize("name", SHOWN)
def test_public_objects_show_themselves(name):
    shown, text = SHOWN[name]
    assert isinstance(shown, Shown)
    assert text in str(shown)
    page = shown._repr_html_()
    assert page.startswith("<pre")
    assert next(line.rstrip() for line in re.sub(r"<[^>]+>", "", page).splitlines()) == str(shown).splitlines()[0]


@pytest.mark.parametrize("name", sorted(set(SHOWN) - {"machine"}))
def test_within_others_everything_is_short(name):
    assert len(repr(SHOWN[name][0])) < 200


def test_what_is_said_of_data_parallelism():
    def row(plan):
        return next((line for line in str(plan).splitlines() if "data parallelism" in line), None)

    assert "times as many" in row(PLAN)
    assert "fewer samples than workers" in row(planner.plan(planner.model("mlp-2-16", batch=2), workers=4))
    b = planner.GraphBuilder()
    scalar = b.apply("neg", b.state("s", ()), name="n")
    assert "no samples to split" in row(planner.plan(b.finish({"s": scalar}, {}), workers=2))
    b = planner.GraphBuilder()
    b.apply("neg", b.input("x", (4, 4)), name="n")
    assert "times" not in row(planner.plan(b.finish({}, {}), workers=2))
    unknown = replace(PLAN, search=changed(PLAN.search, data_parallel_bytes=None))
    assert row(unknown) is None


def test_errors_cannot_drive_the_terminal():
    with pytest.raises(planner.GraphError) as raised:
        raise planner.GraphError("tensor a\x1b[2J")
    assert str(raised.value) == r"tensor a\x1b[2J"
    assert "\x1b" not in "".join(traceback.format_exception(raised.value))


def test_what_has_no_tables_says_so():
    class Silent(Shown):
        pass

    with pytest.raises(TypeError, match="Silent: no tables are registered for it"):
        str(Silent())


def test_control_characters_are_escaped_and_letters_are_not():
    assert printable("a\x1b[2J\x07\u202eb é 模型") == r"a\x1b[2J\x07\u202eb é 模型"
    text = display.as_text(table("t\x1b", ["c\x1b"], [["x\x1b"]]), facts("f\x1b", [("a\x1b", "b\x1b")]))
    assert "\x1b" not in text
    assert text.count(r"\x1b") == 6


@pytest.mark.parametrize(
    ("value", "figure", "duration"),
    [
        (999_900, "1 MB", "9.999e+05 s"),
        (999.4, "999 B", "999.4 s"),
        (-5.26e6, "-5.26 MB", "-5.26e+06 s"),
        (0.99999, "1 B", "1 s"),
        (-0.00526, "-0.00526 B", "-5.26 ms"),
        (4.2e-7, "4.2e-07 B", "420 ns"),
    ],
)
def test_figures_have_the_unit_that_suits_them(value, figure, duration):
    assert (display.quantity(value, "B"), display.seconds(value)) == (figure, duration)


def test_a_notebook_shows_an_object_once(monkeypatch):
    """A console that believes to be in a notebook shows there what is to become text."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert "bytes per iteration" in str(PLAN)
    assert PLAN._repr_html_().count("bytes per iteration") == 1


def test_planning_from_python():
    with pytest.raises(planner.PlanError, match="seed of at least 0, found -1"):
        planner.plan(GRAPH, workers=2, seed=-1)
    with pytest.raises(planner.PlanError, match="fits in 1024 bytes"):
        planner.plan(GRAPH, workers=2, memory="1KiB")
    timed = planner.plan(GRAPH, workers=4, objective="time", machine="p2.8xlarge", bound=True)
    assert timed.search.lower_bound <= timed.search.cost
    assert planner.plan(GRAPH, ways=(2, 2)).ways.factors == (2, 2)


def test_a_plan_is_the_same_when_it_is_read_again(tmp_path):
    PLAN.save(tmp_path / "plan.json")
    again = planner.load(tmp_path / "plan.json")
    assert str(again) == str(PLAN)
    assert (again.layouts, again.strategies, again.search) == (PLAN.layouts, PLAN.strategies, PLAN.search)


def test_a_searcher_of_ones_own(monkeypatch):
    monkeypatch.setitem(planner.SEARCHERS, "mine", changed(planner.SEARCHERS["hybrid"], name="mine"))
    mine, hybrid = (planner.plan(GRAPH, workers=4, searcher=name) for name in ("mine", "hybrid"))
    assert (mine.search.searcher, mine.search.winner) == ("mine", "mine")
    assert mine.total_bytes == hybrid.total_bytes


WRONG = {
    "no outcome": (lambda outcome: None, "expected an Outcome, found None"),
    "too few states": (
        lambda outcome: changed(outcome, choice=outcome.choice[1:]),
        r"for each variable, found \d+ for \d+",
    ),
    "no state": (lambda outcome: changed(outcome, choice=(("b",), *outcome.choice[1:])), r"found \('b',\) for"),
    "no states": (lambda outcome: changed(outcome, choice=None), "for each variable, found None"),
    "states of no steps": (lambda outcome: changed(outcome, choice=(3, *outcome.choice[1:])), "found 3 for"),
    "other cost": (
        lambda outcome: changed(outcome, cost=outcome.cost - 1),
        r"its choice costs \d+, but it returned \d+",
    ),
    "no bound": (
        lambda outcome: changed(outcome, lower_bound=outcome.cost + 1),
        r"its lower bound \d+ exceeds the cost \d+",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_searcher_of_ones_own_returns_is_checked(monkeypatch, case):
    wrong, match = WRONG[case]
    hybrid = planner.SEARCHERS["hybrid"].search
    mine = Searcher("mine", lambda space, limits: wrong(hybrid(space, limits)), "wrong")
    monkeypatch.setitem(planner.SEARCHERS, "mine", mine)
    with pytest.raises(planner.PlanError, match=f"^searcher mine: .*{match}.*$"):
        planner.plan(GRAPH, ways=(4,), searcher="mine")


@pytest.mark.parametrize("shown", [SearchOptions(), Ties()], ids=repr)
def test_options_show_themselves(shown):
    text = str(shown)
    assert text.startswith(type(shown).__name__ + "\n")
    assert all(field.name in text for field in fields(shown) if field.repr)
    assert len(text.splitlines()) < 20
