"""The structure of transformers: names, shapes, what ties, and that heads split without traffic."""

import pytest

from planner.layout import EVERYWHERE, REPLICATE, Shard, signatures
from planner.models import build
from planner.plans.check import check_plan
from planner.plans.plan import Plan
from planner.plans.traffic import Traffic
from tests.graph import one_worker
from tests.models.test_zoo import shape

SMALL = {"batch": 3, "sequence": 5, "vocabulary": 11, "heads": 4}
HEADS = 4
"""Nothing else in the graphs below has this extent."""


def weights(graph):
    return {tensor.name for tensor in graph.tensors.values() if tensor.role == "weight" and tensor.init}


def test_transformer():
    graph = build("transformer-2-128", batch=3, sequence=5, vocabulary=11)
    assert shape(graph, "tokens") == (3, 5)
    assert (graph.tensors["tokens"].dtype, graph.tensors["tokens"].init.below) == ("int32", 11)
    assert shape(graph, "l1.attention.qkv.w") == (3, 2, 64, 128)
    assert shape(graph, "l1.attention.out.w") == (128, 2, 64)
    assert shape(graph, "l1.attention.scores") == (3, 2, 5, 5)
    assert shape(graph, "l1.mlp.up.w") == (128, 512)
    assert shape(graph, "embedding.positions.w") == (5, 128)
    assert shape(graph, "labels") == (3, 5)
    assert dict(graph.metrics) == {"loss": "loss", "logits": "logits", "labels": "labels"}


def test_every_layer_has_the_same_nodes():
    graph = build("transformer-4-12", **SMALL)
    per_layer = [
        [(node.name.removeprefix(f"l{layer}."), node.op) for node in graph.nodes if node.name.startswith(f"l{layer}.")]
        for layer in range(4)
    ]
    assert per_layer[0] == per_layer[1] == per_layer[2]
    # What leaves the last layer is read once, so there are no gradients of it to add.
    assert per_layer[3] == [node for node in per_layer[0] if node != ("mlp.sum.grad", "add_n")]
    assert len(per_layer[0]) > 60


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("transformer-1-8", {"logits.w"}),
        ("encoder-decoder-1-8", {"logits.w", "encoder.embedding.w", "decoder.embedding.w"}),
    ],
)
def test_tied_embeddings_are_an_option(name, own):
    tied, untied = (weights(build(name, **SMALL, tied=tied)) for tied in (True, False))
    assert untied - tied == own
    assert tied - untied == ({"embedding.w"} if "embedding.w" not in untied else set())


def test_encoder_decoder_is_no_chain():
    graph = build("encoder-decoder-3-8", **SMALL, source_sequence=7)
    readers = {node.name for node in graph.nodes if "encoder.norm" in node.inputs and node.forward is None}
    assert readers == {f"decoder.l{layer}.cross.kv" for layer in range(3)}
    assert shape(graph, "source") == (3, 7)
    assert shape(graph, "decoder.l0.cross.scores") == (3, 4, 5, 7)
    assert shape(graph, "decoder.l0.cross.kv.w") == (2, 4, 2, 8)
    causal = {node.name for node in graph.nodes if node.op == "causal_mask" and node.forward is None}
    assert causal == {f"decoder.l{layer}.attention.mask" for layer in range(3)}


def split_heads(graph):
    """Shard the heads' dimension wherever there is one, and choose the heads' variable; else any."""
    layouts, strategies = {}, {}
    for tensor in graph.tensors.values():
        dims = [dim for dim, extent in enumerate(tensor.shape) if extent == HEADS]
        layouts[tensor.name] = (Shard(dims[0]) if dims else REPLICATE,) * 2
    for name, signature in signatures(graph).items():
        known = list(signature.description.strategies)
        chosen = [v for v in known if signature.extents[v] == HEADS] or [
            v for v in known if signature.extents[v] >= HEADS
        ]
        strategies[name] = (chosen[0] if chosen else EVERYWHERE,) * 2
    return Plan(graph, 0, (2, 2), layouts, strategies)


def is_border(node):
    """Whether a node sums over the heads: the output projection, and the gradients of the others' inputs."""
    return node.name.endswith(".out") or node.name.endswith(
        ("qkv.grad_operands0", ".q.grad_operands0", "kv.grad_operands0")
    )


@pytest.mark.parametrize("name", ["transformer-1-20", "encoder-decoder-1-20"])
def test_nothing_moves_inside_attention_when_heads_are_sharded(name):
    """Of all nodes with an index over the heads, only those that sum over them send anything."""
    plan = split_heads(build(name, batch=3, sequence=7, vocabulary=11, heads=HEADS))
    check_plan(plan)
    inside = [work for work in Traffic(plan).work if HEADS in work.signature.extents.values()]
    moving = set()
    for work in inside:
        exchanges = [read.exchange for read in work.reads if read.exchange is not None]
        exchanges += [hop for write in work.writes for hop in write.hops]
        if any(exchange.moved().any() for exchange in exchanges):
            moving.add(work.node.name)
    assert len(inside) > 25
    assert moving == {work.node.name for work in inside if is_border(work.node)}


@pytest.mark.parametrize("name", ["transformer-1-16", "encoder-decoder-1-16"])
def test_training_lowers_the_loss(name):
    graph = build(name, batch=4, sequence=6, vocabulary=12, heads=2, lr=0.1)
    values = one_worker.draw(graph)
    losses = []
    for _ in range(20):
        results = one_worker.run(graph, values)
        losses.append(float(results["loss"]))
        values |= {old: results[new] for old, new in graph.updates.items()}
    assert losses[-1] < 0.3 * losses[0]
