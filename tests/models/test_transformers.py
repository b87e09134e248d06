"""The structure of transformers: names, shapes, and what ties."""

import pytest

from planner.models import build
from tests.models.test_zoo import shape

SMALL = {"batch": 3, "sequence": 5, "vocabulary": 11, "heads": 4}


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
