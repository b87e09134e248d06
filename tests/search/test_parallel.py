"""Named parallelism: closed forms of Megatron-LM's and ZeRO's bytes, axes, and what may be asked for."""

from dataclasses import replace

import numpy as np
import pytest

import planner
from planner.errors import PlanError
from planner.graph import GraphBuilder, Init, Optimizer
from planner.graph.chain import chain_of
from planner.graph.facts import recomputed
from planner.graph.ir import renamed
from planner.graph.training import training_graph
from planner.layout import REPLICATE, Shard, collectives
from planner.parallel import Parallel
from planner.plans.plan import undivided
from planner.program.lower import lower
from tensor_partitioner.commands.plan import main
from tests.cross.loopback import trains_as_one_worker
from tests.cross.masks import Recount
from tests.project.test_plan_command import run

ITEM = 4
SMALL = {
    "transformer-2-64": {"batch": 8, "sequence": 16, "vocabulary": 48, "tied": False, "heads": 4},
    "mlp-4-24": {"batch": 8},
    "cnn-5-8": {"batch": 8, "image": 6, "classes": 8},
    "rnn-2-8": {"batch": 8, "unroll": 3, "input_width": 8, "classes": 8},
    "llama-1-16": {"batch": 8, "sequence": 8, "vocabulary": 48, "heads": 4, "experts": 4, "hidden": 24},
}
SPECS = ("tp=4", "tp=2,sp", "dp=2,tp=4", "dp=4,tp=2,zero=1", "dp=2,tp=2,sp,zero=3", "dp=2,cp=2,tp=2,zero=2")
OF_EXPERTS = ("dp=4,ep=4", "dp=4,ep=4,zero=1", "dp=4,ep=2,zero=2", "dp=4,ep=2,tp=2,sp", "dp=2,ep=2,cp=2,tp=2,sp")


def model(name):
    return planner.model(name, **SMALL[name])


def weight_bytes(graph):
    return sum(tensor.nbytes for tensor in graph.tensors.values() if tensor.role == "weight" and tensor.init)


def cases():
    """Every spec of every model that has what it splits."""
    with_sequence = ("transformer-2-64", "llama-1-16")
    specs = [(n, s) for n in SMALL for s in SPECS if n in with_sequence or not {"sp", "cp=2"} & {*s.split(",")}]
    return [*specs, *(("llama-1-16", spec) for spec in OF_EXPERTS)]


@pytest.mark.parametrize(("name", "spec"), cases())
def test_bytes_are_those_of_single_elements(name, spec):
    plan = planner.plan(model(name), parallel=spec)
    counted = Recount(plan).count()
    np.testing.assert_array_equal(plan.bytes, counted)
    np.testing.assert_array_equal(lower(plan).bytes, counted)


def slices_of_a_weight():
    """A product with a matrix of slices of a weight, which data parallel workers may split as tensor parallel ones."""
    b = GraphBuilder()
    w = b.weight("w", (8, 8), Init("uniform", 1.0))
    parts = [b.apply("slice", w, name=f"part{start}", dim=0, start=start, skip=4 - start) for start in (4, 0)]
    whole = b.apply("cat", *parts, name="whole", dim=0, sizes=(4, 4))
    y = b.apply("square", b.apply("mm", b.input("x", (8, 8)), whole, name="y"), name="square")
    return training_graph(b, {"loss": b.apply("sum", y, name="loss", dims=(0, 1))}, Optimizer("sgd"))


@pytest.mark.parametrize("spec", ["dp=2,tp=2", "dp=2,tp=2,zero=1", "dp=2,tp=2,zero=3", "dp=2,tp=4,zero=2"])
def test_a_weights_slices_are_put_together(spec):
    plan = planner.plan(slices_of_a_weight(), parallel=spec)
    np.testing.assert_array_equal(plan.bytes, Recount(plan).count())
    np.testing.assert_array_equal(plan.bytes, lower(plan).bytes)


def test_tensor_parallelism_moves_what_megatron_does():
    """Two all-reduces of an activation in the forward pass of a layer and two in its backward pass; one of the
    embedding's result and one of the gradient of the output layer's operand; two numbers of each token's loss."""
    k, layers, batch, sequence, width = 4, 2, 8, 16, 64
    all_reduce = 2 * (k - 1) * batch * sequence * ITEM
    plan = planner.plan(model("transformer-2-64"), parallel=f"tp={k}")
    activations = (4 * layers + 2) * all_reduce * width
    losses = plan.total_bytes - activations
    assert 2 * all_reduce <= losses <= 4 * all_reduce


@pytest.mark.parametrize("spec", ["dp=4,ep=4", "dp=4,ep=4,tp=2,sp", "dp=8,ep=4"])
def test_tokens_go_to_experts_and_back_all_with_all(spec):
    """Four exchanges a layer: to experts and back, in either pass. Of every sample an expert takes 5 tokens, of which
    all but those of its own worker's samples move, once however many tensor parallel workers there are."""
    samples, experts, tokens, width = 8, 4, 5, 16  # 5: 1.25 x 2 chosen x 8 tokens / 4 experts
    plan = planner.plan(model("llama-1-16"), parallel=spec)
    at, others = plan.ways.axes.index("ep"), Parallel.read(spec).ep - 1
    moved = [
        exchange.moved()
        for work in plan.traffic().work
        for _, exchange, _ in work.exchanges()
        if (collective := collectives((exchange,))[0]) is not None
        and (collective.kind, collective.steps) == ("all-to-all", (at,))
    ]
    elements = samples * experts * tokens * width
    assert [exchange.sum() for exchange in moved] == [elements * others // (others + 1)] * 4
    assert all((np.count_nonzero(exchange, axis=1) == others).all() for exchange in moved)


@pytest.mark.parametrize("name", SMALL)
def test_data_parallelism_is_that_of_the_searcher_of_this_name(name):
    graph = model(name)
    alike = planner.plan(graph, ways=(4,), searcher="data-parallel")
    assert planner.plan(graph, parallel="dp=4").total_bytes == alike.total_bytes


def test_zero_shares_out_what_its_stage_says():
    graph, k = planner.model("mlp-4-24", batch=8, optimizer="adam"), 4
    plans = {stage: planner.plan(graph, parallel=f"dp={k},zero={stage}") for stage in range(4)}
    for stage, plan in plans.items():
        roles = {
            role: {plan.layouts[name] for name, tensor in graph.tensors.items() if tensor.role == role and tensor.shape}
            for role in ("state", "weight")
        }
        shared = {role: all(isinstance(layout[0], Shard) for layout in layouts) for role, layouts in roles.items()}
        assert shared == {"state": stage >= 1, "weight": stage == 3}
    reduced = 2 * (k - 1) * weight_bytes(graph)  # reduce-scatter and all-gather, whatever comes between
    assert all(0 <= plans[stage].total_bytes - reduced < reduced / 100 for stage in range(3))
    assert plans[3].total_bytes > plans[2].total_bytes


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_all_data_parallel_workers_share_out_what_is_of_no_expert(ep):
    """Experts are in as many parts whatever their groups: those of a group, and of each those who have the same."""
    graph = planner.model("llama-1-16", **SMALL["llama-1-16"], optimizer="adam")
    plan = planner.plan(graph, parallel=f"dp=4,ep={ep},zero=3")
    weights = {name for name, tensor in graph.tensors.items() if tensor.role in {"weight", "state"} and tensor.shape}
    assert any("experts" in name for name in weights)
    assert all(isinstance(placement, Shard) for name in weights for placement in plan.layouts[name])


def test_a_dimension_is_cut_along_its_own_axis_alone():
    """Four heads are split over four workers within four replicas of one sample each."""
    graph = planner.model("transformer-1-32", batch=4, sequence=8, heads=4, vocabulary=16)
    plan = planner.plan(graph, parallel="dp=4,tp=4")
    queries = plan.layouts["l0.attention.q"]
    assert queries == (Shard(0), Shard(1))
    held = {worker: lower(plan).regions["embedding.w"][worker] for worker in range(16)}
    assert held[0] == held[4] == (((0, 4),), ((0, 32),))
    assert held[3] == (((12, 16),), ((0, 32),))


SEQUENCE = 32
LAYERS = {
    "transformer-3-64": {"batch": 8, "sequence": SEQUENCE, "vocabulary": 64, "heads": 4},
    "llama-3-64": {"batch": 8, "sequence": SEQUENCE, "vocabulary": 64, "heads": 4, "groups": 4},
}


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("spec", ["tp=2,sp", "tp=4,sp", "dp=2,tp=2,sp", "dp=2,tp=4,sp,zero=1"])
@pytest.mark.parametrize("name", LAYERS)
def test_sequence_parallelism_moves_what_megatron_does(name, spec, micro_batches):
    """In either pass of a layer two gathers and two scatters, and again two gathers of what is not kept: 10 in all.

    Each moves an activation tp - 1 times, summed over workers (Korthikanti and others 2022, section 4.2.2).
    """
    graph = planner.model(name, micro_batches=micro_batches, dtype="bfloat16", **LAYERS[name])
    plan = planner.plan(graph, parallel=spec)
    activation = 8 * SEQUENCE * 64 * 2
    moved = sum(
        int(exchange.moved().sum()) * runs * 2
        for work in plan.traffic().work
        for tensor, exchange, runs in work.exchanges()
        if tensor.startswith("l1.") and plan.graph.tensors[tensor].shape[1:] == (SEQUENCE, 64)
    )
    assert moved == 10 * activation * (plan.ways.factors[-1] - 1)
    np.testing.assert_array_equal(plan.bytes, lower(plan).bytes)


@pytest.mark.parametrize("spec", ["dp=2,tp=2,sp", "pp=2,tp=2,sp"])
def test_what_is_gathered_once_trains_as_one_worker_does(spec):
    graph = planner.model("llama-3-64", micro_batches=2, dtype="float64", **LAYERS["llama-3-64"])
    plan = planner.plan(graph, parallel=spec)
    assert any(name.endswith(".gathered.backward") for name in plan.graph.tensors)
    trains_as_one_worker(plan, alone=undivided(graph))


def test_what_is_gathered_is_not_called_recomputed():
    graph = planner.model("llama-3-64", **LAYERS["llama-3-64"])
    plan = planner.plan(graph, parallel="tp=2,sp")
    assert any(name.endswith(".gathered.backward") for name in plan.graph.tensors)
    assert recomputed(plan.graph) == 0


def test_what_is_gathered_joins_no_links():
    graph = planner.model("llama-3-64", **LAYERS["llama-3-64"])
    plan = planner.plan(graph, parallel="tp=2,sp")
    chain = chain_of(plan.graph)
    ahead = [name for name in chain.forward if name.endswith(".gathered.forward")]
    assert chain.links == chain_of(graph).links + len(ahead)


def test_what_is_gathered_takes_no_name_of_the_graph():
    graph = planner.model("llama-2-64", **LAYERS["llama-3-64"])
    names = {"l0.mlp.up": "l0.attention.norm.gathered.forward"}
    tensors = {names.get(name, name): replace(x, name=names.get(name, name)) for name, x in graph.tensors.items()}
    nodes = tuple(renamed(replace(node, name=names.get(node.name, node.name)), names) for node in graph.nodes)
    kin = tuple(replace(node, forward=names.get(node.forward, node.forward)) for node in nodes)
    plans = [planner.plan(g, parallel="tp=2,sp") for g in (graph, replace(graph, tensors=tensors, nodes=kin))]
    assert plans[0].total_bytes == plans[1].total_bytes
    assert len(plans[0].graph.tensors) == len(plans[1].graph.tensors)


def test_without_sequence_parallelism_all_compute_the_norms():
    plan, split = (planner.plan(model("transformer-2-64"), parallel=spec) for spec in ("tp=2", "tp=2,sp"))
    assert plan.strategies["l0.mlp.norm"] == ("*",)
    assert plan.layouts["l0.mlp.norm"] == plan.layouts["l0.mlp.sum"] == plan.layouts["l0.mlp.norm.w"]
    assert split.layouts["l0.mlp.sum"] == (Shard(1),)


def test_between_stages_moves_an_activation_and_its_gradient():
    plan = planner.plan(model("transformer-2-64"), parallel="pp=2")
    assert plan.ways.axes == ("pp",)
    assert plan.total_bytes == 2 * 8 * 16 * 64 * ITEM
    within = planner.plan(model("transformer-2-64"), parallel="pp=2,dp=2,tp=2")
    assert within.ways.axes == ("pp", "dp", "tp")
    np.testing.assert_array_equal(within.bytes, lower(within).bytes)


def test_workers_that_it_does_not_make():
    with pytest.raises(PlanError, match=r"parallel pp=2,tp=2 has 4 workers, expected 8"):
        planner.plan(model("transformer-2-64"), 8, parallel="pp=2,tp=2")


def test_a_plan_with_axes_is_saved_and_read(tmp_path):
    plan = planner.plan(model("mlp-4-24"), parallel="dp=2,tp=2")
    plan.save(tmp_path / "plan.json")
    read = planner.load(tmp_path / "plan.json")
    assert read.ways == plan.ways
    assert read.ways.axes == ("dp", "tp")
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(text.replace('["dp", "tp"]', '["dp", "xp"]'))
    with pytest.raises(
        PlanError, match=r"\$.axes: expected one of 'pp', 'dp', 'ep', 'cp', 'tp', '' for each of 2 ways"
    ):
        planner.load(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp=0", "tp of at least 1"),
        ("tp", "tp=NUMBER"),
        ("sp=3", "expected sp, found sp=3"),
        ("zero=4", "zero from 0 to 3"),
        ("td=4", "found 'td'"),
        ("tp=2,tp=2", "tp is given twice"),
        ("tp=2,zero=1", "zero needs dp or cp of at least 2"),
        ("dp=2,sp", "sp needs tp of at least 2"),
        ("dp=4,ep=3", "ep must divide dp, found ep=3, dp=4"),
        ("ep=2", "ep must divide dp, found ep=2, dp=1"),
        ("dp=2,schedule=2f2b", "expected schedule"),
        ("dp=2,schedule=1f1b:2", "interleaved:CHUNKS"),
        ("dp=2,recompute=half", "expected recompute"),
        ("dp=2,micro-batch=0", "micro-batch of at least 1"),
        ("dp=2,micro-batch", "micro-batch=NUMBER"),
    ],
)
def test_what_cannot_be_read(text, message):
    with pytest.raises(PlanError, match=message):
        Parallel.read(text)


def test_a_plan_has_several_workers():
    with pytest.raises(PlanError, match="a degree of at least 2"):
        planner.plan(model("mlp-4-24"), parallel="dp=1")


@pytest.mark.parametrize(
    "others",
    [{"searcher": "joint"}, {"ways": (4,)}, {"shares": (1, 2)}, {"objective": "time", "machine": "p2.8xlarge"}],
)
def test_what_does_not_go_with_it(others):
    with pytest.raises(PlanError, match="parallel tp=2: cannot be combined with"):
        planner.plan(model("mlp-4-24"), parallel="tp=2", **others)


@pytest.mark.parametrize(
    ("name", "spec", "message"),
    [
        ("mlp-2-7", "tp=4", "an axis that tp=4 divides"),
        ("mlp-2-12", "dp=16", "dp needs at least 16 samples, found fewer"),
        ("mlp-2-12", "cp=2", "tokens or vectors"),
        ("cnn-5-8", "tp=2,sp", "tokens or vectors"),
        ("mlp-2-12", "dp=2,ep=2", "no layer has a number of experts that ep=2 divides"),
    ],
)
def test_what_divides_nothing(name, spec, message):
    with pytest.raises(PlanError, match=message):
        planner.plan(planner.model(name, batch=8), parallel=spec)


MODULES = """
import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        x = x + self.first(x).tanh()
        return self.last(x + self.second(x).tanh())


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.last = nn.Parameter(torch.ones(4)), nn.Linear(8, 3)
        self.up, self.down = nn.Parameter(torch.randn(4, 8, 6)), nn.Parameter(torch.randn(4, 6, 8))

    def forward(self, x):
        hidden = torch.einsum("nw,ewf->nef", x, self.up).relu()
        return self.last(torch.einsum("new,e->nw", torch.einsum("nef,efw->new", hidden, self.down), self.scale))


def trained(module, *shape):
    return module, torch.zeros(8, *shape), nn.functional.cross_entropy, torch.zeros(8, dtype=torch.long)


def residual():
    return trained(Residual(), 8)


def filters():
    layers = nn.Conv2d(4, 4, 3, groups=4), nn.ReLU(), nn.Conv2d(4, 8, 1), nn.Flatten(), nn.Linear(32, 4)
    return trained(nn.Sequential(*layers), 4, 4, 4)


def scaled():
    return trained(Scaled(), 8)
"""


@pytest.fixture
def modules(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "modules.py").write_text(MODULES)
    return f"{tmp_path / 'modules.py'}:"


@pytest.mark.parametrize("name", ["residual", "filters"])
def test_what_is_no_expert(name, modules):
    """A residual that ties what a matrix reads to what it makes, and filters that have a channel each."""
    graph = planner.model(modules + name)
    assert planner.plan(graph, parallel="dp=2").total_bytes
    with pytest.raises(PlanError, match="no layer has a number of experts that ep=2 divides"):
        planner.plan(graph, parallel="dp=2,ep=2")


def test_a_factor_of_each_expert_goes_with_it(modules):
    """Tensor parallelism splits nothing of it."""
    graph = planner.model(modules + "scaled")
    scale, up = (
        next(n for n, t in graph.tensors.items() if t.role == "weight" and t.shape == s) for s in ((4,), (4, 8, 6))
    )
    plan = planner.plan(graph, parallel="dp=2,ep=2,tp=2")
    assert plan.layouts[scale] == (Shard(0), REPLICATE)
    assert plan.layouts[up][0] == Shard(0)


def test_how_it_is_spelled():
    for text in ("tp=4,sp", "dp=2,cp=2,tp=4,sp,zero=1", "dp=8", "dp=8,ep=4,tp=2"):
        assert sorted(str(Parallel.read(text)).split(",")) == sorted(text.split(","))


def test_a_micro_batch_is_what_a_data_parallel_worker_takes_at_once():
    spec = Parallel.read("dp=2,tp=2,micro-batch=1")
    assert str(spec) == "dp=2,tp=2,micro-batch=1"
    assert (spec.micro_batches(8), Parallel(dp=2).micro_batches(8)) == (4, 1)
    with pytest.raises(PlanError, match="a batch of 9 samples does not divide into micro-batches"):
        spec.micro_batches(9)
    options = {"batch": 8, "sequence": 16, "vocabulary": 48}
    with pytest.raises(PlanError, match=r"a graph of 4 micro-batches \(micro_batches=4\), found 1"):
        planner.plan(planner.model("transformer-2-64", **options), parallel=spec)
    cut = planner.plan(planner.model("transformer-2-64", **options, micro_batches=4), parallel=spec)
    assert cut.total_bytes == planner.plan(cut.graph, parallel="dp=2,tp=2").total_bytes


def test_the_command_cuts_the_batch(tmp_path, capsys):
    plan = tmp_path / "plan.json"
    sizes = ["transformer-2-64", "--sequence", "16", "--vocabulary", "48", "--parallel", "dp=2,tp=2,micro-batch=1"]
    assert run(main, *sizes, "--batch", 8, "-o", plan) == 0
    assert planner.load(plan).graph.micro_batches == 4
    assert run(main, *sizes) == 2
    assert "expected --batch with it" in capsys.readouterr().err


@pytest.mark.parametrize(("zero", "roles"), [(1, ("state",)), (3, ("state", "weight"))])
def test_zero_shares_out_whatever_a_replica_holds(zero, roles):
    """Without tensor parallelism no dimension is kept for it: all that can be cut is, biases of layers, too."""
    graph = planner.model("transformer-2-64", **SMALL["transformer-2-64"], optimizer="adam")
    plan = planner.plan(graph, parallel=f"dp=4,zero={zero}")
    large = [t for t in graph.tensors.values() if t.role in roles and t.init is not None and t.elements > 1]
    assert len(large) > 40
    assert {plan.layouts[tensor.name] for tensor in large} <= {(Shard(0),), (Shard(1),), (Shard(2),), (Shard(3),)}
