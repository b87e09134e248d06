"""The command `simulate`: models planned first, data parallelism beside the plan, sweeps, pictures, what is refused."""

import json
import re
from itertools import product

import pytest

import planner
from planner.errors import PlanError
from planner.models import build
from planner.plans.plan_json import load_plan
from planner.report.schema import read_reports
from simulator import simulate, simulate_system
from simulator.baselines.registry import SYSTEMS
from tensor_partitioner.commands.plan import main as plan
from tensor_partitioner.commands.simulate import main
from tensor_partitioner.commands.simulation_request import ALSO_DATA_PARALLEL

MODEL = (
    *("mlp-2-16", "--batch", "8", "--workers", "4", "--dtype", "float32", "--optimizer", "momentum"),
    *("--topo", "uniform-8"),
)


def run(*arguments, command=main):
    with pytest.raises(SystemExit) as ended:
        command([str(argument) for argument in arguments])
    return ended.value.code


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "mlp.json"
    assert run(*MODEL[:-2], "-o", path, command=plan) == 0
    return path


def but_its_name(report):
    return {name: getattr(report, name) for name in report.__struct_fields__ if name != "plan"}


def test_a_model_is_planned_first(saved, tmp_path, capsys):
    of_model, of_plan, kept = (tmp_path / name for name in ("one.json", "other.json", "kept.json"))
    assert run(*MODEL, "--json", of_model, "-o", kept) == 0
    assert run(saved, "--topo", "uniform-8", "--json", of_plan) == 0
    shown = capsys.readouterr().out
    assert "simulated: kept.json" in shown
    assert "simulated: mlp.json" in shown
    (planned,), (loaded,) = read_reports(of_model), read_reports(of_plan)
    assert but_its_name(planned) == but_its_name(loaded)
    assert load_plan(kept).layouts == load_plan(saved).layouts


def test_what_planning_is_asked_for_is_done(tmp_path):
    asked = ("--search", "data-parallel", "--ways", "4", "--objective", "time")
    assert run(*MODEL, *asked, "--json", tmp_path / "r.json", "-o", tmp_path / "p.json") == 0
    kept, (report,) = load_plan(tmp_path / "p.json"), read_reports(tmp_path / "r.json")
    assert (kept.search.objective, kept.search.machine, report.searcher) == ("time", "uniform-8", "data-parallel")


def test_data_parallelism_stands_beside_the_plan(tmp_path, capsys):
    """What is said of it is what simulating its plan says."""
    assert run(*MODEL, "--json", tmp_path / "r.json") == 0
    shown = capsys.readouterr().out
    (report,) = read_reports(tmp_path / "r.json")
    alone = ("--search", "data-parallel", "--ways", "4", "--no-data-parallel")
    assert run(*MODEL, *alone, "--json", tmp_path / "d.json") == 0
    assert "data parallelism " not in capsys.readouterr().out
    (beside,) = read_reports(tmp_path / "d.json")
    assert beside.data_parallel is None
    assert report.data_parallel.seconds_per_step == beside.seconds_per_step
    assert report.data_parallel.samples_per_s == beside.samples_per_s
    assert report.data_parallel.total_bytes == beside.total_bytes
    assert report.data_parallel.arena_bytes == max(beside.arena_bytes)
    times = beside.seconds_per_step / report.seconds_per_step
    assert f"{times:.3g} times as long" in shown


def test_where_data_parallelism_is_not_possible_the_reason_is_given(capsys):
    assert run("mlp-2-16", "--batch", "2", "--workers", "4", "--topo", "uniform-8") == 0
    assert "not possible: fewer samples than workers" in capsys.readouterr().out
    assert run("examples/product.plan.json", "--topo", "uniform-8") == 0
    assert "data parallelism" in capsys.readouterr().out


def test_from_python_the_same_is_found(saved, tmp_path):
    assert run(saved, "--topo", "uniform-8", "--json", tmp_path / "r.json") == 0
    data_parallel = planner.plan(load_plan(saved).graph, 4, ways=(4,), searcher="data-parallel")
    simulation = simulate(saved, "uniform-8", data_parallel=data_parallel)
    assert but_its_name(*read_reports(tmp_path / "r.json")) == but_its_name(simulation)
    assert simulate(saved, "uniform-8").data_parallel is None


@pytest.mark.parametrize(
    "option",
    [
        ("--batch", "8"), ("--workers", "4"), ("--ways", "4"), ("--placements", "S"), ("--seed", "1"), ("-o", "p.json"),
        ("--objective", "bytes"), ("--memory", "1GiB"), ("--optimizer", "sgd"), ("--search", "joint"),
        ("--largest-batch",),
    ],
)  # fmt: skip
def test_a_saved_plan_is_not_planned_again(saved, capsys, option):
    assert run(saved, "--topo", "uniform-8", *option) == 2
    assert re.fullmatch(rf"error: .*mlp\.json is a saved plan, .*: expected no {option[0]}\n", capsys.readouterr().err)


def test_a_sweep_is_every_combination(tmp_path, capsys):
    file = tmp_path / "sweep.json"
    swept = ("--sweep", "batch=2,8", "--sweep", "overlap=true,false", "--sweep", "topo=uniform-8,uniform-2")
    assert run("mlp-2-16", "--workers", "4", *swept, "--json", file) == 1
    shown = capsys.readouterr()
    assert (
        shown.err == f"note: {ALSO_DATA_PARALLEL}\nerror: mlp-2-16: 4 of 8 simulations failed or do not fit in memory\n"
    )
    assert shown.out.count("error: uniform-2") == 4
    assert shown.out.count("not possible") == 2
    sweep = json.loads(file.read_text())
    assert sweep["format"] == "sweep/1"
    combinations = [dict(zip(("batch", "overlap", "topo"), values, strict=True)) for values in product(
        ("2", "8"), ("true", "false"), ("uniform-8", "uniform-2"))]  # fmt: skip
    assert [cell["values"] for cell in sweep["cells"]] == combinations
    for cell in sweep["cells"]:
        assert (cell["report"] is None) == (cell["values"]["topo"] == "uniform-2") == (cell["error"] is not None)
    alone = tmp_path / "alone.json"
    assert (
        run("mlp-2-16", "--workers", "4", "--batch", "8", "--no-overlap", "--topo", "uniform-8", "--json", alone) == 0
    )
    assert json.loads(alone.read_text()) == sweep["cells"][6]["report"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sweep", "batch"), r"--sweep.*batch=8,16,32, found 'batch'"),
        (("--sweep", "batch=8,,9"), r"--sweep.*found 'batch=8,,9'"),
        (("--sweep", "batch=8", "--sweep", "batch=9"), r"once, found batch again"),
        (("--sweep", "batch=8,x"), r"--batch.*'x'"),
        (("--sweep", "topo=uniform-8,nowhere"), r"nowhere: expected a topology file or one of"),
        (("--sweep", "colour=red"), r"--sweep colour: expected one of .*batch"),
        (("--sweep", "ways=4,2"), r"--sweep ways: expected one of"),
        (("--sweep", "batch=8", "--trace", "t.json"), r"many plans: expected no --trace"),
        (("--sweep", "batch=8", "-o", "p.json"), r"many plans: expected no -o"),
        (("--sweep", "batch=8,16", "--largest-batch"), r"finds the batch: expected no --sweep batch"),
        (("--batch", "8", "--sweep", "batch=8,16"), r"--sweep batch: .* alone, found --batch besides"),
        (("--sweep", "largest-batch=true,false"), r"--sweep largest-batch: expected one of .*batch"),
        (("--sweep", "system=zero-1,tofu"), r"one stack for all, found compile, ours: give --stack ours"),
        (("--sweep", "system=tofu", "--stack", "compile"), r"--system tofu: expected --stack ours, found compile"),
    ],
)
def test_what_a_sweep_refuses(arguments, message, capsys):
    topo = () if any("topo=" in argument for argument in arguments) else ("--topo", "uniform-8")
    assert run("mlp-2-16", "--workers", "4", *topo, *arguments) == 2
    assert re.fullmatch(rf"error: .*{message}.*\n", capsys.readouterr().err)


def test_a_sweep_of_a_saved_plan_leaves_its_graph_alone(saved, capsys):
    assert run(saved, "--topo", "uniform-8", "--sweep", "batch=8,16") == 2
    assert re.search(
        r"--sweep batch: expected one of collectives, data-parallel, overlap, prefetch, stack, system, topo\n",
        capsys.readouterr().err,
    )


@pytest.mark.parametrize("system", ["ideal", "op-placement"])
def test_a_system_runs_a_model_and_a_plan(saved, system, tmp_path, capsys):
    of_model, of_plan = tmp_path / "one.json", tmp_path / "other.json"
    assert run(*MODEL, "--system", system, "--json", of_model, "--trace", tmp_path / "t.json") == 0
    assert run(saved, "--topo", "uniform-8", "--system", system, "--json", of_plan) == 0
    (built,), (loaded,) = read_reports(of_model), read_reports(of_plan)
    assert built.seconds_per_step == loaded.seconds_per_step
    assert (built.settings["system"], built.workers, built.data_parallel) == (system, 4, None)
    assert built.batch == (4 * 8 if system == "ideal" else 8)
    assert built.samples_per_s == pytest.approx(built.batch / built.seconds_per_step)
    assert {device.verdict for device in built.devices} == {"unknown" if system == "ideal" else "fits"}
    assert not capsys.readouterr().err


def test_a_system_runs_on_all_devices_and_swaps_to_their_host(tmp_path):
    path = tmp_path / "r.json"
    assert run("mlp-2-16", "--batch", 8, "--topo", "p2.8xlarge", "--system", "swapping", "--json", path) == 0
    (report,) = read_reports(path)
    assert (report.workers, report.batch, len(report.devices)) == (8, 64, 8)


def test_a_system_that_is_a_plan_is_saved(tmp_path):
    path = tmp_path / "r.json"
    assert run(*MODEL, "--system", "tofu", "--no-data-parallel", "-o", tmp_path / "tofu.json", "--json", path) == 0
    assert read_reports(path)[0].data_parallel is None
    assert load_plan(tmp_path / "tofu.json").search.placements == "S"


NAMED = {"data-parallel": "dp=4", "zero-1": "dp=4,zero=1", "zero-3": "dp=4,zero=3", "1f1b": "pp=4"}


@pytest.mark.parametrize("stack", ["compile", "megatron", "ours"])
@pytest.mark.parametrize("system", NAMED)
def test_systems_that_are_named_parallelism_are_that(saved, system, stack, tmp_path):
    """Whatever spells it, and whatever it is a model or a plan's graph, a question has one answer."""
    spelled = (("--system", system), ("--parallel", NAMED[system], "--workers", "4")), ("--stack", stack, "--json")
    asked = [(*MODEL, *how) for how in spelled[0]] + [(saved, "--topo", "uniform-8", *spelled[0][0])]
    answers = []
    for number, question in enumerate(asked):
        file = tmp_path / f"{number}.json"
        assert run(*question, *spelled[1], file) == 0
        answer = json.loads(file.read_text())
        answers.append({name: answer[name] for name in answer if name not in ("model", "plan", "searcher")})
    assert answers[0] == answers[1] == answers[2]


def test_the_largest_batch_is_found(tmp_path):
    """Of a model that is planned, of one that a system runs, and among those that micro-batches divide."""
    ours, pipelined = ("--stack", "ours"), ("--system", "1f1b", "--micro-batches", 16)
    searched, data = ("--search", "data-parallel", "--workers", 8), ("--system", "data-parallel")
    for options in (searched, (*data, *ours), (*pipelined, *ours)):
        path, asked = tmp_path / "r.json", ("mlp-4-64", "--topo", "p2.8xlarge", *options)
        assert run(*asked, "--largest-batch", "--json", path) == 0
        (report,) = read_reports(path)
        assert not report.overfull
        assert run(*asked, "--batch", 2 * report.batch) == 1


@pytest.mark.parametrize("options", [("--system", "data-parallel"), ("--parallel", "pp=4", "--micro-batches", "16")])
def test_the_largest_batch_is_found_for_a_stack(options, tmp_path):
    path, asked = tmp_path / "r.json", ("mlp-4-64", "--topo", "p2.8xlarge", *options)
    assert run(*asked, "--largest-batch", "--json", path) == 0
    step = json.loads(path.read_text())
    assert step["fits"]
    assert run(*asked, "--batch", step["samples"]) == 0
    assert run(*asked, "--batch", 2 * step["samples"]) == 1


def test_where_memory_is_unlimited_there_is_no_largest_batch(capsys):
    assert run("mlp-1-64", "--topo", "p2.8xlarge", "--largest-batch", "--system", "ideal") == 2
    assert capsys.readouterr().err == "error: memory is unlimited here, so that every batch fits: give --batch\n"


REFUSED = {
    "what a system settles": (
        ("--system", "tofu", "--placements", "S,R"),
        "tofu settles by itself how it is planned: leave out --placements",
    ),
    "what a system settles, swept": (
        ("--sweep", "system=tofu,zero-1", "--sweep", "seed=1,2", "--ways", "4"),
        "a system settles by itself how it is planned: leave out --ways, --seed",
    ),
    "data parallelism beside it": (
        ("--system", "tofu", "--data-parallel"),
        "data parallelism does not stand beside tofu: leave out --data-parallel",
    ),
    "no plan": (("--system", "ideal", "-o", "p.json"), "-o: expected a system that is a plan, found ideal"),
    "no host": (("--system", "swapping"), "uniform-8: expected a switch called cpu"),
    "two batches": (("--system", "ideal", "--largest-batch"), "--largest-batch finds the batch: expected no --batch"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_of_systems(case, capsys):
    options, message = REFUSED[case]
    assert run(*MODEL, *options) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1


OWN_SYSTEM = """
from simulator import plan_program, register_system

@register_system("whole-batch", is_plan=True)
def whole_batch(request):
    return plan_program(request.search(searcher="model-parallel"), request.machine, request.prefetch)

@register_system("nothing")
def nothing(request):
    return None
"""


@pytest.fixture
def own_system(tmp_path):
    file = tmp_path / "own_system.py"
    file.write_text(OWN_SYSTEM)
    known = dict(SYSTEMS)
    yield file
    SYSTEMS.clear()
    SYSTEMS.update(known)


def test_a_system_of_a_users_file(own_system, tmp_path, capsys):
    path, saved = tmp_path / "r.json", tmp_path / "p.json"
    assert run(*MODEL, "--operators", own_system, "--system", "whole-batch", "--json", path, "-o", saved) == 0
    (report,), plan = read_reports(path), load_plan(saved)
    assert (report.settings["system"], report.searcher) == ("whole-batch", "model-parallel")
    assert report.total_bytes == plan.total_bytes
    assert run(*MODEL, "--operators", own_system, "--sweep", "system=whole-batch,tofu") == 0
    assert run(*MODEL, "--operators", own_system, "--system", "nothing") == 2
    assert "nothing: expected a SystemProgram from the system, found None" in capsys.readouterr().err


def test_a_system_that_there_is_not(tmp_path, capsys):
    for option in (("--system", "none"), ("--sweep", "system=tofu,none")):
        assert run(*MODEL, *option) == 2
        assert re.fullmatch(r"error: .*expected a system among ideal, .*, found 'none'\n", capsys.readouterr().err)
    file = tmp_path / "clash.py"
    file.write_text("from simulator import register_system\nregister_system('tofu')")
    assert run(*MODEL, "--operators", file, "--system", "tofu") == 2
    assert re.search(r"clash\.py:2: loading: .*tofu: name clash", capsys.readouterr().err)
    with pytest.raises(PlanError, match="expected what searches plans for this system"):
        simulate_system("tofu", build("mlp-2-16", batch=8), "uniform-8", 4)
