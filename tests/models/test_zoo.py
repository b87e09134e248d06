import re

import pytest

from planner.errors import GraphError
from planner.graph.optimizers import OPTIMIZERS
from planner.models import build, llama, sequences
from planner.models.zoo import known_names
from planner.parallel import Parallel
from simulator.projection.network import cluster
from tensor_partitioner.projection import project_source
from tensor_partitioner.replicas import GraphModel, ZooModel


def count(graph, op):
    return sum(node.op == op and node.forward is None for node in graph.nodes)


def shape(graph, name):
    return graph.tensors[name].shape


def test_mlp():
    graph = build("mlp-4-1k", batch=8)
    assert [shape(graph, f"fc{layer}.w") for layer in (1, 2, 3, 4)] == [(1024, 1024)] * 4
    assert count(graph, "relu") == 3
    assert dict(graph.metrics) == {"loss": "loss", "logits": "fc4", "labels": "labels"}
    assert graph.tensors["labels"].dtype == "int32"
    assert graph.tensors["labels"].init.below == 1024
    assert {name: tensor.role for name, tensor in graph.tensors.items() if tensor.role == "loss"} == {"loss": "loss"}


def test_first_input_gradient_on_request():
    options = {"batch": 8, "optimizer": "none"}
    without = build("mlp-2-4", **options)
    with_it = build("mlp-2-4", **options, first_input_gradient=True)
    assert "images.grad" not in without.tensors
    assert shape(with_it, "images.grad") == (8, 4)
    assert {node.name for node in with_it.nodes} - {node.name for node in without.nodes} == {"fc1.grad_a"}
    assert not with_it.updates


def test_cnn():
    graph = build("cnn-5-16", batch=8, image=6, classes=10)
    assert [shape(graph, f"conv{layer}.w") for layer in range(1, 6)] == [(16, 16, 3, 3)] * 5
    assert shape(graph, "images") == (8, 16, 6, 6)
    assert shape(graph, "conv5") == (8, 16, 6, 6)
    assert shape(graph, "fc.w") == (16, 10)
    assert count(graph, "batch_norm") == 0
    assert shape(build("cnn-5-16", image=6, channels=1), "conv1.w") == (16, 1, 3, 3)


@pytest.mark.parametrize(("depth", "convolutions"), [(14, 17), (50, 53), (152, 155)])
def test_wresnet_convolutions(depth, convolutions):
    # A bottleneck ResNet-L has L - 1 convolutions on its longest path, and one projection in each of four stages.
    graph = build(f"wresnet-{depth}-1", batch=2)
    assert count(graph, "convolution") == convolutions
    assert count(graph, "batch_norm") == convolutions
    assert count(graph, "mm") == 1


def test_wresnet_extents():
    graph = build("wresnet-50-2", batch=2)
    assert shape(graph, "stem.conv.w") == (128, 3, 7, 7)
    assert shape(graph, "stem.conv") == (2, 128, 112, 112)
    assert shape(graph, "stem.pool.0") == (2, 128, 56, 56)
    assert shape(graph, "stage1.unit3.relu3") == (2, 512, 56, 56)
    assert shape(graph, "stage4.unit3.relu3") == (2, 4096, 7, 7)
    assert shape(graph, "fc.w") == (4096, 1000)


def test_wresnet_on_small_images_has_a_small_stem():
    graph = build("wresnet-14-0.25", batch=2, image=8, channels=1, classes=10)
    assert shape(graph, "stem.conv.w") == (16, 1, 3, 3)
    assert count(graph, "max_pool2d_with_indices") == 0


def test_alexnet():
    graph = build("alexnet", batch=2)
    assert shape(graph, "conv1.w") == (64, 3, 11, 11)
    assert [shape(graph, f"pool{layer}.0") for layer in (1, 5)] == [(2, 64, 27, 27), (2, 256, 6, 6)]
    assert shape(graph, "flat") == (2, 9216)
    assert shape(graph, "conv3.b") == (384,)
    assert shape(graph, "fc3.w") == (4096, 1000)


def test_vgg():
    graph = build("vgg-16", batch=2)
    assert count(graph, "convolution") == 13
    assert [shape(graph, f"pool{stage}.0") for stage in (1, 5)] == [(2, 64, 112, 112), (2, 512, 7, 7)]
    assert [shape(graph, f"fc{layer}.w") for layer in (1, 2, 3)] == [(25088, 4096), (4096, 4096), (4096, 1000)]
    assert shape(build("vgg-16", batch=2, image=32, width=0.25), "flat") == (2, 128)


def test_classifier():
    graph = build("classifier-85742", batch=2)
    assert count(graph, "convolution") == 53
    assert shape(graph, "pool") == (2, 2048)
    assert shape(graph, "embedding.w") == (2048, 512)
    assert shape(graph, "fc.w") == (512, 85742)


def test_rnn():
    graph = build("rnn-2-8", batch=4, unroll=3)
    assert shape(graph, "lstm1.wx") == (4, 8, 512)
    assert shape(graph, "lstm2.wx") == shape(graph, "lstm2.wh") == (4, 8, 8)
    assert shape(graph, "x.2") == (4, 512)
    assert shape(graph, "labels.2") == (4,)
    assert shape(graph, "lstm1.gates.0") == (4, 4, 8)
    assert shape(graph, "logits.2") == (4, 512)
    assert dict(graph.metrics) == {"loss": "loss", "logits": "logits.2", "labels": "labels.2"}


def test_rnn_nodes_know_their_cell_and_timestep():
    graph = build("rnn-2-8", batch=4, unroll=3)
    nodes = {node.name: node for node in graph.nodes}
    assert nodes["lstm2.gates.1"].unroll == ("lstm2.gates", 1)
    assert nodes["logits.2"].unroll == ("logits", 2)
    backward = [node for node in graph.nodes if node.forward in nodes]
    assert all(node.unroll == nodes[node.forward].unroll for node in backward)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_all_optimizers(optimizer):
    graph = build("cnn-2-4", batch=2, image=4, optimizer=optimizer)
    weights = [tensor.name for tensor in graph.tensors.values() if tensor.role == "weight" and tensor.init]
    assert set(weights) <= set(graph.updates) or optimizer == "none"


def test_dtypes():
    graph = build("rnn-1-4", batch=2, unroll=2, dtype="float64", optimizer="adam")
    assert {tensor.dtype for tensor in graph.tensors.values()} == {"float64", "int32"}


@pytest.mark.parametrize("name", ["", "mlp-4", "mlp-4-8-2", "mlp-4-8kk", "MLP-4-8", "cnn-50-x", "rnn-2--4", "mlp-²-4"])
def test_unknown_names_list_the_zoo(name):
    known = "zoo has mlp-L-H (such as mlp-4-8192), cnn-L-C (such as cnn-5-2048), wresnet-L-W"
    with pytest.raises(GraphError, match=rf"unknown model {name!r}(: did you mean .*\? The|; the) {re.escape(known)}"):
        build(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpt-2", "gpt2"),
        ("llama-3-8b", "llama-3.1-8b"),
        ("gpt-13b", "gpt-3-175b"),
        ("wresnet", "wresnet-152-10"),
    ],
)
def test_what_an_unknown_name_may_have_meant_comes_first(name, meant):
    with pytest.raises(GraphError, match=rf"unknown model {name!r}: did you mean [^?]*\b{re.escape(meant)}\b[^?]*\? "):
        build(name)


def test_every_published_size_is_listed():
    with pytest.raises(GraphError) as refused:
        build("resnet")
    for name in (*sequences.SIZES, *llama.SIZES, *llama.EXPERTS):
        assert name in known_names()
        assert name in str(refused.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wresnet-34-1", "wresnet-34-1: L must be one of 14, 26, 50, 101, 152"),
        ("wresnet-14-0.01", "wresnet-14-0.01: 64 W channels must be a positive integer, found 0.64"),
    ],
)
def test_wresnet_numbers_out_of_range(name, message):
    with pytest.raises(GraphError, match=re.escape(message)):
        build(name)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("alexnet", {"width": 0.01}, "option width must make 64 units a positive integer, found 0.01"),
        ("alexnet", {"image": 62}, "node 'pool5' (max_pool2d_with_indices): no extent of 'y'"),
        ("classifier-4", {"backbone": "rnn-2-4"}, "option backbone must name a model wresnet-L-W, found 'rnn-2-4'"),
        ("transformer-2-12", {"heads": 5}, "option heads must divide the width 12, found 5"),
        ("transformer-2-12", {"dropout": 1.0}, "option dropout must be below 1"),
        ("llama-4-256", {"dense_layers": 2}, "option dense_layers: expected option experts beside it"),
        ("llama-4-256", {"experts": 4, "dense_layers": 5}, "option dense_layers: must be at most the 4 layers"),
    ],
)
def test_options_that_do_not_fit(name, options, message):
    with pytest.raises(GraphError, match=re.escape(message)):
        build(name, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 2}, "mlp-L-H has no option heads; its options are batch, dtype, optimizer, lr"),
        ({"batch": 0}, "option batch must be a positive integer, found 0"),
        ({"batch": True}, "option batch must be a positive integer, found True"),
        ({"momentum": float("inf")}, "option momentum must be a finite number of at least 0, found inf"),
        ({"first_input_gradient": 1}, "option first_input_gradient must be True or False, found 1"),
        ({"lr": float("nan")}, "option lr must be a finite number of at least 0, found nan"),
        (
            {"dtype": "int32"},
            "option dtype must be one of float16, bfloat16, float32, float64, mixed, mixed-float16, found 'int32'",
        ),
        ({"optimizer": "lion"}, f"option optimizer must be one of {', '.join(OPTIMIZERS)}, found 'lion'"),
    ],
)
def test_options_that_a_family_refuses(options, message):
    with pytest.raises(GraphError, match=re.escape(message)):
        build("mlp-2-4", **options)


OF_EXPERTS = {"experts": 4, "hidden": 64, "dense_layers": 3, "dense_hidden": 96, "shared_hidden": 32, "key_rank": 16}
FEW = {
    "hf:torchtitan/llama4-debugmodel": {"layers": 13},
    "hf:torchtitan/deepseek_v3-debugmodel": {"layers": 9},
    "llama-9-64": {**OF_EXPERTS, "heads": 2, "head_size": 96, "vocabulary": 64},
}


@pytest.mark.parametrize("name", FEW)
def test_few_layers_stand_for_all(name):
    options = {**FEW[name], "sequence": 64, "dtype": "mixed"}
    sources = ZooModel.of(name, options), GraphModel(build(name, batch=16, **options))
    for words in ("dp=8,zero=1,micro-batch=2", "pp=2,dp=4,micro-batch=1", "dp=8,ep=4,micro-batch=1"):
        few, every = (project_source(of, 16, Parallel.read(words), cluster("hgx-h100"), "compile") for of in sources)
        assert few.needed_bytes == every.needed_bytes
        assert few.seconds == pytest.approx(every.seconds, rel=1e-8)
