"""Bad input: one line on stderr that names what and where, status 2, nothing on stdout, no traceback."""

import copy
import json
import re
from pathlib import Path

import pytest

from planner.export.targets import TARGETS
from planner.graph.graph_json import to_data
from planner.models import build
from planner.search import SEARCHERS
from tensor_partitioner.commands.compare import main as compare
from tensor_partitioner.commands.export import main as export
from tensor_partitioner.commands.plan import main as plan
from tensor_partitioner.commands.simulate import main as simulate
from tests.launcher import exit_status

ROOT = Path(__file__).resolve().parents[2]
OWN = (ROOT / "examples" / "own_model.py").read_text()
PRODUCT = json.loads((ROOT / "examples" / "product.plan.json").read_text())


@pytest.fixture
def refused(capsys):
    """Run a command and check its manners; the message must match the pattern."""

    def run(main, *arguments, match):
        ended = exit_status(main, [str(argument) for argument in arguments])
        shown = capsys.readouterr()
        assert shown.err.startswith("error: "), shown.err
        assert shown.err.count("\n") == 1, shown.err
        assert "Traceback" not in shown.err
        assert re.search(match, shown.err), shown.err
        assert shown.out == ""
        assert ended == 2

    return run


def changed(data, *path, to):
    """Return a copy of nested data with one place set, or removed where `to` is None."""
    result = copy.deepcopy(data)
    inner = result
    for key in path[:-1]:
        inner = inner[key]
    if to is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return result


PLANS = {
    "missing tensor": (("steps", 1, "tensors", "W"), None, r"\$\.steps\[1\]\.tensors.*'W'.*none"),
    "missing node": (("steps", 0, "nodes", "Y"), None, r"\$\.steps\[0\]\.nodes.*'Y'.*none"),
    "unknown tensor": (("steps", 0, "tensors", "Z"), "S0", r"\$\.steps\[0\]\.tensors\.Z"),
    "no such dimension": (("steps", 1, "tensors", "X"), "S2", r"\$\.steps\[1\]\.tensors\.X.*\[4, 4\].*S2"),
    "placement in other digits": (("steps", 0, "tensors", "X"), "S\u0661", r"\$\.steps\[0\]\.tensors\.X.*S<dim"),
    "endless dimension": (("steps", 0, "tensors", "X"), "S" + "9" * 5000, r"\$\.steps\[0\]\.tensors\.X.*S<dim"),
    "partial input": (("steps", 0, "tensors", "X"), "P+", r"\$\.steps\[0\]\.tensors\.X.*P\+.*sums"),
    "partial without a sum": (("steps", 0, "tensors", "Y"), "P+", r"\$\.steps\[0\]\.tensors\.Y.*P\+.*sums"),
    "terms of nothing": (("steps", 1, "nodes", "Y"), "+", r"\$\.steps\[1\]\.nodes\.Y.*is linear, found none"),
    "no such placement": (("steps", 0, "tensors", "X"), "Q", r"\$\.steps\[0\]\.tensors\.X.*'Q'"),
    "no such variable": (("steps", 0, "nodes", "Y"), "b", r"\$\.steps\[0\]\.nodes\.Y.*i, j, k.*'b'"),
    "other bytes": (("reported", "bytes", "total"), 127, r"\$\.reported\.bytes\.total.*128.*127"),
    "other matrix": (("reported", "bytes", "matrix", 0, 1), 17, r"\$\.reported\.bytes\.matrix"),
    "placement not searched": (("steps", 0, "tensors", "X"), "R", r"\$\.steps\[0\]\.tensors\.X: expected S, .*found R"),
    "ways of one": (("ways",), [1, 4], r"\$\.ways\[0\].*1"),
    "other ways": (("ways",), [2, 3], r"\$\.steps.*\[2, 3\].*\[2, 2\]"),
    "wrong type": (("seed",), "zero", r"int.*str.*\$\.seed"),
    "negative seed": (("seed",), -1, r"int.*>= 0.*\$\.seed"),
    "unknown key": (("colour",), "red", r"unknown field.*colour"),
    "missing key": (("ways",), None, r"missing required field.*ways"),
    "other format": (("format",), "plan/9", r"\$\.format.*plan/1.*plan/9"),
    "other training": (("reported", "training", "micro_batches"), 2, r"\$\.reported\.training.*micro_batches=1.*=2"),
    "unknown training": (("reported", "training", "pipeline"), 2, r"unknown field.*pipeline"),
    "rows of a batch": (("graph", "tensors", "X", "init", "row"), 2, r"\$\.graph\.tensors\.X\.init: .*`row`"),
    "no micro-batches": (("graph", "micro_batches"), 0, r"\$\.graph\.micro_batches: expected .*1"),
    "sums of nothing": (("graph", "accumulated"), ["X"], r"\$\.graph: accumulated: no node produces X"),
    "unknown operator": (("graph", "nodes", 0, "op"), "matmull", r"'Y'.*matmull"),
    "negative extent": (("graph", "tensors", "X", "shape"), [-4, 4], r"'X'.*-4"),
}


@pytest.mark.parametrize("case", PLANS)
def test_plans(refused, tmp_path, case):
    path, value, match = PLANS[case]
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(changed(PRODUCT, *path, to=value)))
    refused(simulate, file, "--topo", "uniform-8", match=rf"bad\.json: .*(?:{match})")


RECORD = {"winner": "recursive", "bytes": {"recursive": 128}, "lower_bound": 64, "bound_by": "joint", "seconds": 0.5}
SEARCHES = {
    "bound above the plan": ({"lower_bound": 129}, r"\$\.search\.lower_bound: expected at most .* 128, found 129"),
    "negative bound": ({"lower_bound": -1}, r">= 0.*\$\.search\.lower_bound"),
    "negative seconds": ({"seconds": -1.0}, r">= 0.*\$\.search\.seconds"),
    "unknown winner": ({"winner": "magic"}, r"\$\.search\.bytes: expected the 128 bytes of 'magic', found none"),
    "bound without a winner": ({"winner": ""}, r"\$\.search\.winner: expected .*found none"),
    "other bytes of the winner": ({"bytes": {"recursive": 127}}, r"\$\.search\.bytes: expected the 128.*found 127"),
    "bound by nobody": ({"bound_by": ""}, r"\$\.search\.bound_by: expected .* its searcher, found 64 by ''"),
    "bound by another": ({"bound_by": "magic"}, r"\$\.search\.bound_by: expected by hand or joint, found 'magic'"),
    "by whom without a bound": ({"lower_bound": None}, r"\$\.search\.bound_by: .*found none by 'joint'"),
    "too much of data parallelism": (
        {"data_parallel_bytes": 1537},
        r"\$\.search\.data_parallel_bytes: expected at most 1536 for 4 workers, found 1537",
    ),
    "factorisation of nobody's plan": (
        {"winner": "", "factorisations": [{"ways": [2, 2], "cost": 128, "seconds": 0}]},
        r"\$\.search\.winner: expected .*found none",
    ),
    "factorisation of other workers": (
        {"factorisations": [{"ways": [2, 3], "cost": 128, "seconds": 0.1}]},
        r"\$\.search\.factorisations\[0\]\.ways: expected 4 workers, found \[2, 3\]",
    ),
    "cheaper factorisation": (
        {"factorisations": [{"ways": [2, 2], "cost": 128, "seconds": 0}, {"ways": [4], "cost": 127, "seconds": 0}]},
        r"\$\.search\.factorisations\[1\]\.cost: expected no less than the plan's 128, found 127",
    ),
    "other cost of its factorisation": (
        {"factorisations": [{"ways": [2, 2], "cost": 129, "seconds": 0}]},
        r"\$\.search\.factorisations: expected 128 for the plan's ways \[2, 2\], found \[129\]",
    ),
    "none of its factorisations": (
        {"factorisations": [{"ways": [4], "cost": 128, "seconds": 0}]},
        r"\$\.search\.factorisations: expected 128 for the plan's ways \[2, 2\], found none",
    ),
    "unknown key": ({"colour": 3}, r"\$\.search: .*unknown field.*colour"),
    "wrong type": ({"bytes": [3]}, r"object.*array.*\$\.search\.bytes"),
}


@pytest.mark.parametrize("case", SEARCHES)
def test_what_is_said_of_a_search_does_not_contradict_the_plan(refused, tmp_path, case):
    more, match = SEARCHES[case]
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(changed(PRODUCT, "reported", "search", to={**RECORD, **more})))
    refused(plan, file, match=rf"bad\.json: .*(?:{match})")


def test_a_search_that_the_graph_or_the_table_of_placements_does_not_allow(refused, tmp_path):
    file = tmp_path / "bad.json"
    data = changed(PRODUCT, "reported", "search", to={})
    file.write_text(json.dumps(changed(data, "search", "placements", to="R")))
    refused(plan, file, match=r"\$\.search\.placements: expected one of S; S,R; S,R,P, found 'R'")
    data = changed(PRODUCT, "graph", "tensors", "X", "role", to="weight")
    file.write_text(json.dumps(changed(data, "reported", "search", to={"data_parallel_bytes": 64})))
    refused(plan, file, match=r"\$\.search\.data_parallel_bytes: expected none, with 0 samples, for 4 .*, found 64")


def test_what_agrees_is_shown(tmp_path, capsys):
    file = tmp_path / "good.json"
    tried = [{"ways": [2, 2], "cost": 128, "seconds": 0.1}, {"ways": [4], "cost": 128, "seconds": 0.1}]
    once_stored = {"gap": 1.0, "space": "placements S, ways 2 x 2"}
    record = {**RECORD, **once_stored, "factorisations": tried}
    file.write_text(json.dumps(changed(PRODUCT, "reported", "search", to=record)))
    assert exit_status(plan, [str(file)]) == 0
    assert "64, gap 100.0% (by joint)" in capsys.readouterr().out


def test_names_cannot_drive_a_terminal(refused, tmp_path, capsys):
    red = "\x1b[31mred\x1b[0m\x07"
    file = tmp_path / "red.json"
    data = changed(PRODUCT, "reported", "search", to={})
    file.write_text(json.dumps(changed(data, "search", "model", to=red)))
    assert exit_status(plan, [str(file)]) == 0
    shown = capsys.readouterr().out
    assert r"plan of \x1b[31mred\x1b[0m\x07" in shown
    assert "\x1b" not in shown
    file.write_text(json.dumps(changed(PRODUCT, "graph", "nodes", 0, "op", to=red)))
    refused(plan, file, match=r"\\x1b\[31mred")


def test_a_dimension_that_is_not_eligible(refused, tmp_path):
    data = copy.deepcopy(PRODUCT)
    del data["reported"]
    data["ways"] = [2, 4]
    data["steps"][1]["ways"] = 4
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(data))
    refused(simulate, file, "--topo", "uniform-8", match=r"bad\.json: \$\.steps\[1\]\.tensors\.X: S0.*eligible.*8.*4")


@pytest.mark.parametrize("text", ["", "{", '{"format": "plan/1", "ways": [2,', "[1, 2", "\x00\x01", "nul"])
def test_files_that_are_not_json(refused, tmp_path, text):
    file = tmp_path / "cut.json"
    file.write_text(text)
    for main, options in ((simulate, ("--topo", "uniform-8")), (plan, ("--workers", "2")), (compare, ())):
        refused(main, file, *options, match=r"cut\.json: .*(JSON|truncated|Expected)")


DEEP = '{"format": "plan/1", "graph": {"tensors": ' + "[" * 100_000
TWICE = json.dumps(PRODUCT).replace('"X": "S0"', '"X": "S1", "X": "S0"', 1)


@pytest.mark.parametrize(
    ("text", "match"),
    [(DEEP, "deep"), (TWICE, "'X' occurs twice"), ("," * 10**7 + ",", "at most 10000000 values")],
    ids=["deep", "twice", "long"],
)
def test_json_that_is_no_plan(refused, tmp_path, text, match):
    (tmp_path / "bad.json").write_text(text)
    refused(simulate, tmp_path / "bad.json", "--topo", "uniform-8", match=rf"bad\.json: .*{match}")


UNBIND = {
    "tensors": {
        "x": {"shape": [2, 2], "dtype": "float32", "role": "input", "init": {"kind": "data"}},
        "y": {"shape": [2], "dtype": "float32", "role": "activation"},
    },
    "nodes": [{"name": "y", "op": "unbind", "inputs": ["x"], "outputs": ["y"], "attrs": {"n": "PARTS", "dim": 0}}],
    "updates": {},
    "metrics": {},
}


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        (str(10**9), "expected 1 to 4096 parts of 'x', found 1000000000"),
        (str(10**30), r"numbers may have at most 20 digits, found 10+\.\.\."),
        ("9" * 5000, r"numbers may have at most 20 digits, found 9+\.\.\."),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('"\\ud800"', "not UTF-8 text"),
    ],
    ids=["parts", "digits", "more digits", "depth", "half a character"],
)
def test_graphs_beyond_all_bounds(refused, tmp_path, parts, match):
    (tmp_path / "graph.json").write_text(json.dumps(UNBIND).replace('"PARTS"', parts))
    refused(plan, tmp_path / "graph.json", "--workers", "2", match=rf"graph\.json: .*{match}")


@pytest.mark.parametrize("extent", [2**33, 10**18])
def test_more_bytes_than_can_be_counted(refused, tmp_path, extent):
    data = copy.deepcopy(PRODUCT)
    del data["reported"]
    for tensor in data["graph"]["tensors"].values():
        tensor["shape"] = [extent, extent]
    (tmp_path / "vast.json").write_text(json.dumps(data))
    refused(simulate, tmp_path / "vast.json", "--topo", "uniform-8", match=r"vast\.json: .*largest tensor is '[XWY]'")
    (tmp_path / "graph.json").write_text(json.dumps(data["graph"]))
    refused(plan, tmp_path / "graph.json", "--workers", "4", match=r"largest tensor is '[XWY]'")


def test_files_that_cannot_be_read(refused, tmp_path):
    (tmp_path / "loop.json").symlink_to("loop.json")
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    says = {"absent": "No such file", "loop": "Too many levels of", "endless": "expected at most 268435456 bytes"}
    for main, options in ((simulate, ("--topo", "uniform-8")), (plan, ("--workers", "2")), (compare, ())):
        for name, match in says.items():
            refused(main, tmp_path / f"{name}.json", *options, match=rf"{name}\.json: {match}")
    refused(plan, "x" * 5000, "--workers", "2", match=r"^error: x{900}\.\.\.$")
    (tmp_path / "folder.json").mkdir()
    refused(simulate, tmp_path / "folder.json", "--topo", "uniform-8", match=r"folder\.json: Is a directory")
    refused(plan, tmp_path / "absent.py:model", "--workers", "2", match=r"absent\.py: No such file")


def test_files_of_another_kind(refused, tmp_path, capsys):
    product, report, machine = ROOT / "examples" / "product.plan.json", tmp_path / "r.json", tmp_path / "m.yaml"
    exit_status(simulate, [str(product), "--topo", "uniform-8", "--json", str(report)])
    capsys.readouterr()
    refused(simulate, report, "--topo", "uniform-8", match=r"r\.json: expected a plan or a graph, .* 'report/1'")
    refused(plan, report, "--workers", "2", match=r"r\.json: expected a plan or a graph, .* 'report/1'")
    refused(compare, product, report, match=r"plan\.json: expected a report, .* 'plan/2'")
    refused(simulate, product, "--topo", report, match=r"r\.json: expected a machine, .* 'report/1'")
    link = "{name: a, ends: [b, c], type: d, direction: both}"
    machine.write_text(f"format: topology/2\nname: m\ndescription: of one link\nlinks:\n- {link}\n")
    directions = r"m\.yaml: \$\.links\[0\]\.direction: expected 'each' or 'shared', found 'both'"
    refused(simulate, product, "--topo", machine, match=directions)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("resnet", "--workers", "2"), r"unknown model 'resnet'.*mlp-L-H"),
        (("wresnet-15-1", "--workers", "2"), r"wresnet-15-1.*14, 26, 50"),
        (("mlp-2-8", "--workers", "2", "--search", "magic"), r"recursive, joint.*'magic'"),
        (("mlp-2-8", "--workers", "2", "--placements", "Q"), r"placements.*'Q'"),
        (("mlp-2-8", "--workers", "2", "--objective", "time"), r"--objective time: expected --topo MACHINE"),
        (("mlp-2-8", "--workers", "2", "--optimizer", "magic"), r"--optimizer.*magic"),
        (("mlp-2-8", "--workers", "2", "--dtype", "float8"), r"--dtype.*float8"),
        (("mlp-2-8", "--workers", "2", "--micro-batches", "5"), r"micro_batches must divide the batch of 32, found 5"),
        (("mlp-2-8", "--workers", "2", "--recompute", "all"), r"--recompute.*'all'.*'none', 'selective', 'segments'"),
        (("mlp-2-8", "--workers", "2", "--loss-scale", "0"), r"loss_scale.*above 0, found 0"),
        (("mlp-2-8", "--workers", "2", "--batch", "0"), r"--batch.*0"),
        (("mlp-2-8",), r"--workers.*--ways"),
        (("mlp-2-8", "--workers", "0"), r"--workers.*0"),
        (("mlp-2-8", "--ways", "2,x"), r"--ways.*2,x"),
        (("mlp-2-8", "--ways", "2_2"), r"--ways.*2_2"),
        (("mlp-2-8", "--workers", "1000000000000000003"), r"at most 1024 workers, found 1000000000000000003"),
        (("mlp-2-8", "--ways", "2,900"), r"at most 1024 workers, found 1800"),
        (("mlp-9999999999999-8", "--workers", "2"), r"mlp-L-H.*from 1 to 999999999"),
        (("mlp-2-8", "--workers", "2", "-o", "/dev/full"), r"/dev/full: No space left"),
        (("mlp-2-8", "--workers", "2", "--json", "/dev/full"), r"/dev/full: No space left"),
        (("mlp-2-8", "--ways", "2,2", "--workers", "6"), r"2,2.*4 workers, not 6"),
        (("mlp-2-8", "--workers", "2", "--colour", "red"), r"--colour"),
        (("mlp-2-8", "--workers", "2", "--lr", "nan"), r"--lr.*'nan' is not a finite number"),
        (("mlp-2-8", "--workers", "2", "--lr", "inf"), r"--lr.*'inf' is not a finite number"),
        (("mlp-2-8", "--workers", "2", "-o", "absent/folder/plan.json"), r"absent/folder/plan\.json: No such file"),
        (("mlp-2-8", "--workers", "2", "-o", "-"), r"found -; .*/dev/stdout"),
        (("mlp-2-8", "--workers", "2", "--beta1", "0.5"), r"momentum has no constant beta1.*its constants are lr, mom"),
        (("mlp-2-8", "--workers", "2", "--optimizer", "adam", "--beta1", "1"), r"beta1 must be .* below 1, found 1"),
        (("mlp-2-8", "--workers", "2", "--optimizer", "rmsprop", "--eps", "0"), r"eps must be .* above 0, found 0"),
        (("mlp-2-8", "--workers", "2", "--optimizer", "none", "--lr", "1"), r"none has no constant lr.*are none"),
        (("mlp-2-8", "--workers", "2", "--dtype", "float16", "--loss-scale", "1e6"), r"at most 65504 in float16"),
        (("mlp-2-8", "--workers", "2", "--dtype", "float16", "--optimizer", "adam"), r"eps must be at least 6e-08"),
        ((), r"MODEL"),
    ],
)
def test_options_of_plan(refused, arguments, match):
    refused(plan, *arguments, match=match)


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("def model(): return 3\n", r"own\.py:model: .*Graph.*int"),
        ("def model():\n    return 1 / 0\n", r"own\.py:2: .*ZeroDivisionError"),
        ("def model():\n    raise SystemExit(0)\n", r"own\.py:2: model\(\): SystemExit"),
        ("def model(:\n", r"own\.py:1: .*SyntaxError"),
        ("import no_such_module\n", r"own\.py:1: .*no_such_module"),
        ("model = 3\n", r"own\.py: .*'model'"),
        ("def model(x): pass\n", r"own\.py: .*TypeError"),
    ],
)
def test_functions_of_ones_own(refused, tmp_path, source, match):
    (tmp_path / "own.py").write_text(source)
    refused(plan, f"{tmp_path / 'own.py'}:model", "--workers", "2", match=match)


SEARCHER = "from planner.search import register, Searcher\nregister(Searcher('odd', {}, ''{}))\n"
TARGET = """
from pathlib import Path
from planner.export.targets import register_target
register_target("odd", "odd", Path("odd.txt"))(lambda signature: None)
"""
EXTENSIONS = {
    "exit": (SEARCHER.format("lambda *_: exit(0)", ""), ("--search", "odd"), r"user code called sys\.exit\(0\)"),
    "rivals": (SEARCHER.format("print", ", rival_under=('speed',)"), (), r"expected a tuple of bytes, time.*'speed'"),
    "number": (SEARCHER.format("print", ", rival_under=3"), (), r"expected a tuple of bytes, time, found 3"),
}


@pytest.mark.parametrize("case", EXTENSIONS)
def test_extensions_that_are_not_what_they_should_be(refused, tmp_path, case):
    source, options, match = EXTENSIONS[case]
    (tmp_path / "own.py").write_text(source)
    known = dict(SEARCHERS)
    try:
        refused(plan, "mlp-2-8", "--workers", "2", "--operators", tmp_path / "own.py", *options, match=match)
    finally:
        SEARCHERS.clear()
        SEARCHERS.update(known)


def test_a_target_that_says_nothing(refused, tmp_path):
    (tmp_path / "own.py").write_text(TARGET)
    file = ROOT / "examples" / "product.plan.json"
    try:
        refused(export, file, "--to", "odd", "--operators", tmp_path / "own.py", match=r"target odd: .*found None")
    finally:
        TARGETS.pop("odd", None)


def test_mixed_float16_keeps_state_in_float32(tmp_path):
    assert exit_status(plan, ["mlp-2-8", "--workers", "2", "--dtype", "mixed-float16", "--optimizer", "adam"]) == 0


def test_model_options_for_a_graph_of_ones_own(refused):
    refused(plan, "examples/product.py:product", "--workers", "2", "--batch", "3", match=r"--batch")
    refused(plan, "examples/product.py", "--workers", "2", match=r"product\.py: expected a function 'make', found none")


ASKED = ("--workers", "2", "--micro-batches", "2")


def test_training_options_for_a_graph_of_ones_own(refused, tmp_path):
    options = r"product.*parameters for --micro-batches, as in def product\(micro_batches=2\)"
    refused(plan, "examples/product.py:product", *ASKED, match=options)
    refused(plan, "examples/product.plan.json", *ASKED[2:], match=r"saved plan.*no --micro-batches")
    (tmp_path / "graph.json").write_text(json.dumps(to_data(build("mlp-2-8"))))
    refused(plan, tmp_path / "graph.json", *ASKED, match=r"a saved graph has no model options.*--micro-batches")
    own = OWN.replace("GraphBuilder(dtype), Recipe(micro_batches, recompute)", "GraphBuilder(dtype), Recipe()")
    (tmp_path / "own.py").write_text(own)
    refused(plan, f"{tmp_path / 'own.py'}:two_layers", *ASKED, match=r"own\.py:two_layers: .*2 micro-batches, found 1")


def test_other_options_of_simulate(refused):
    file = ROOT / "examples" / "product.plan.json"
    refused(simulate, file, match=r"--topo")
    refused(simulate, file, "--topo", "nowhere", match=r"nowhere.*topo list")
    refused(simulate, file, "--topo", "uniform-8", "--prefetch", "-1", match=r"--prefetch.*-1")
    refused(compare, match=r"REPORT\.json")


def test_more_workers_than_devices(refused, tmp_path, capsys):
    file = tmp_path / "wide.json"
    assert exit_status(plan, ["mlp-2-64", "--workers", "16", "-o", str(file)]) == 0
    capsys.readouterr()
    refused(simulate, file, "--topo", "uniform-8", match=r"16.*8|8.*16")
