"""Functions of Python beside commands: every option, the same results, and the same errors."""

import json
import shlex

import msgspec
import pytest

import tensor_partitioner as tp
from planner.errors import InputError
from planner.models import model_options
from planner.report.schema import read_reports
from tensor_partitioner.commands.decide import main as decide
from tensor_partitioner.commands.plan import main as plan
from tensor_partitioner.commands.simulate import main as simulate
from tensor_partitioner.python import FUNCTIONS
from tests.launcher import in_one_line
from tests.project.test_plan_command import run
from topologies import TopologyError, load_topology

MODEL, SMALL = "mlp-2-64", {"batch": 16}
PLAN = {"workers": 4, "batch": 8}
VALUES = {
    "decide": {
        "stack": "fsdp2", "engine": "deepspeed", "budget": "20s", "pin": ["tp=1", "dp=8"], "pins": "pins.yaml",
        "all": True, "measured": "dp=8=1 s", "operators": "own.py", "output": "plan.json", "json": "decision.json",
        "page": "page.html",
    },
    "plan": {
        "ways": (2, 2), "search": "joint", "placements": "S", "ties": "none", "seed": 3, "untie": "gradients",
        "objective": "time", "shares": "2,1,1,1", "parallel": "dp=4", "pin": "*.w=R", "forbid": "*.w=S0",
        "stages": 2, "schedule": "gpipe", "memory": "11GiB", "pins": "forbids.yaml",
        "output": "plan.json", "topo": "hgx-h100", "operators": "own.py", "json": "plan-facts.json", "verify": False,
    },
    "simulate": {
        "prefetch": 2, "overlap": False, "collectives": "pairs", "operators": "own.py", "json": "report.json",
        "tasks": True, "trace": "trace.json", "stack": "ours", "memory_report": True,
    },
}  # fmt: skip
"""A value of every option, by command; those of planning are tried with `plan`."""

WITH = {
    ("plan", "objective"): {"topo": "hgx-h100"}, ("plan", "schedule"): {"stages": 2},
    ("plan", "topo"): {"objective": "time"}, ("simulate", "memory_report"): {"stack": "compile", "parallel": "dp=4"},
    ("plan", "parallel"): {"workers": None},
}  # fmt: skip
COMMANDS = {"decide": decide, "plan": plan, "simulate": simulate}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text("")
    (tmp_path / "pins.yaml").write_text("pins: {dp: 8}\n")
    (tmp_path / "forbids.yaml").write_text("forbids: {'*.w': S1}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def arguments(name, option, value, more=None):
    if name == "decide":
        return MODEL, {"topo": "hgx-h100", **SMALL, option: value}
    common = {**PLAN, **({"topo": "hgx-h100"} if name == "simulate" else {})}
    return "mlp-2-16", common | {option: value} | (more or {})


def typed(given):
    words = []
    for name, value in given.items():
        flag = "-o" if name == "output" else f"--{name.replace('_', '-')}"
        if value is None:
            continue
        if value is True or value is False:
            words.append(flag if value else f"--no-{flag[2:]}")
            continue
        for part in value if isinstance(value, list) else [value]:
            words += [flag, ",".join(map(str, part)) if isinstance(part, tuple) else str(part)]
    return words


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_tried(name):
    flags = {flag.lstrip("-").replace("-", "_") for option in COMMANDS[name].command.params for flag in option.opts}
    tried = VALUES["plan"].keys() | VALUES[name].keys() | FUNCTIONS.keys() | {"o", "topo", "workers", "version"}
    assert flags - tried - {*model_options()} <= {"model", "source", "opaque_unknown"}


@pytest.mark.parametrize(("name", "option"), [(name, option) for name in VALUES for option in VALUES[name]])
def test_an_option_does_in_python_what_it_does_in_a_command(name, option, folder, capsys):
    model, given = arguments(name, option, VALUES[name][option], WITH.get((name, option)))
    result = getattr(tp, name)(model, **given)
    written = "again.json"
    file = {"json": written} if option not in {"json", "memory_report"} else {}
    assert run(COMMANDS[name], model, *typed(given | file)) == 0
    if name == "plan":
        assert run(plan, model, *typed(given | {"output": "again-plan.json"})) == 0
        assert tp.load("again-plan.json").total_bytes == result.total_bytes
    elif file and name == "decide":
        again = json.loads((folder / written).read_text())
        assert again["candidates"][0]["name"] == result.best.name
        assert again["candidates"][0]["seconds_per_step"] == pytest.approx(result.best.seconds_per_step)
    elif file:
        (again,) = read_reports(folder / written)
        assert again.seconds_per_step == result.seconds_per_step
    if option in {"output", "json", "page", "trace"}:
        assert (folder / VALUES[name][option]).stat().st_size


ERRORS = (
    ("decide", {"budget": "soon"}), ("decide", {"budget": 0}), ("decide", {"batch": "many"}), ("decide", {"batch": 0}),
    ("decide", {"pin": "tp"}), ("decide", {"stack": "x"}), ("decide", {"engine": "x"}), ("decide", {"dtype": "int4"}),
    ("decide", {"measured": "fast"}), ("decide", {"topo": "nowhere"}), ("decide", {"micro_batches": 2}),
    ("plan", {"workers": 0}), ("plan", {"search": "best"}), ("plan", {"parallel": "tp"}), ("plan", {"memory": "much"}),
    ("plan", {"objective": "time"}), ("plan", {"opaque_unknown": True}), ("plan", {"ways": "a,b"}),
    ("plan", {"shares": "1,x"}), ("simulate", {"collectives": "some"}), ("simulate", {"stack": "x"}),
    ("simulate", {"prefetch": -1}),
    ("simulate", {"memory_report": True}), ("simulate", {"parallel": "dp=2", "workers": 4}),
)  # fmt: skip


@pytest.mark.parametrize(("name", "wrong"), ERRORS, ids=str)
def test_an_error_is_that_of_the_command(name, wrong, folder, capsys):
    model, given = arguments(name, *next(iter(wrong.items())))
    with pytest.raises((InputError, ValueError)) as caught:
        getattr(tp, name)(model, **(given | wrong))
    assert run(COMMANDS[name], model, *typed(given | wrong)) == 2
    assert capsys.readouterr().err == f"error: {caught.value}\n"


def test_what_is_no_option_is_named():
    with pytest.raises(
        InputError, match=r"^decide: expected an option of the command, found 'bugdet': did you mean bud"
    ):
        tp.decide("gpt2", "hgx-h100", bugdet=3)
    with pytest.raises(InputError, match=r"^plan: explain is a function in Python: tensor_partitioner\.explain"):
        tp.plan("gpt2", 8, explain=True)
    with pytest.raises(InputError, match=r"^Missing option '--topo'\.$"):
        tp.decide("gpt2")
    for option, function in FUNCTIONS.items():
        assert callable(getattr(tp, function.partition("(")[0])), option


def test_a_wrong_type_is_one_line():
    graph = tp.model(MODEL, **SMALL)
    plan = tp.plan(graph, 4)
    for call, message in (
        (lambda: tp.simulate(graph, "hgx-h100"), "^simulate: expected a plan, a name or a file, found .*"),
        (lambda: tp.simulate(plan, 8), "^expected a machine, its name or its YAML file, found 8$"),
        (lambda: tp.simulate(plan, "hgx-h100", json=plan), "^json_path: expected text, found .*"),
        (lambda: tp.plan(graph, 4, pin=8), "^pins: expected GLOB=PLACEMENT, as in .*, found 8$"),
        (lambda: tp.decide(MODEL, "hgx-h100", batch=16, pin=8), "^pins: expected text, or a list of several, found 8$"),
        (lambda: tp.load_topology(8), "^expected a machine, its name or its YAML file, found 8$"),
    ):
        with in_one_line((InputError, TopologyError), message):
            call()


def test_an_error_about_a_plan_names_no_temporary_file():
    plan = tp.plan(tp.model(MODEL, **SMALL), 4)
    with pytest.raises(InputError, match=r"^the plan is a saved plan, .*: expected no --seed$"):
        tp.simulate(plan, "hgx-h100", seed=3)


def test_objects_in_place_of_names():
    graph, machine = tp.model(MODEL, **SMALL), load_topology("hgx-h100")
    by_objects = tp.decide(graph, machine, pin="dp=8")
    assert by_objects.best.fits
    named = tp.plan(graph, parallel="dp=4")
    assert tp.plan(graph, 4, search="joint", pin=["*.w=R"]).workers == 4
    assert tp.simulate(named, topo=machine).total_bytes == named.total_bytes
    assert tp.simulate(named, "hgx-h100", stack="compile").seconds > 0


def test_values_that_vary(folder, capsys):
    cells = tp.decide_each(MODEL, "hgx-h100", vary=["batch=16,32", "nodes=1"][:1], price_per_hour="2.5", **{
        name: value for name, value in SMALL.items() if name != "batch"})  # fmt: skip
    words = typed({name: value for name, value in SMALL.items() if name != "batch"})
    assert run(decide, MODEL, "--topo", "hgx-h100", "--vary", "batch=16,32", "--price-per-hour", 2.5, *words,
               "--json", "cells.json") == 0  # fmt: skip
    again = json.loads((folder / "cells.json").read_text())["cells"]
    assert [cell["values"] for cell in again] == [cell.values for cell in cells]
    assert [cell["price"] for cell in again] == pytest.approx([cell.price for cell in cells])
    assert msgspec.to_builtins(cells[0].decision.best)["name"] == again[0]["decision"]["candidates"][0]["name"]
    assert shlex.split(cells[0].decision.commands[0])[0] in {"simulate", "decide"}
