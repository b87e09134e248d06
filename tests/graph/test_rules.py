"""Gradients of graphs against central differences, in double precision."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from planner.errors import GraphError
from planner.graph import GraphBuilder, Init
from planner.graph.rules import gradients
from tests.graph import one_worker


def weighted_sum(b, tensor, name):
    """A scalar that depends on every element of the tensor differently."""
    shape = b.shape(tensor)
    product = b.apply("mul", tensor, b.input(f"{name}.weights", shape), name=f"{name}.product")
    return b.apply("sum", product, name=f"{name}.sum", dims=tuple(range(len(shape)))) if shape else product


def total(b, tensors, name="loss"):
    return b.apply("add_n", *(weighted_sum(b, tensor, f"{name}.{tensor}") for tensor in tensors), name=name)


def compare_with_central_differences(b, loss, wrt):
    gradient_of = gradients(b, loss, wrt)
    graph = b.finish({}, {})
    values = one_worker.draw(graph, seed=1)
    for tensor in wrt:
        # Off zero, where relu has a kink and division no bound.
        values[tensor] = np.where(values[tensor] < 0, values[tensor] - 0.1, values[tensor] + 0.1)
    results = one_worker.run(graph, values)
    for tensor in wrt:
        expected = central_differences(graph, values, tensor, loss)
        assert one_worker.difference(results[gradient_of[tensor]], expected, floor=0.01) < 1e-7


def central_differences(graph, values, tensor, loss, step=1e-5):
    slopes = np.zeros(values[tensor].shape)
    for index in np.ndindex(slopes.shape):
        ends = []
        for sign in (1, -1):
            moved = values[tensor].copy()
            moved[index] += sign * step
            ends.append(one_worker.run(graph, {**values, tensor: moved})[loss])
        slopes[index] = (ends[0] - ends[1]) / (2 * step)
    return slopes


def test_a_loss_that_is_an_average():
    b = GraphBuilder("float64")
    w = b.weight("w", (2, 3), Init("uniform", 1.0))
    squares = b.apply("mul", w, w, name="squares")
    mean = b.apply("mean", squares, name="mean", dims=(0, 1), count=6)
    loss = b.apply("add", b.apply("scale", mean, name="scaled", factor=3.0), mean, name="loss")
    compare_with_central_differences(b, loss, ("w",))


@st.composite
def random_losses(draw):
    """A builder with a loss over a random graph of smooth operators on 2x2 matrices, and the weights it depends on."""
    b = GraphBuilder("float64")
    tensors = [b.weight(f"w{number}", (2, 2), Init("uniform", 1.0)) for number in range(2)]
    for number in range(draw(st.integers(1, 6))):
        op = draw(st.sampled_from(("tanh", "sigmoid", "add", "sub", "mul", "mm", "add_n")))
        arity = {"tanh": 1, "sigmoid": 1, "add_n": 3}.get(op, 2)
        # The newest tensor is always read, so that much of the graph matters to the loss.
        inputs = [tensors[-1], *(draw(st.sampled_from(tensors)) for _ in range(arity - 1))]
        tensors.append(b.apply(op, *draw(st.permutations(inputs)), name=f"n{number}"))
    loss = total(b, [*draw(st.permutations(tensors[:-1]))[:2], tensors[-1]])
    reached = {tensors[-1], loss}
    for node in reversed(b.nodes):
        if reached.intersection(node.outputs):
            reached.update(node.inputs)
    return b, loss, tuple(name for name in tensors[:2] if name in reached)


@settings(max_examples=40, deadline=None)
@given(random_losses())
def test_random_graphs(case):
    compare_with_central_differences(*case)


def normalized(b):
    x = b.weight("x", (3, 2, 2, 2), Init("uniform", 1.0))
    w, bias = (b.weight(name, (2,), Init("uniform", 1.0)) for name in ("w", "b"))
    mean = b.apply("mean", x, name="mean", dims=(0, 2, 3), count=12)
    var = b.apply("batch_norm_var", x, mean, name="var", count=12)
    return b.apply("batch_norm", x, mean, var, w, bias, name="norm", eps=0.1)


def test_statistics_of_batch_norm_get_no_gradient_of_their_own():
    b = GraphBuilder("float64")
    loss = total(b, [normalized(b)])
    gradients(b, loss, ("x", "w", "b"))
    backward = [node for node in b.nodes if node.forward == "norm"]
    assert [node.op for node in backward] == ["batch_norm_backward_reduce", "batch_norm_backward"]
    assert not [node for node in b.nodes if node.forward in ("mean", "var")]


def cross_entropy(b, logits, name, labels="labels"):
    maximum = b.apply("amax", logits, name=f"{name}.maximum", dims=(1,))
    sums = b.apply("sum_exp", logits, maximum, name=f"{name}.total")
    return b.apply("cross_entropy", logits, maximum, sums, labels, name=name, count=4)


def test_the_seed_is_folded_into_each_cross_entropy():
    b = GraphBuilder()
    w = b.weight("w", (4, 3), Init("uniform", 1.0))
    b.integers("labels", (4,), 3)
    both = b.apply("add_n", cross_entropy(b, w, "first"), cross_entropy(b, w, "second"), name="both")
    loss = b.apply("scale", both, name="loss", factor=0.5)
    forward = len(b.nodes)
    assert gradients(b, loss, ("w",)) == {"w": "w.grad"}
    assert [(node.op, dict(node.attrs)) for node in b.nodes[forward:]] == [
        ("cross_entropy_backward", {"factor": 0.125}),
        ("cross_entropy_backward", {"factor": 0.125}),
        ("add_n", {}),
    ]


def test_what_cannot_be_differentiated_is_named():
    b = GraphBuilder()
    x = b.weight("x", (2, 3, 4, 4), Init("uniform", 1.0))
    rest = [b.weight(name, (3,), Init("ones")) for name in ("m", "v", "w", "b")]
    normal = total(b, [b.apply("batch_norm", x, *rest, name="normal", eps=0.1)], "normal.loss")
    message = r"node 'normal' \(batch_norm\): its operand 'm' must be mean\(x\)"
    with pytest.raises(GraphError, match=message):
        gradients(b, normal, ("x",))
    square = b.weight("square", (2, 4, 4), Init("uniform", 1.0))
    next_count = total(b, [b.apply("increment", square, name="next")], "next.loss")
    with pytest.raises(GraphError, match="node 'next': operator 'increment' has no gradient rule"):
        gradients(b, next_count, ("square",))
