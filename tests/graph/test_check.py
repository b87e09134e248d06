import re
from dataclasses import replace

import pytest

from planner.errors import GraphError
from planner.graph import Graph, Init
from planner.graph.infer import check
from planner.graph.ir import Node, Tensor
from planner.models import build
from tests.launcher import in_one_line


@pytest.fixture(scope="module")
def graph():
    return build("mlp-2-4", batch=3)


def with_node(graph, key, **changes):
    assert any(node.name == key for node in graph.nodes)
    nodes = tuple(replace(node, **changes) if node.name == key else node for node in graph.nodes)
    return replace(graph, nodes=nodes)


def with_tensor(graph, key, **changes):
    return replace(graph, tensors={**graph.tensors, key: replace(graph.tensors[key], **changes)})


def moved_last(graph, name):
    chosen = next(node for node in graph.nodes if node.name == name)
    return replace(graph, nodes=(*(node for node in graph.nodes if node.name != name), chosen))


DAMAGES = {
    "unknown operator": (
        lambda g: with_node(g, "relu1", op="rellu"),
        "node 'relu1' (rellu): unknown operator 'rellu'",
    ),
    "operand count": (
        lambda g: with_node(g, "relu1", inputs=("fc1", "fc1")),
        "node 'relu1' (relu): expected 1 operands (x), found 2",
    ),
    "no outputs": (
        lambda g: with_node(g, "fc2.w.update", outputs=("fc2.w.next",)),
        "node 'fc2.w.update' (sgd_momentum): expected 2 outputs, found 1",
    ),
    "missing attribute": (
        lambda g: with_node(g, "fc2.w.update", attrs={"lr": 0.1}),
        "node 'fc2.w.update' (sgd_momentum): missing attribute 'momentum'",
    ),
    "unknown attribute": (
        lambda g: with_node(g, "relu1", attrs={"slope": 0.1}),
        "node 'relu1' (relu): unknown attribute 'slope'; expected: none",
    ),
    "unusable attribute": (
        lambda g: with_node(g, "loss.maximum", attrs={"dims": [1]}),
        "node 'loss.maximum' (amax): attribute dims must be a number, a string, None, a tuple or a mapping of them, "
        "found list",
    ),
    "count of none": (
        lambda g: with_node(g, "loss", attrs={"count": 0}),
        "node 'loss' (cross_entropy): attribute count must be a number above 0, found 0",
    ),
    "attribute that is no number": (
        lambda g: with_node(g, "fc1.w.update", attrs={"lr": float("nan"), "momentum": 0.9}),
        "attribute lr must be a number, found nan",
    ),
    "undefined operand": (
        lambda g: with_node(g, "relu1", inputs=("fc9",)),
        "node 'relu1' (relu): operand 'fc9' is not defined",
    ),
    "undefined output": (
        lambda g: with_node(g, "relu1", outputs=("relu9",)),
        "node 'relu1' (relu): output 'relu9' is not defined",
    ),
    "produced twice": (
        lambda g: with_node(g, "fc2", outputs=("fc1",)),
        "node 'fc2' (mm): output 'fc1' is already produced by node 'fc1' (mm)",
    ),
    "read before produced": (
        lambda g: moved_last(g, "fc1"),
        "node 'relu1' (relu): reads 'fc1' before node 'fc1' (mm) produces it",
    ),
    "wrong shape": (
        lambda g: with_tensor(g, "fc1", shape=(3, 5)),
        "node 'fc1' (mm): output 'fc1' should have shape (3, 4), found (3, 5)",
    ),
    "wrong dtype": (
        lambda g: with_tensor(g, "fc1", dtype="float64"),
        "node 'fc1' (mm): output 'fc1' should have dtype float32, found float64",
    ),
    "mixed dtypes": (
        lambda g: with_tensor(g, "fc1.w", dtype="float64"),
        "node 'fc1' (mm): operand b has dtype float64, but the operands before it have float32",
    ),
    "float labels": (
        lambda g: with_tensor(g, "labels", dtype="float32"),
        "node 'loss' (cross_entropy): operand labels must be int32, found float32",
    ),
    "empty extent": (
        lambda g: with_tensor(g, "fc1.w", shape=(0, 4)),
        "tensor 'fc1.w': extents must be positive integers, found shape (0, 4)",
    ),
    "shape of another type": (
        lambda g: with_tensor(g, "fc1.w", shape=[4, 4]),
        "'fc1.w': the shape must be a tuple, found",
    ),
    "unknown dtype": (lambda g: with_tensor(g, "fc1", dtype="half"), "tensor 'fc1': unknown dtype 'half'"),
    "unknown init": (lambda g: with_tensor(g, "fc1.w", init=Init("normal")), "tensor 'fc1.w': unknown init 'normal'"),
    "negative timestep": (lambda g: with_node(g, "fc2", unroll=("fc", -1)), "node 'fc2' (mm): unroll must be"),
    "unknown role": (lambda g: with_tensor(g, "fc1", role="hidden"), "tensor 'fc1': unknown role 'hidden'"),
    "key and name": (
        lambda g: with_tensor(g, "fc1", name="fc2"),
        "tensor 'fc1': expected the tensor's own name as its key, found 'fc2'",
    ),
    "input produced": (
        lambda g: with_tensor(g, "fc1", role="input"),
        "tensor 'fc1': an input cannot be produced, node 'fc1' (mm) does",
    ),
    "activation unproduced": (
        lambda g: with_tensor(g, "images", role="activation", init=Init("zeros")),
        "tensor 'images': no node produces it, so its role must be one of "
        "input, weight, state, buffer, constant, found activation",
    ),
    "init of a produced tensor": (
        lambda g: with_tensor(g, "fc1", init=Init("zeros")),
        "tensor 'fc1': node 'fc1' (mm) produces it, so it must have no init",
    ),
    "no init": (
        lambda g: with_tensor(g, "fc1.w", init=None),
        "tensor 'fc1.w': no node produces it and it has no init",
    ),
    "uniform without scale": (lambda g: with_tensor(g, "fc1.w", init=Init("uniform")), "tensor 'fc1.w': a uniform"),
    "integers without bound": (
        lambda g: with_tensor(g, "labels", init=Init("integers")),
        "tensor 'labels': an integers init needs dtype int32 and `below` of at least 1",
    ),
    "weights from the data set": (
        lambda g: with_tensor(g, "fc1.w", init=Init("data")),
        "tensor 'fc1.w': only inputs come from the data set, found role weight",
    ),
    "update of a produced tensor": (
        lambda g: replace(g, updates={"fc1": "fc1.w.next"}),
        "update of 'fc1' by 'fc1.w.next': node 'fc1' (mm) produces 'fc1'",
    ),
    "update by an unproduced tensor": (
        lambda g: replace(g, updates={"fc1.w": "fc2.w"}),
        "update of 'fc1.w' by 'fc2.w': no node produces 'fc2.w'",
    ),
    "update of another shape": (
        lambda g: replace(g, updates={"fc1.w": "relu1"}),
        "update of 'fc1.w' by 'relu1': expected shape (4, 4) and dtype float32, found (3, 4) and float32",
    ),
    "update by nothing": (
        lambda g: replace(g, updates={"fc1.w": "fc1.w.later"}),
        "update of 'fc1.w' by 'fc1.w.later': tensor 'fc1.w.later' is not defined",
    ),
    "two updates by one tensor": (
        lambda g: replace(g, updates={"fc1.w": "fc1.w.next", "fc2.w": "fc1.w.next"}),
        "update of 'fc2.w' by 'fc1.w.next': 'fc1.w.next' already updates 'fc1.w'",
    ),
    "metric of nothing": (
        lambda g: replace(g, metrics={"logits": "fc9"}),
        "metric 'logits': tensor 'fc9' is not defined",
    ),
    "loss that is no scalar": (
        lambda g: replace(g, metrics={"loss": "fc2"}),
        "metric 'loss': tensor 'fc2' must be a scalar, found shape (3, 4)",
    ),
    "forward of nothing": (
        lambda g: with_node(g, "fc2.grad_b", forward="fc9"),
        "node 'fc2.grad_b' (mm): its forward node 'fc9' does not exist",
    ),
    "two nodes of one name": (
        lambda g: with_node(g, "fc2", name="fc1"),
        "node 'fc1' (mm): node names must be non-empty and unique",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_wrong_is_named(graph, damage):
    change, message = DAMAGES[damage]
    with in_one_line(GraphError, re.escape(message)):
        check(change(graph))


@pytest.mark.parametrize(
    ("name", "value"),
    [("stride", (0, 1)), ("stride", (True, 1)), ("stride", 2), ("padding", (-1, 0))],
)
def test_window_attributes_have_a_range(name, value):
    graph = build("cnn-1-2", batch=2, image=4)
    for conv in ("conv1", "conv1.grad_weight"):
        attrs = next(node.attrs for node in graph.nodes if node.name == conv)
        least = {"stride": 1, "padding": 0}[name]
        message = f"attribute {name} must be a tuple of integers of at least {least}, found {value!r}"
        with pytest.raises(GraphError, match=re.escape(message)):
            check(with_node(graph, conv, attrs={**attrs, name: value}))


def test_a_cycle_is_named():
    names = ("a", "b", "c", "d")
    tensors = {name: Tensor(name, (2,), "float32", "activation") for name in names}
    tensors["x"] = Tensor("x", (2,), "float32", "input", Init("data"))
    nodes = (
        Node("a", "add", ("x", "c"), ("a",)),
        Node("b", "relu", ("a",), ("b",)),
        Node("c", "relu", ("b",), ("c",)),
        Node("d", "relu", ("c",), ("d",)),
    )
    with pytest.raises(GraphError, match="the graph has a cycle: a -> b -> c -> a"):
        check(Graph(tensors, nodes, {}, {}))
