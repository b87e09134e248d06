"""Opaque operators for tests: sorting rows, and the inverse of a matrix with another result, each with a gradient."""

import numpy as np

import tdl
from executor.extensions import kernel
from planner.extensions import gradient
from planner.graph import GraphBuilder
from planner.models import Training
from planner.models.layers import classify, linear

for name, attributes in (("sorted_rows", ("descending",)), ("sorted_rows_backward", ()), ("extremes", ())):
    tdl.register(tdl.opaque(name, *attributes))


@kernel("sorted_rows")
def sorted_rows(call):
    x, (values, order) = call.inputs[0], call.outputs
    order[...] = np.argsort(-x if call.attributes["descending"] else x, axis=1, kind="stable")
    values[...] = np.take_along_axis(x, order, axis=1)


@kernel("sorted_rows_backward")
def sorted_rows_backward(call):
    grad, order = call.inputs
    np.put_along_axis(call.outputs[0], order, grad, axis=1)


@kernel("extremes")
def extremes(call):
    call.outputs[0][...] = call.inputs[0].min() + call.inputs[1].max()


@gradient("sorted_rows")
def sorted_rows_gradient(b):
    shapes = (b.shape(0),)
    return (b.emit("sorted_rows_backward", (b.gradient, b.node.outputs[1]), 0, shapes=shapes, dtypes=("float64",)),)


def model(batch=8, optimizer="adam"):
    """A linear layer, rows sorted, another layer; beside it a scalar that an opaque operator makes."""
    options = Training(batch=batch, dtype="float64", optimizer=optimizer)
    b = GraphBuilder(options.dtype)
    x = b.input("x", (batch, 6))
    hidden = linear(b, x, 12, "fc0")
    kinds = {"shapes": ((batch, 12), (batch, 12)), "dtypes": ("float64", "int32")}
    values, _ = b.apply_all("sorted_rows", hidden, name="sorted", descending=True, **kinds)
    scalar = b.apply("extremes", hidden, values, name="extremes", shapes=((),))
    metrics = classify(b, linear(b, values, 5, "head"))
    return options.train(b, {**metrics, "extremes": scalar})
