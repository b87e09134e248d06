"""What the Python interface is given wrongly: one line that says what is wrong, from nowhere inside."""

from inspect import signature

import pytest

import planner
import simulator
from planner.errors import GraphError, PlanError
from planner.planning import OPTIONS
from planner.search import SearchOptions
from tensor_partitioner.commands.plan import main as plan_command
from tests.launcher import in_one_line
from topologies import TopologyError


@pytest.fixture(scope="module")
def graph():
    return planner.model("mlp-2-16", batch=8)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"workers": 0}, "positive number of workers"),
        ({"workers": -3}, "positive number of workers"),
        ({"workers": "8"}, "positive number of workers"),
        ({"workers": 8.0}, "positive number of workers"),
        ({"workers": True}, "positive number of workers"),
        ({}, "found neither"),
        ({"workers": 4, "search": "joint"}, "unknown option search; expected one of .*searcher"),
        ({"workers": 4, "ties": "some"}, "all, none or rules among elementwise"),
        ({"workers": 4, "memory": 0}, "expected a positive number of bytes, or text"),
        ({"workers": 4, "memory": -1}, "expected a positive number of bytes, or text"),
        ({"workers": 4, "memory": 1.5}, "expected a positive number of bytes, or text"),
        ({"workers": 4, "searcher": ["joint"]}, "a searcher among"),
        ({"workers": 4, "placements": None}, "placements S or"),
        ({"workers": 4, "placements": ("S", "R")}, "placements S or"),
        ({"ways": ("2",)}, "ways of at least 2"),
        ({"ways": "2,1"}, "ways: expected whole numbers of at least 2, such as 4,2, found '2,1'"),
        ({"workers": 4, "machine": 5}, "a machine, its name"),
    ],
)
def test_bad_options_are_one_line(graph, options, said):
    with in_one_line((PlanError, TopologyError), said):
        planner.plan(graph, **options)


@pytest.mark.parametrize("given", ["mlp-2-16", None, 5])
def test_what_is_no_graph(given):
    with pytest.raises(PlanError, match="expected a graph"):
        planner.plan(given, workers=2)


@pytest.mark.parametrize("source", [None, 5, ["a"], b"mlp-2-16"])
def test_what_is_no_model(source):
    with pytest.raises(GraphError, match="a model's name"):
        planner.model(source)


@pytest.mark.parametrize("given", [None, 5, "graph"])
@pytest.mark.parametrize(
    "asked",
    [planner.explain, lambda x: planner.diff(x, x), planner.lower, lambda x: simulator.simulate(x, "uniform-8")],
)
def test_what_is_no_plan(graph, given, asked):
    with pytest.raises(PlanError, match=r"expected a plan \(from planner\.plan\) or the path"):
        asked(graph if given == "graph" else given)


def test_a_path_stands_for_its_plan(graph, tmp_path):
    plan, path = planner.plan(graph, workers=2), tmp_path / "plan.json"
    plan.save(path)
    assert str(planner.explain(path)) == str(planner.explain(plan))
    assert str(planner.diff(str(path), plan)) == str(planner.diff(plan, plan))
    assert (planner.lower(path).bytes == plan.bytes).all()
    assert str(simulator.simulate(path, "uniform-8")) == str(simulator.simulate(plan, "uniform-8"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"overlap": "no"}, "overlap: expected True or False, found 'no'"),
        ({"prefetch": "1"}, "prefetch: expected a whole number of at least 0, found '1'"),
        ({"prefetch": -1}, "prefetch: expected a whole number of at least 0, found -1"),
        ({"machine": None}, "expected a machine, its name or its YAML file, found None"),
    ],
)
def test_bad_options_of_a_simulation(graph, options, said):
    with pytest.raises((PlanError, TopologyError), match=said):
        simulator.simulate(planner.plan(graph, workers=2), **{"machine": "uniform-8", **options})


def test_lists_and_the_commands_spelling_will_do(graph):
    plan = planner.plan(graph, ways=[2, 2], ties="all", untie=["repeats"])
    assert plan.ways.factors == (2, 2)
    assert planner.plan(graph, ways="2, 2", untie="repeats").ways.factors == (2, 2)
    assert planner.plan(graph, workers=2, ties=["elementwise"]).workers == 2


def test_weights_count_once():
    assert "1.05 MB" in str(planner.plan(planner.model("mlp-4-256"), workers=2))


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_written_once(name):
    """Python's name and the command's flag, default and help are of one record."""
    option = OPTIONS[name]
    (shown,) = (parameter for parameter in plan_command.command.params if parameter.name == name)
    assert (shown.opts, shown.help) == ([option.flag], option.help)
    assert shown.default in (option.default, None)
    of_plan = signature(planner.plan).parameters
    python = of_plan[name].default if name in of_plan else getattr(SearchOptions(), name)
    assert python == option.default


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda _: planner.model("wresnet-152-x"), "wresnet-152-10"),
        (lambda graph: planner.plan(graph, workers=2, searcher="recursiv"), "recursive"),
        (lambda graph: simulator.simulate(planner.plan(graph, workers=2), "p2.8xlage"), "p2.8xlarge"),
    ],
)
def test_a_name_that_is_nearly_one_is_guessed(graph, call, meant):
    with pytest.raises(ValueError, match=rf": did you mean [^?]*{meant}[^?]*\?"):
        call(graph)
