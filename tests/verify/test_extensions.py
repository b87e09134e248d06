"""Operators of one's own: registered once, for every command, and refused with the file's line."""

import json
import re
import sys

import pytest

import tdl
from executor.cases import REGISTERED, generators
from executor.extensions import cases, data_set, kernel, transport
from executor.kernels import KERNELS
from planner import extensions
from planner.errors import GraphError
from planner.extensions import gradient, load_file
from planner.graph import infer
from planner.graph.rules import RULES
from tensor_partitioner.commands.operators import main as operators
from tensor_partitioner.commands.plan import main as plan
from tensor_partitioner.commands.simulate import main as simulate
from tests.launcher import outcome

OPERATOR = """
import tdl
from executor.extensions import cases, kernel
from executor.cases import Case
from planner.extensions import gradient
from planner.graph import GraphBuilder, Init

@tdl.register
@tdl.op
def thrice(x):
    return lambda *i: 3 * x[i]

@kernel("thrice")
def run(call):
    call.xp.multiply(call.inputs[0], 3, out=call.outputs[0])

@gradient("thrice")
def rule(b):
    return (b.emit("scale", (b.gradient,), 0, factor=3.0),)

@cases("thrice")
def case(draw):
    return Case((draw.array(*draw.sizes(2)),))

def model():
    b = GraphBuilder()
    b.apply("thrice", b.input("x", (4, 4), Init("uniform", scale=1.0)), name="y")
    return b.finish({}, {})
"""


TABLES = (sys.modules["tdl.catalog"]._operators, extensions._loaded, KERNELS, RULES, REGISTERED)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A file with an operator; afterwards, tables and import path forget it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules, known = set(sys.modules), [dict(table) for table in TABLES]
    file = tmp_path / "thrice_operators.py"
    file.write_text(OPERATOR)
    yield file
    for table, before in zip(TABLES, known, strict=True):
        table.clear()
        table.update(before)
    for name in set(sys.modules) - modules:  # not libraries that a kernel asked for: NumPy's cannot be loaded again
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def test_every_command_takes_the_file(own, tmp_path, capsys):
    saved = tmp_path / "plan.json"
    status, _, error = outcome(capsys, plan, f"{own}:model", "--operators", own, "--workers", 2, "-o", saved)
    assert (status, error) == (0, "")
    assert json.loads(saved.read_text())["graph"]["nodes"][0]["op"] == "thrice"
    status, _, error = outcome(capsys, simulate, saved, "--operators", own, "--topo", "uniform-8")
    assert (status, error) == (0, "")
    status, out, error = outcome(capsys, operators, "check", "thrice", "--operators", own, "--backend", "numpy")
    assert (status, error) == (0, "")
    assert "gradient" in out
    status, out, _ = outcome(capsys, operators, "list", "--operators", own, "--json")
    assert {"thrice"} <= {entry["name"] for entry in json.loads(out)}


def test_a_plan_alone_runs_no_file(own, tmp_path, capsys):
    saved = tmp_path / "plan.json"
    outcome(capsys, plan, f"{own}:model", "--workers", 2, "-o", saved)
    for table in TABLES:
        for key in [key for key in table if key in {"thrice", own}]:
            del table[key]
    infer._infer.cache_clear()
    status, _, error = outcome(capsys, simulate, saved, "--topo", "uniform-8")
    assert status == 2
    assert "unknown operator 'thrice'" in error
    assert "--operators FILE.py" in error


def test_a_wrong_operator_of_ones_own_is_found(own, capsys):
    own.write_text(OPERATOR.replace("factor=3.0", "factor=2.0"))
    status, out, error = outcome(capsys, operators, "check", "thrice", "--operators", own, "--backend", "numpy")
    assert status == 1
    assert error.startswith("error: operator thrice: gradient of operand 0: derivative along a random direction is ")
    assert error.count("\n") == 1
    assert "FAILED" in out


WRONG = {
    "a name that is taken": ("def thrice(x)", "def relu(x)", "8: loading: relu: name clash: the catalog has"),
    "a second kernel": (
        '@kernel("thrice")',
        '@kernel("relu")',
        "13: loading: relu: name clash: .* already has a kernel",
    ),
    "an exception": ("def model():", "1 / 0\ndef model():", "25: loading: ZeroDivisionError"),
    "a syntax error": ("def run(call):", "def run(call)", "14: loading: SyntaxError"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_ends_in_one_line_that_names_it(own, tmp_path, capsys, case):
    old, new, message = WRONG[case]
    assert old in OPERATOR
    own.write_text(OPERATOR.replace(old, new, 1))
    status, out, error = outcome(capsys, simulate, tmp_path / "none.json", "--operators", own, "--topo", "uniform-8")
    assert (status, out) == (2, "")
    assert re.search(rf"error: .*thrice_operators\.py:{message}", error), error
    assert error.count("\n") == 1


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("register", [gradient, kernel, cases])
def test_names_that_are_taken_or_unknown(register):
    with pytest.raises(tdl.TDLError, match=r"relu: name clash: the operator (already )?has a "):
        (register("relu")(lambda _: None), generators())  # the catalog's cases are read where they are drawn
    with pytest.raises(tdl.TDLError, match="nothing: no operator of this name is in the catalog"):
        register("nothing")
    with pytest.raises(tdl.TDLError, match=r"expected the name of an operator to register a .* for, found <function"):
        register(lambda call: None)


@pytest.mark.parametrize(("register", "name"), [(data_set, "digits"), (transport, "p2p"), (transport, "auto")])
def test_data_sets_and_transports_keep_their_names(register, name):
    with pytest.raises(tdl.TDLError, match=f"{name}: name clash: .* of this name already exists"):
        register(name)(lambda *_: None)


def test_a_failed_file_can_be_mended(own):
    own.write_text("1 / 0\n")
    with pytest.raises(GraphError, match=r"thrice_operators\.py:1"):
        load_file(own)
    own.write_text(OPERATOR)
    assert load_file(own).model().nodes[0].op == "thrice"
