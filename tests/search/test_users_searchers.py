"""Searchers of users: registered in one file, taken by the command, under every placement set and as rivals."""

import random

import pytest

import planner
from planner.errors import PlanError
from planner.layout import PlacementSet
from planner.search.options import SEARCHERS, Searcher, register
from tensor_partitioner.commands.plan import main
from tests.launcher import exit_status

FILE = """
from planner.search import SEARCHERS, Searcher, register


def first(space, limits):
    return SEARCHERS["recursive"].search(space, limits)


register(Searcher("mine", first, "what the recursion has", rival_under=("bytes",)))
"""


@pytest.fixture(autouse=True)
def table(monkeypatch):
    known = dict(SEARCHERS)
    yield
    SEARCHERS.clear()
    SEARCHERS.update(known)


@pytest.mark.parametrize("placements", ["S", "S,R", "S,R,P"])
def test_the_command_takes_it(tmp_path, placements):
    file, output = tmp_path / f"mine_{random.randrange(10**9)}.py", tmp_path / "plan.json"
    file.write_text(FILE)
    line = ("mlp-2-16", "--batch", "8", "--workers", "4", "--placements", placements, "--search", "mine")
    assert exit_status(main, [*line, "--operators", str(file), "-o", str(output)]) == 0
    plan = planner.load(output)
    assert (plan.search.searcher, plan.search.placements) == ("mine", placements)


def test_it_is_a_rival():
    seen = []

    def watched(space, limits):
        seen.append(space.ways)
        return SEARCHERS["recursive"].search(space, limits)

    register(Searcher("watched", watched, "what the recursion has", rival_under=("bytes",)))
    planner.plan(planner.model("transformer-2-64", batch=8), ways=(2, 2))
    assert seen == [(2, 2)]


@pytest.mark.parametrize(
    ("search", "placements"), [(3, tuple(PlacementSet)), (lambda *_: None, ("S",)), (None, (PlacementSet.SPLIT,))]
)
def test_what_is_no_searcher(search, placements):
    with pytest.raises(PlanError, match=r"^searcher odd: expected a function and sets of placements"):
        register(Searcher("odd", search, "", placements))
    assert "odd" not in SEARCHERS


def test_names_are_taken_once():
    with pytest.raises(PlanError, match="searcher joint: this name is taken"):
        register(Searcher("joint", SEARCHERS["joint"].search, ""))
    with pytest.raises(PlanError, match="expected a Searcher to register, found 'joint'"):
        register("joint")


def test_help_shows_defaults_as_they_are_typed(capsys):
    exit_status(main, ["--help-all"])
    assert "[default: S,R]" in capsys.readouterr().out
