"""Everything public prints as its tables, in a terminal and in a notebook, and nothing drives the terminal."""

import re

import pytest

import display
import planner
import simulator
from display import Shown, facts, printable, table
from topologies import load_topology

GRAPH = planner.model("mlp-2-16", batch=8)
PLAN = planner.plan(GRAPH, workers=4)
SHOWN = {
    "graph": (GRAPH, "graph of mlp-2-16"),
    "plan": (PLAN, f"{PLAN.total_bytes:,}"),
    "explanation": (planner.explain(PLAN), "costliest operators"),
    "difference": (planner.diff(PLAN, planner.plan(GRAPH, workers=4, placements="S")), "two plans of one graph"),
    "report": (simulator.simulate(PLAN, "uniform-8"), "seconds per step"),
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


def test_planning_from_python():
    with pytest.raises(planner.PlanError, match="found neither"):
        planner.plan(GRAPH)
    with pytest.raises(planner.PlanError, match="makes 4 workers, not 6"):
        planner.plan(GRAPH, workers=6, ways=(2, 2))
    with pytest.raises(planner.PlanError, match="seed from 0, found -1"):
        planner.plan(GRAPH, workers=2, seed=-1)
    with pytest.raises(planner.PlanError, match="fits in 1024 bytes"):
        planner.plan(GRAPH, workers=2, memory="1KiB")
    timed = planner.plan(GRAPH, workers=4, objective="time", machine="p2.8xlarge", bound=True)
    assert timed.search.lower_bound <= timed.search.cost
    assert planner.plan(GRAPH, ways=(2, 2)).ways == (2, 2)


def test_a_plan_is_the_same_when_it_is_read_again(tmp_path):
    PLAN.save(tmp_path / "plan.json")
    again = planner.load(tmp_path / "plan.json")
    assert str(again) == str(PLAN)
    assert (again.layouts, again.strategies, again.search) == (PLAN.layouts, PLAN.strategies, PLAN.search)


def test_a_searcher_of_ones_own(monkeypatch):
    monkeypatch.setitem(planner.SEARCHERS, "mine", planner.SEARCHERS["allrow"])
    mine, allrow = (planner.plan(GRAPH, workers=4, searcher=name) for name in ("mine", "allrow"))
    assert (mine.search.searcher, mine.search.winner) == ("mine", "mine")
    assert mine.total_bytes == allrow.total_bytes
