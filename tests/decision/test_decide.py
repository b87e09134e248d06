"""Decisions beside exhaustive enumeration, and replicas beside models that are built in full."""

import json
from dataclasses import replace

import pytest
from msgspec.structs import replace as msgspec_replace

import planner
from planner.errors import PlanError
from planner.graph import GraphBuilder, Init, Optimizer, training_graph
from planner.graph.infer import check
from planner.graph.order import in_structural_order
from planner.graph.repeats import FewSegments, few_segments
from planner.models.layers import linear
from planner.parallel import Parallel
from planner.plans.check import check_plan, check_search
from simulator.projection.network import cluster, cluster_of
from simulator.projection.stack import STACKS
from tensor_partitioner import plan_search
from tensor_partitioner.commands.decide import main
from tensor_partitioner.commands.plan import main as plan_command
from tensor_partitioner.commands.simulate import main as simulate
from tensor_partitioner.decision import decide
from tensor_partitioner.decision.deciding import _Deciding
from tensor_partitioner.projection import project, project_plan, project_source
from tensor_partitioner.replicas import GraphModel
from tests.project.test_plan_command import run

SMALL = {"heads": 4, "sequence": 32, "vocabulary": 256, "dtype": "mixed", "optimizer": "adam"}
MANY_WORDS = {**SMALL, "vocabulary": 4096}
SQUARES = """
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.weight = nn.LayerNorm(width), nn.Parameter(torch.randn(width, width))

    def forward(self, x):
        return x + nn.functional.linear(self.norm(x), self.weight * self.weight).tanh()


def make(batch=64, width=2048):
    layers = nn.Sequential()
    layers.layers = nn.Sequential(*(Layer(width) for _ in range(6)))
    return layers, torch.zeros(batch, width), nn.functional.mse_loss, torch.zeros(batch, width)
"""


def test_what_layers_make_of_weights_alone_is_there_once_whatever_the_samples(tmp_path):
    """So where memory is short, no micro-batch is said to be too large for what a smaller one would keep as well."""
    pytest.importorskip("torch")
    (tmp_path / "model.py").write_text(SQUARES)
    graph, whole = planner.model(f"{tmp_path / 'model.py'}:make"), cluster("hgx-h100").built
    spec = msgspec_replace(whole.devices[0].spec, memory_bytes=1_400_000_000)
    machine = replace(whole, name="two", devices=tuple(replace(device, spec=spec) for device in whole.devices[:2]))
    deciding = _Deciding(GraphModel(graph), cluster_of(machine), "compile")
    steps = [deciding._priced(way, 64) for way in deciding.space(64)]
    fastest = min(step.seconds for step in steps if step is not None and step.fits)
    assert any(not step.fits for step in steps if step is not None)
    assert decide(graph, machine, budget_s=600).best.seconds_per_step == fastest


@pytest.mark.parametrize("spec", ["dp=2", "tp=2,dp=2,sp", "tp=4,dp=2", "cp=2,dp=2", "pp=2,tp=2,dp=2,micro-batch=2"])
def test_a_layer_stands_for_all(spec):
    """A model of five layers, of which three are built, or looked at in its graph, is that of which all are."""
    name, options = "transformer-5-64", SMALL
    parallel, machine = Parallel.read(spec), cluster("hgx-h100")
    few = project(name, options, batch=16, parallel=parallel, machine="hgx-h100")
    source, every = (GraphModel(planner.model(name, **options, batch=2 * 4, micro_batches=2)) for _ in range(2))
    every.__dict__["_few_segments"] = every.graph, ()
    whole, folded = (project_source(model, 16, parallel, machine) for model in (every, source))
    micro_batch = 16 // parallel.dp if parallel.micro_batch is None else parallel.micro_batch
    assert micro_batch in {2, 8}
    assert len(every.inner(Parallel(), 4).replica.shares) > len(source.inner(Parallel(), 4).replica.shares)
    assert folded.seconds == pytest.approx(whole.seconds, rel=1e-9)
    assert folded.needed_bytes == whole.needed_bytes
    assert few.seconds == pytest.approx(whole.seconds, rel=1e-9)
    assert few.needed_bytes == pytest.approx(whole.needed_bytes, rel=1e-3)


@pytest.mark.parametrize("spec", ["dp=2", "tp=2,dp=2,recompute=full", "pp=2,tp=2,dp=2,micro-batch=2"])
@pytest.mark.parametrize(
    ("name", "options", "counts"),
    [
        ("encoder-decoder-5-64", {"heads": 4, "sequence": 16, "vocabulary": 64}, [3, 5]),
        ("encoder-decoder-10-64", {"heads": 4, "sequence": 16, "vocabulary": 64}, [3, 4]),
        ("wresnet-50-1", {"image": 32}, [2, 3, 3, 2]),
        ("mlp-6-64", {"optimizer": "adam"}, [3]),
    ],
)
def test_a_layer_of_every_run_stands_for_all_of_it(name, options, counts, spec):
    parallel, machine = Parallel.read(spec), cluster("hgx-h100")
    source, every = (GraphModel(planner.model(name, **options, batch=2 * 4, micro_batches=2)) for _ in range(2))
    every.__dict__["_few_segments"] = every.graph, ()
    assert [*map(len, source.inner(Parallel(), 4).replica.repeats.runs)] == counts
    whole, folded = (project_source(model, 16, parallel, machine) for model in (every, source))
    assert folded.seconds == pytest.approx(whole.seconds, rel=1e-9)
    assert (folded.memory, folded.stages) == (whole.memory, whole.stages)


PARALLEL = """
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first, self.second = (nn.Linear(width, width, bias=False) for _ in range(2))

    def forward(self, x):
        normed = self.norm(x)
        return self.second(normed.relu()) + self.first(normed) + x


def make(batch=8, width=64):
    layers = nn.Sequential(*(Layer(width) for _ in range(7)), nn.LayerNorm(width))
    return layers, torch.zeros(batch, width), nn.functional.mse_loss, torch.zeros(batch, width)
"""


@pytest.mark.parametrize("spec", ["dp=2", "dp=8,zero=3,recompute=full", "pp=2,dp=2,micro-batch=2"])
def test_a_run_whose_last_layers_differ_is_shortened_before_them(tmp_path, spec):
    """The gradient of a sum passes to three operands, so the last layer's result has none of its own."""
    pytest.importorskip("torch")
    (tmp_path / "model.py").write_text(PARALLEL)
    graph = planner.model(f"{tmp_path / 'model.py'}:make")
    source, every = (GraphModel(graph) for _ in range(2))
    every.__dict__["_few_segments"] = every._in_two_micro_batches, ()
    assert [*map(len, source.inner(Parallel(), 4).replica.repeats.runs)] == [4]
    parallel, machine = Parallel.read(spec), cluster("hgx-h100")
    whole, folded = (project_source(model, 8, parallel, machine) for model in (every, source))
    assert folded.seconds == pytest.approx(whole.seconds, rel=1e-9)
    assert (folded.memory, folded.stages) == (whole.memory, whole.stages)


def test_layers_that_differ_are_all_looked_at():
    """Another operator, another extent, a result that the loss reads, too, and layers in two rows."""
    graph = planner.model("transformer-5-64", **SMALL, batch=4, micro_batches=2)
    few, layers, *_ = few_segments(graph)
    assert (layers, len(few.nodes) < len(graph.nodes)) == ((5,), True)
    check(few)
    loss = graph.nodes.index(next(node for node in graph.nodes if "loss" in node.outputs))
    for at, change in (
        (next(n for n, node in enumerate(graph.nodes) if node.name == "l2.mlp.gelu"), {"op": "relu"}),
        (next(n for n, node in enumerate(graph.nodes) if node.name == "l2.attention.qkv"), {"attrs": {"a": 1}}),
        (loss, {"inputs": ("l2.mlp.sum", *graph.nodes[loss].inputs)}),
    ):
        nodes = [*graph.nodes]
        nodes[at] = replace(nodes[at], **change)
        other = replace(graph, nodes=tuple(nodes))
        assert few_segments(other) == FewSegments(other)
    two_rows = planner.model("encoder-decoder-5-64", heads=4, sequence=16, vocabulary=64, batch=4, micro_batches=2)
    assert few_segments(two_rows)[1] == (5, 5)


TINY = ("--heads", 4, "--sequence", 32, "--vocabulary", 256, "--dtype", "mixed", "--optimizer", "adam")


@pytest.mark.parametrize(
    ("batch", "parallel"),
    [
        (16, "tp=2,pp=2,micro-batch=2,recompute=full"),
        (16, "tp=2,sp,pp=2,micro-batch=2,recompute=selective"),
        (16, "dp=2,tp=2,sp,micro-batch=2"),
        (4096, "tp=2,sp,pp=2,dp=1024,micro-batch=1"),
        (65536, "tp=2,dp=4096,zero=1,micro-batch=8"),
    ],
)
def test_a_saved_plan_is_projected_as_its_model(batch, parallel, tmp_path):
    """Whatever it says is computed again, and of whatever number of workers; then it is one replica's."""
    plan, ours, theirs = (tmp_path / name for name in ("plan.json", "ours.json", "theirs.json"))
    model = ("transformer-5-64", *TINY, "--batch", batch, "--parallel", parallel)
    projected = ("--topo", "hgx-h100-nodes-1024", "--json")
    assert run(plan_command, *model, "-o", plan, "--no-verify") == 0
    assert run(simulate, plan, *projected, ours) == run(simulate, *model, *projected, theirs) == 0
    projection, expected = (json.loads(file.read_text()) for file in (ours, theirs))
    assert projection["seconds"] == pytest.approx(expected["seconds"], rel=1e-9)
    assert projection["memory"] == expected["memory"]


@pytest.mark.parametrize("parallel", ["dp=2048", "dp=2048,tp=2", "dp=2048,ep=4", "dp=1024,micro-batch=1,ep=2,tp=2"])
def test_one_replica_s_plan_is_shown(parallel, tmp_path, capsys):
    """Whatever samples its workers take at once: it is found for one."""
    model = ("llama-5-64", *TINY, "--experts", 4, "--batch", 4096, "--parallel", parallel)
    assert run(plan_command, *model, "-o", tmp_path / "plan.json") == 0
    capsys.readouterr()
    assert run(plan_command, tmp_path / "plan.json", "--json", tmp_path / "shown.json") == 0


def test_one_replica_s_plan_is_no_plan_of_every_worker(tmp_path, capsys):
    plan = tmp_path / "plan.json"
    model = ("transformer-5-64", *TINY, "--batch", 4096, "--parallel", "tp=2,dp=2048,micro-batch=1")
    assert run(plan_command, *model, "--objective", "time", "--topo", "hgx-h100") == 2
    assert "one replica is planned: expected no --objective" in capsys.readouterr().err
    assert run(plan_command, *model, "-o", plan) == 0
    assert "Of 4096 workers this is the plan of 2: one stage of one replica, 3 of its 5 layers" in shown(capsys)
    assert run(plan_command, plan) == 0
    assert run(simulate, plan, "--topo", "hgx-h100-nodes-512", "--stack", "ours") == 2
    with pytest.raises(PlanError, match="one replica of dp=2048,tp=2,micro-batch=1, which only simulate accepts"):
        planner.load(plan)
    plan.write_text(plan.read_text().replace('"batch": 4096', '"batch": 0'))
    assert run(simulate, plan, "--topo", "hgx-h100-nodes-512") == 2
    assert "details.batch: expected a whole number of at least 1, found 0" in capsys.readouterr().err
    assert run(plan_command, "mlp-2-16", "--workers", "2", "-o", plan) == 0
    assert run(simulate, plan, "--topo", "hgx-h100", "--stack", "compile") == 0
    assert run(plan_command, "mlp-2-16", "--parallel", "pp=2", "--batch", 4, "-o", plan) == 0
    assert run(simulate, plan, "--topo", "hgx-h100", "--stack", "compile") == 0


def shown(capsys):
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("within", [Parallel(), Parallel(tp=2, sp=True), Parallel(tp=2, cp=2)], ids=str)
@pytest.mark.parametrize("samples", [2, 3, 8])
def test_shares_of_other_samples_follow(within, samples):
    """What a worker does with some samples follows, exactly, from what it does with two other numbers of them.

    But for what an embedding reads, which is no more rows than it has: here more than there are tokens.
    """
    graph = planner.model("transformer-2-64", **MANY_WORDS, batch=2 * 4, micro_batches=2)
    followed = GraphModel(graph).inner(within, samples).replica
    built = GraphModel(planner.model("transformer-2-64", **MANY_WORDS, batch=2 * samples, micro_batches=2))
    expected = built.inner(within, samples).replica
    for ours, theirs in zip(followed.shares, expected.shares, strict=True):
        assert ours.operations == pytest.approx(theirs.operations, rel=1e-9), ours.node.name
        assert (ours.reads, ours.writes, ours.products) == (theirs.reads, theirs.writes, theirs.products)
        assert (ours.before, ours.after) == (theirs.before, theirs.after)
    assert followed.held == expected.held


def test_a_graph_without_micro_batches_adds_up_as_one_with_them():
    plain = GraphModel(planner.model("transformer-2-64", **SMALL, batch=4))
    cut = GraphModel(planner.model("transformer-2-64", **SMALL, batch=8, micro_batches=2))
    for spec in ("dp=2", "dp=2,tp=2,zero=1"):
        steps = [project_source(m, 8, Parallel.read(spec), cluster("hgx-h100")) for m in (plain, cut)]
        assert steps[0].seconds == pytest.approx(steps[1].seconds, rel=0.02)
        assert steps[0].needed_bytes == pytest.approx(steps[1].needed_bytes, rel=0.02)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize(
    "spec", ["dp=8,zero=3", "dp=8,zero=1", "tp=2,pp=2,dp=2,sp,micro-batch=1,recompute=full", "dp=8"]
)
def test_causes_add_up(stack, spec):
    step = project("transformer-4-128", SMALL, batch=64, parallel=Parallel.read(spec), machine="hgx-h100", stack=stack)
    assert sum(step.shares.values()) == pytest.approx(step.seconds, rel=1e-9)
    assert step.needed_bytes == sum(line.nbytes for line in step.memory)


def test_pins_fix_degrees():
    free = decide("transformer-4-128", "hgx-h100", batch=32, **SMALL)
    held = decide("transformer-4-128", "hgx-h100", batch=32, pins=("tp=2", "pp=2"), **SMALL)
    parallels = [Parallel.read(candidate.parallel) for candidate in held.candidates]
    assert {(parallel.tp, parallel.pp) for parallel in parallels} == {(2, 2)}
    assert held.best.seconds_per_step >= free.best.seconds_per_step


def test_the_command_writes_what_it_shows(tmp_path, capsys):
    file, plan = tmp_path / "decision.json", tmp_path / "plan.json"
    arguments = ("--heads", "4", "--sequence", "32", "--vocabulary", "256", "--batch", "16")
    written = ("--pin", "tp=1", "--json", file, "-o", plan)
    assert run(main, "transformer-2-64", "--topo", "hgx-h100", *arguments, *written) == 0
    record = json.loads(file.read_text())
    assert record["format"] == "decision/1"
    best = record["candidates"][0]
    assert {"name", "seconds_per_step", "fits", "memory", "why"} <= best.keys()
    assert best["name"] in capsys.readouterr().out
    assert planner.load(plan).workers == 8
    assert run(simulate, plan, "--topo", "hgx-h100", "--json", file) == 0
    assert json.loads(file.read_text())["seconds"] == pytest.approx(best["seconds_per_step"], rel=1e-9)
    assert run(simulate, plan, "--topo", "hgx-h100", "--stack", "ours") == 0
    assert "simulated message by message" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gpt2", "--topo", "hgx-h1000"), "did you mean"),
        (("gpt2",), "Missing option '--topo'"),
        (("gpt2", "--topo", "hgx-h100", "--budget", "soon"), "a time above 0, as in 30s"),
        (("gpt2", "--topo", "hgx-h100", "--stack", "mxnet"), "stack: expected eager, "),
        (("gpt2", "--topo", "hgx-h100", "--batch", "64", "--pin", "tp=3"), "pin 'tp=3': no way to divide gpt2"),
        (
            ("gpt2", "--topo", "hgx-h100", "--batch", "64", "--pin", "wte=S0"),
            "expected a word of --parallel, as in tp=4",
        ),
    ],
)
def test_what_makes_no_sense(arguments, message, capsys):
    assert run(main, *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_without_time_the_verdict_says_so_and_no_family_is_said_not_to_fit() -> None:
    """But for one whose weights and states alone do not."""
    decision = decide("llama-3.1-8b", "hgx-h100-nodes-8", batch=64, budget_s=1e-3)
    assert decision.search.gap > 0
    assert decision.verdict.startswith("Time ran out")
    assert {c.family for c in decision.candidates if not c.fits} <= {"data (DDP)"}
    assert 18 * decision.model.parameters > decision.machine.memory_bytes
    search = decision.search
    assert f"{search.unfinished:,} candidates were not priced; none takes less than" in decision.verdict
    counts = search.projected + search.bounded_away + search.unfinished + search.impossible
    assert counts == search.considered


def test_a_graph_of_micro_batches_is_decided_for_all_its_samples() -> None:
    graph = planner.model("transformer-2-64", **SMALL, batch=16, micro_batches=2)
    whole = planner.model("transformer-2-64", **SMALL, batch=16)
    in_two, in_one = (decide(of, "hgx-h100", batch=16, pins=("pp=1",), budget_s=600) for of in (graph, whole))
    assert in_two.model.batch == in_one.model.batch == 16
    assert in_two.best.name == in_one.best.name
    assert in_two.best.seconds_per_step == pytest.approx(in_one.best.seconds_per_step, rel=1e-2)


@pytest.mark.parametrize(
    ("name", "machine", "batch"), [("gpt2", "hgx-h100", 64), ("llama-2-70b", "hgx-h100-nodes-8", 256)]
)
def test_what_people_would_do_anyway_is_projected_whatever_the_budget(name, machine, batch):
    """DDP and FSDP by their largest micro-batch that fits, tensor parallelism in a node, and as few stages as fit."""
    decision = decide(name, machine, batch=batch, budget_s=1e-3)
    ways = [Parallel.read(row.name) for row in decision.candidates if row.parallel]
    fitting = [Parallel.read(row.name) for row in decision.candidates if row.fits]
    whole = cluster(machine)
    assert {0, 3} <= {way.zero for way in ways if way.dp == whole.devices}
    (node,) = (way for way in fitting if way.tp == whole.per_node)
    assert any(way.pp > 1 and way.tp == 1 for way in ways)
    if name == "gpt2":
        assert {(way.zero, way.micro_batch) for way in fitting if way.dp == whole.devices} == {(0, 8), (3, 8)}
        assert node.pp == 1


@pytest.mark.parametrize(
    ("counted", "sized"),
    [
        ("--micro-batches 2 --parallel dp=2", "--parallel dp=2,micro-batch=2"),
        ("--micro-batches 4 --parallel tp=2", "--parallel tp=2,micro-batch=2"),
    ],
)
def test_micro_batches_are_counted_or_given_by_their_samples(counted, sized, capsys):
    shown = []
    for words in (counted, sized):
        assert run(simulate, "mlp-4-64", "--batch", "8", *words.split(), "--topo", "uniform-2") == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert "run by compile" in shown[0]


def test_micro_batches_of_no_whole_samples_are_not_projected(capsys):
    given = ("mlp-4-64", "--batch", "12", "--micro-batches", "2", "--parallel", "dp=4", "--topo", "uniform-4")
    assert run(simulate, *given) == 2
    assert "12 samples do not divide into 2 micro-batches" in capsys.readouterr().err
    assert run(simulate, *given, "--stack", "ours") == 0


def test_a_replica_of_very_many_workers_is_planned_for_a_micro_batch(tmp_path):
    files = [tmp_path / "counted.json", tmp_path / "sized.json"]
    for file, words in zip(files, ("dp=4096,tp=2 --micro-batches 2", "dp=4096,tp=2,micro-batch=1"), strict=True):
        assert run(plan_command, "mlp-4-64", "--batch", "8192", "--parallel", *words.split(), "-o", file) == 0
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("goal", ["bytes", "time"])
@pytest.mark.parametrize("name", ["transformer-6-64", "llama-5-64", "encoder-decoder-5-64", "mlp-7-64"])
def test_a_plan_searched_with_few_layers_costs_as_much_for_all(name, goal, monkeypatch):
    monkeypatch.setattr(plan_search, "MANY_NODES", 0)
    options = {} if name.startswith("mlp") else {"heads": 4, "sequence": 16, "vocabulary": 64}
    few, whole = costs_as_much(planner.model(name, **options, batch=8), 8, goal)
    assert len(few.graph.nodes) < len(whole.graph.nodes)


@pytest.mark.parametrize("goal", ["bytes", "time"])
@pytest.mark.parametrize(("read_again", "frozen"), [(0, None), (1, None), (None, 0), (None, 1), (None, 7)])
def test_a_layer_that_is_read_or_trained_differently_stands_for_none(read_again, frozen, goal, monkeypatch):
    monkeypatch.setattr(plan_search, "MANY_NODES", 0)
    b = GraphBuilder()
    x = b.input("x", (64, 64))
    results = []
    for layer in range(8):
        weight = b.weight(f"w{layer}", (64, 64), Init("uniform", 1.0), frozen=layer == frozen)
        x = b.apply("mm", x, weight, name=f"layer{layer}")
        results.append(x)
    if read_again is not None:
        x = b.apply("add", linear(b, x, 64, "head"), linear(b, results[read_again], 64, "skip"), name="sum")
    loss = b.apply("sum", x, name="loss", dims=(0, 1))
    costs_as_much(training_graph(b, {"loss": loss}, Optimizer("sgd")), 2, goal)


def costs_as_much(model, workers, goal):
    graph, machine = in_structural_order(model), cluster("hgx-h100")
    search = plan_search.PlanSearch(graph, workers)
    few, layers = search.best(machine.built if goal == "time" else None)
    whole = search.whole(few)
    check_plan(whole)
    check_search(whole)
    priced, expected = project_plan(few, machine, "compile", layers), project_plan(whole, machine, "compile")
    assert priced.seconds == pytest.approx(expected.seconds, rel=1e-9)
    assert (priced.memory, priced.sent_bytes) == (expected.memory, expected.sent_bytes)
    return few, whole


def test_workers_of_a_very_large_graph_are_divided_in_two_steps(monkeypatch):
    monkeypatch.setattr(plan_search, "MOST_NODES", 0)
    graph = planner.model("mlp-4-64", batch=64)
    assert [plan_search.PlanSearch(graph, workers).best(None)[0].ways.factors for workers in (8, 7)] == [(4, 2), (7,)]
