"""An operator of one's own, relu(x) squared, and a model that uses it.

Run with `plan examples/own_operator.py:model`, then `simulate` and `execute` with
`--operators examples/own_operator.py`.
"""

import tdl
from executor.cases import Case, Draw
from executor.extensions import cases, kernel
from executor.kernels import KernelCall
from planner.extensions import gradient
from planner.graph import Graph, GraphBuilder, Optimizer, training_graph
from planner.graph.rules import Backward, Gradients
from planner.models.layers import classify, linear


@tdl.register
@tdl.op(category="elementwise")
def squared_relu(x):
    """Say what an element of the result is; strategies, shapes and costs follow from it."""
    return lambda *i: tdl.maximum(x[i], 0) * tdl.maximum(x[i], 0)


@tdl.register
@tdl.op(category="elementwise")
def squared_relu_backward(grad, x):
    """Say the same of the gradient: the derivative, 2 relu(x), times what arrives."""
    return lambda *i: grad[i] * (2 * tdl.maximum(x[i], 0))


@gradient("squared_relu")
def squared_relu_gradient(b: Backward) -> Gradients:
    """One gradient per operand."""
    return (b.emit("squared_relu_backward", (b.gradient, b.node.inputs[0]), 0),)


@kernel("squared_relu")
def squared_relu_kernel(call: KernelCall) -> None:
    """Compute a worker's share; `call.xp` is NumPy or CuPy."""
    positive = call.xp.maximum(call.inputs[0], 0)
    call.xp.multiply(positive, positive, out=call.outputs[0])


@kernel("squared_relu_backward")
def squared_relu_backward_kernel(call: KernelCall) -> None:
    """Compute a worker's share of the gradient."""
    grad, x = call.inputs
    call.xp.multiply(grad, 2 * call.xp.maximum(x, 0), out=call.outputs[0])


@cases("squared_relu")
def squared_relu_case(draw: Draw) -> Case:
    """Return operands on which `operators check` compares kernel and description."""
    return Case((draw.array(*draw.sizes(2)),))


@cases("squared_relu_backward")
def squared_relu_backward_case(draw: Draw) -> Case:
    """Return a gradient and an operand of one shape."""
    sizes = draw.sizes(2)
    return Case((draw.array(*sizes), draw.array(*sizes)))


def model() -> Graph:
    """Two layers for the 8 by 8 digit images, with the new operator between them."""
    b = GraphBuilder()
    hidden = b.apply("squared_relu", linear(b, b.input("images", (64, 64)), 128, "fc1"), name="act1")
    return training_graph(b, classify(b, linear(b, hidden, 10, "fc2")), Optimizer("momentum", lr=0.02))
