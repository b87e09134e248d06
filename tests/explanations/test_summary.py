"""Summaries against PyTorch's own layers and DTensor, the plan's own sums, and named parallelism as it is known."""

from fnmatch import fnmatchcase

import msgspec
import pytest
import torch
from hypothesis import given, settings
from torch.distributed.tensor import Replicate, Shard

import planner
import topologies
from planner.explanations.summary import predicted
from planner.explanations.words import over_ways, pattern_of
from planner.layout import Shard as Sharded, elements, owned
from tests.decision.test_names import opaque
from tests.explanations.plans import any_plan

GPT = planner.model("transformer-2-128", batch=8)


def parameters(plan):
    return {group.pattern: group for group in planner.summary(plan).parameters}


@given(any_plan())
@settings(max_examples=20, deadline=None)
def test_sums_are_the_plans_for_any_plan(plan):
    summary = planner.summary(plan)
    assert sum(cause.nbytes for cause in summary.causes) == plan.total_bytes
    assert sum(group.nbytes for group in summary.operators) == plan.total_bytes
    assert sorted(name for group in summary.operators for name in group.names) == sorted(
        n.name for n in plan.graph.nodes
    )
    weights = [tensor for tensor in plan.graph.tensors.values() if tensor.role == "weight" and tensor.init is not None]
    assert sorted(name for group in summary.parameters for name in group.names) == sorted(
        tensor.name for tensor in weights
    )
    assert sum(group.nbytes for group in summary.parameters) == sum(tensor.nbytes for tensor in weights)
    msgspec.json.encode(summary)


@given(any_plan())
@settings(max_examples=10, deadline=None)
def test_a_worker_holds_what_its_regions_hold(plan):
    for group in planner.summary(plan).parameters:
        held = 0
        for name in group.names:
            tensor = plan.graph.tensors[name]
            shares = [elements(owned(tensor.shape, plan.layouts[name], plan.ways, w)) for w in range(plan.workers)]
            held += max(shares) * tensor.nbytes // tensor.elements
        assert group.held_bytes == held


@given(any_plan())
@settings(max_examples=10, deadline=None)
def test_the_fullest_worker_holds_what_its_regions_hold(plan):
    summary, tensors = planner.summary(plan), plan.graph.tensors
    weights = {name for group in summary.parameters for name in group.names}
    kept = weights | {name for name, tensor in tensors.items() if tensor.role == "state" and name in plan.graph.updates}

    def held(name, worker):
        own = owned(tensors[name].shape, plan.layouts[name], plan.ways, worker)
        return elements(own) * tensors[name].nbytes // tensors[name].elements

    totals = [sum(held(name, worker) for name in kept) for worker in range(plan.workers)]
    assert summary.held_bytes + summary.state_held_bytes == max(totals)


@given(any_plan())
@settings(max_examples=10, deadline=None)
def test_a_pattern_is_a_glob_of_its_names(plan):
    for group in planner.summary(plan).parameters:
        assert all(fnmatchcase(name, group.pattern) for name in group.names)


def test_tensor_parallelism_in_the_words_of_megatron():
    plan = planner.plan(GPT, parallel="tp=2,dp=2")
    phases = {group.pattern: group.phase for group in planner.summary(plan).operators}
    assert (phases["embedding.tokens"], phases["embedding.w.grad"], phases["embedding.w.update"]) == (
        "forward", "backward", "update",
    )  # fmt: skip
    groups = parameters(plan)
    assert groups["l*.mlp.up.w"].split == "replicated over 2, columns over 2"
    assert groups["l*.mlp.up.w"].megatron == "ColumnParallelLinear over 2"
    assert groups["l*.mlp.down.w"].megatron == "RowParallelLinear over 2"
    assert groups["l*.attention.qkv.w"].split == "replicated over 2, heads over 2"
    assert groups["l*.attention.out.w"].megatron == "RowParallelLinear over 2"
    assert {group.fsdp for group in groups.values()} == {"DDP over 2"}
    operators = {group.pattern: group.split for group in planner.summary(plan).operators}
    assert operators["l*.mlp.up"] == "samples over 2, output columns over 2"
    assert operators["l*.mlp.down"] == "samples over 2, input columns (summed) over 2"


@pytest.mark.parametrize(("zero", "word"), [(0, "DDP"), (1, "ZeRO-1"), (3, "FSDP fully_shard")])
def test_data_parallelism_in_the_words_of_fsdp(zero, word):
    plan = planner.plan(GPT, parallel=f"dp=4{f',zero={zero}' if zero else ''}")
    matrices = [group for group in planner.summary(plan).parameters if group.is_contracted]
    assert {group.fsdp for group in matrices} == {word}
    assert {group.megatron for group in matrices} == {""}
    kinds = {cause.kind for cause in planner.summary(plan).causes} - {"loss"}
    assert kinds == ({"gradients' reduction", "weights gathered"} if zero else {"gradients' reduction"})


def test_a_vocabulary_that_is_split_is_megatrons_embedding():
    graph = planner.model("gpt2", batch=4)
    plan = planner.plan(graph, ways=(2,), pins=["embedding.w=S0", "embedding.tokens=v", "logits=v"])
    group = parameters(plan)["embedding.w"]
    assert (group.split, group.megatron) == ("rows over 2", "VocabParallelEmbedding")


class Attention(torch.nn.Module):
    """Four heads; queries, keys and values in one matrix, as modules have them."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 4, 4).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width)).sum()


def test_heads_and_dtensor_of_a_module():
    """DTensor's placements, put on the module's own parameter, give the parts that a worker of the plan has."""
    torch.manual_seed(0)
    module = Attention()
    graph = planner.from_torch(module, (torch.randn(8, 6, 16),))
    plan = planner.plan(graph, ways=(2,), pins=["out.weight=S1", "qkv.weight=S1", "qkv.bias=R", "out.bias=R"])
    groups = parameters(plan)
    assert groups["out.weight"].split == groups["qkv.weight"].split == "heads over 2"
    assert groups["out.weight"].dtensor == ("Shard(1)",)
    assert groups["qkv.weight"].dtensor == ("_StridedShard(0)",)  # heads of queries, then of keys, then of values
    assert groups["qkv.bias"].dtensor == ("Replicate()",)
    named = {"Shard(1)": Shard(1), "Replicate()": Replicate()}
    placement = named[groups["out.weight"].dtensor[0]]
    parts, _ = placement._split_tensor(module.out.weight.detach(), 2, with_padding=False, contiguous=True)
    assert [part.numel() for part in parts] == [groups["out.weight"].held_bytes // 4] * 2
    assert plan.layouts["out.weight"] == (Sharded(1),)


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (("h.9.mlp.weight", "h.10.mlp.weight"), "h.*.mlp.weight"),
        (("l0.mlp.up.w", "l1.mlp.up.w"), "l*.mlp.up.w"),
        (("left.w", "right.w"), "*t.w"),
        (("first.up.w", "second.w"), "*.w"),
        (("wte.weight",), "wte.weight"),
    ],
)
def test_a_pattern_matches_all_names_of_a_group(names, pattern):
    assert pattern_of(names) == pattern
    assert all(fnmatchcase(name, pattern) for name in names)


def test_layers_are_groups_whatever_they_are_called():
    graph = planner.model("transformer-4-64", heads=4, sequence=16, vocabulary=64, batch=8)
    plans = planner.plan(graph, 2), planner.plan(opaque(graph, seed=1), 2)
    groups, others = ([len(group.names) for group in planner.summary(plan).parameters] for plan in plans)
    assert groups == others
    assert max(groups) == 4


def test_words_add_up_over_steps():
    assert over_ways(["columns", "replicated", "columns"], [2, 3, 4]) == "columns over 8, replicated over 3"
    assert over_ways(["replicated", "replicated"], [2, 2]) == "replicated"
    assert over_ways([], []) == "whole"


def test_seconds_are_those_that_the_search_predicted():
    machine = topologies.load_topology("hgx-h100")
    plan = planner.plan(GPT, workers=4, objective="time", machine=machine)
    assert predicted(plan, machine).seconds == pytest.approx(plan.search.cost, rel=1e-9)
    spent = planner.summary(plan, machine).seconds
    assert sum(part.seconds for part in spent) == pytest.approx(plan.search.cost, rel=1e-9)


def test_the_tables_of_gpt_2_are_short():
    plan = planner.plan(planner.model("gpt2"), ways=(2, 2, 2))
    rows = [line for line in str(planner.summary(plan)).splitlines() if line.startswith("│")]
    assert len(rows) <= 22
    assert any("fullest worker holds" in row and "417 MB" in row for row in rows)
