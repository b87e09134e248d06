import pytest

from planner.errors import GraphError
from planner.graph import GraphBuilder, Init, Optimizer, training_graph
from planner.graph.rules import gradients


def summed(b, tensor):
    return b.apply("sum", tensor, name="loss", dims=tuple(range(len(b.shape(tensor)))))


def test_contributions_are_added_by_one_node():
    b = GraphBuilder()
    w, x = b.weight("w", (2, 2), Init("ones")), b.input("x", (2, 2))
    for number in range(5):
        x = b.apply("mm", x, w, name=f"y{number}")
    forward = len(b.nodes)
    assert gradients(b, summed(b, x), ("w",)) == {"w": "w.grad"}
    sums = [node for node in b.nodes[forward:] if node.op == "add_n"]
    assert [(node.outputs, len(node.inputs), node.forward) for node in sums] == [(("w.grad",), 5, None)]


def test_an_addition_passes_its_gradient_on():
    b = GraphBuilder()
    v, w = (b.weight(name, (2,), Init("ones")) for name in "vw")
    gradient_of = gradients(b, summed(b, b.apply("add", v, w, name="y")), ("v", "w"))
    assert gradient_of["v"] == gradient_of["w"] == "y.grad"


def test_nothing_is_computed_for_data():
    b = GraphBuilder()
    w, x = b.weight("w", (2, 2), Init("ones")), b.input("x", (2, 2))
    y = b.apply("mm", b.apply("relu", x, name="r"), w, name="y")
    gradients(b, summed(b, y), ("w",))
    assert [node.name for node in b.nodes if node.forward] == ["loss.grad_x", "y.grad_b"]


def test_backward_nodes_know_their_forward_nodes():
    b = GraphBuilder()
    w = b.weight("w", (2,), Init("ones"))
    x = b.input("x", (2,))
    for step in range(2):
        with b.timestep(step):
            x = b.apply("tanh", b.apply("mul", x, w, name="product"), name="cell")
    forward = {node.name: node for node in b.nodes}
    loss = summed(b, b.apply("add", x, x, name="double"))
    gradients(b, loss, ("w",))
    backward = [node for node in b.nodes if node.forward in forward]
    assert len(backward) == 6
    for node in backward:
        assert node.unroll == forward[node.forward].unroll
        assert {b.tensors[output].role for output in node.outputs} == {"gradient"}


def test_a_weight_that_does_not_matter_is_named():
    b = GraphBuilder()
    w = b.weight("w", (2,), Init("ones"))
    b.weight("idle", (2,), Init("ones"))
    loss = summed(b, w)
    with pytest.raises(GraphError, match="the loss does not depend on tensor 'idle'"):
        training_graph(b, {"loss": loss}, Optimizer())


def test_a_tensor_of_the_users_may_be_named_as_the_constant_is():
    b = GraphBuilder()
    x, w = b.input("one", (3,)), b.weight("w", (3,), Init("ones"))
    loss = b.apply("mean", b.apply("mul", x, w, name="y"), name="loss", dims=(0,), count=3)
    gradients(b, loss, ("w",))
    assert b.shape("one") == (3,)
    assert b.shape("one_") == ()


def test_the_loss_must_be_a_scalar():
    b = GraphBuilder()
    w = b.weight("w", (2,), Init("ones"))
    with pytest.raises(GraphError, match=r"loss 'w' must be a scalar, found shape \(2,\)"):
        gradients(b, w, ("w",))


def test_a_loss_is_needed():
    with pytest.raises(GraphError, match="the metrics must name the loss, found none"):
        training_graph(GraphBuilder(), {}, Optimizer())
