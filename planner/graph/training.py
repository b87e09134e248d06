"""From a forward graph to a training iteration: gradients of every weight, and the optimizer's updates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import tdl
from planner.errors import GraphError
from planner.graph.build import Average, GraphBuilder
from planner.graph.infer import describe
from planner.graph.ir import Graph, Init, Node, Tensor
from planner.graph.micro_batches import accumulate
from planner.graph.optimizers import Optimizer, update_weights
from planner.graph.recompute import recompute_activations
from planner.graph.rules import gradients

# Differences between training and evaluation: dropout, and moving averages such as batch norm's statistics.
#
# Whether dropout zeroes an element is a function of the seed, the iteration number and the element's global index.
# Therefore it does not depend on the number of workers and is the same in recomputation and in the backward pass; no
# mask is stored. The iteration number is a state, "iteration", so resumed training continues with the same masks.
# Its initial value is derived from the seed of a run's initial values, so different runs drop different elements.
#
# Averages are states that track what an iteration computes. Training uses the statistics of the batch;
# `inference_graph` uses the averages instead, and drops nothing.


ITERATION = Tensor("iteration", (), "int32", "state", Init("integers", below=1 << 30))
"""The state that counts iterations. Its initial value is below 2^30, so it can count as many again in 32 bits."""


def dropout(builder: GraphBuilder, x: str, p: float, seed: int, name: str) -> str:
    """Add a node that zeroes elements of x with probability p and divides the others by 1 - p; return its output.

    Nodes with different seeds drop different elements. With p = 0 no node is added.
    """
    if not p:
        return x
    return builder.apply("dropout", x, iteration(builder), name=name, p=p, seed=seed)


def iteration(builder: GraphBuilder) -> str:
    """Return the state that counts iterations; add it if there is none yet."""
    return builder.shared(ITERATION)


def counter(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the state that counts iterations; None if nothing reads it."""
    names = (name for name, tensor in tensors.items() if (tensor.init, tensor.role) == (ITERATION.init, "state"))
    return next(names, None)


def count_iterations(builder: GraphBuilder) -> dict[str, str]:
    """Append the node that counts iterations if anything reads their number; return the update."""
    if (name := counter(builder.tensors)) is None:
        return {}
    node = Node(f"{name}.update", "increment", (name,), (f"{name}.next",))
    return {name: builder.emit(node, "state")[0]}


def without_dropout(graph: Graph) -> Graph:
    """Return the graph in which nothing is dropped, as in evaluation."""
    nodes = (
        replace(node, op="clone", inputs=node.inputs[:1], attrs={}) if tdl.catalog[node.op].only_in_training else node
        for node in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes))


def update_averages(builder: GraphBuilder) -> dict[str, str]:
    """Append the states and updates of the builder's averages; return which tensor replaces which state.

    An average tracks several micro-batches one after the other, and the calls within each likewise.
    """
    updates: dict[str, str] = {}
    for average in builder.averages:
        if average.state not in updates:
            of_state = [other for other in builder.averages if other.state == average.state]
            updates[average.state] = _updated(builder, average.state, of_state)
    return updates


def _updated(builder: GraphBuilder, state: str, averages: Sequence[Average]) -> str:
    """Append the updates of one state, in order; return its value after the last."""
    now = builder.state(state, builder.shape(averages[0].tensor), averages[0].init)
    for number, average in enumerate(averages):
        mark = f"@{number}" if len(averages) > 1 else ""
        value = average.tensor
        if builder.tensors[value].dtype != builder.weight_dtype:
            value = builder.apply("cast", value, name=f"{state}.cast{mark}", role="state", dtype=builder.weight_dtype)
        if average.factor != 1:
            value = builder.apply("scale", value, name=f"{state}.scaled{mark}", role="state", factor=average.factor)
        now = builder.apply("lerp", now, value, name=f"{state}.next{mark}", role="state", weight=average.momentum)
    return now


def inference_graph(graph: Graph) -> Graph:
    """Return the graph without dropout, which reads a moving average wherever a tensor has one.

    Its updates are meaningless; its loss is that of one micro-batch.
    """
    graph = without_dropout(graph)
    producers = {output: node for node in graph.nodes for output in node.outputs}
    states = {name: name for name in graph.updates if graph.tensors[name].role == "state"}
    averages: dict[str, str] = {}
    for node in graph.nodes:
        if node.inputs and node.inputs[0] in states and _is_linear(graph, node, operands=2):
            state, value = node.inputs
            states[node.outputs[0]] = states[state]
            while value in producers and _is_linear(graph, producers[value], operands=1):
                (value,) = producers[value].inputs
            averages[value] = states[state]
    nodes = (replace(node, inputs=tuple(averages.get(name, name) for name in node.inputs)) for node in graph.nodes)
    metrics = {metric: _of_micro_batch(graph, producers.get(name), name) for metric, name in graph.metrics.items()}
    return replace(graph, nodes=tuple(nodes), metrics=metrics)


def _of_micro_batch(graph: Graph, maker: Node | None, name: str) -> str:
    """Return the tensor whose sum over micro-batches a metric averages, or the metric itself."""
    summed = [] if maker is None else [operand for operand in maker.inputs if operand in graph.accumulated]
    return summed[0] if summed else name


def _is_linear(graph: Graph, node: Node, operands: int) -> bool:
    """Return True if a node is element-wise and linear in exactly `operands` operands, like an average or a scaling."""
    if len(node.inputs) != operands:
        return False
    description = describe(node, graph.tensors)
    return description.is_elementwise and description.linear(frozenset(range(operands)))


# From a forward graph to a training iteration.


RECOMPUTE = ("none", "selective", "segments")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Training options of an iteration.

    The forward graph is that of one of `micro_batches` micro-batches, whose gradients are summed before one update.
    `recompute` selects activations that the backward pass computes again (see `recompute.py`). The loss's gradient is
    multiplied by `loss_scale`, and weight gradients are divided by it. Raises GraphError for invalid values.
    """

    micro_batches: int = 1
    recompute: str = "none"
    loss_scale: float = 1.0

    def __post_init__(self) -> None:
        """Check every value."""
        if type(self.micro_batches) is not int or self.micro_batches < 1:
            raise GraphError(f"micro_batches must be a positive integer, found {self.micro_batches!r}")
        if self.recompute not in RECOMPUTE:
            raise GraphError(f"recompute must be one of {', '.join(RECOMPUTE)}, found {self.recompute!r}")
        if not (type(self.loss_scale) in (int, float) and 0 < self.loss_scale < math.inf):
            raise GraphError(f"loss_scale must be a finite number above 0, found {self.loss_scale!r}")

    def samples(self, batch: int) -> int:
        """Return the samples of each micro-batch, for which the forward graph is built."""
        if batch % self.micro_batches:
            raise GraphError(f"micro_batches must divide the batch of {batch}, found {self.micro_batches}")
        return batch // self.micro_batches


DEFAULT = Recipe()

LARGEST_FLOAT16 = 65504.0


def training_graph(
    builder: GraphBuilder,
    metrics: Mapping[str, str],
    optimizer: Optimizer | Mapping[str, Optimizer],
    also: Iterable[str] = (),
    recipe: Recipe = DEFAULT,
) -> Graph:
    """Append backward pass and updates to a forward graph, and return the checked graph.

    `metrics` must name the "loss". Every tensor of role "weight" that is not frozen is trained, by one optimizer for
    all or by individual ones. `also` names further tensors whose gradients are wanted. Raises GraphError.

    >>> import planner
    >>> from planner.models.layers import classify, linear
    >>> builder = planner.GraphBuilder()
    >>> logits = linear(builder, builder.input("x", (8, 4)), 10, "fc")
    >>> graph = planner.training_graph(builder, classify(builder, logits), planner.Optimizer("sgd"))
    >>> [node.op for node in graph.nodes]
    ['mm', 'amax', 'sum_exp', 'cross_entropy', 'cross_entropy_backward', 'mm', 'sgd']
    """
    loss = metrics.get("loss")
    if loss is None:
        raise GraphError(f"the metrics must name the loss, found {', '.join(metrics) or 'none'}")
    if builder.dtype == "float16" and recipe.loss_scale > LARGEST_FLOAT16:
        raise GraphError(f"loss_scale must be at most {LARGEST_FLOAT16:g} in float16, found {recipe.loss_scale:g}")
    builder.set_role(loss, "loss")
    parameters = (tensor.name for tensor in builder.tensors.values() if tensor.is_parameter)
    weights = [name for name in parameters if name not in builder.frozen]
    read = {weight: builder.changed.get(weight, builder.copies.get(weight, weight)) for weight in weights}
    forward = len(builder.nodes)
    gradient_of = gradients(builder, loss, (*read.values(), *also), recipe.loss_scale / recipe.micro_batches)
    if recipe.recompute != "none":
        recompute_activations(builder, forward, recipe.recompute)
    totals = {weight: gradient_of[copy] for weight, copy in read.items()}
    if recipe.micro_batches > 1:
        builder.micro_batches = recipe.micro_batches
        totals, mean = accumulate(builder, totals, loss)
        metrics = {**metrics, "loss": mean}
    scaled = {weight: _unscaled(builder, weight, total, recipe.loss_scale) for weight, total in totals.items()}
    updates = update_weights(builder, scaled, optimizer)
    return builder.finish(updates | update_averages(builder) | count_iterations(builder), metrics)


def _unscaled(builder: GraphBuilder, weight: str, gradient: str, scale: float) -> str:
    """Return a gradient in its weight's dtype, divided by the loss scale."""
    dtype = builder.tensors[weight].dtype
    if builder.tensors[gradient].dtype != dtype:
        gradient = builder.apply("cast", gradient, name=f"{weight}.grad", role="gradient", dtype=dtype)
    if scale == 1.0:
        return gradient
    return builder.apply("scale", gradient, name=f"{weight}.grad.unscaled", role="gradient", factor=1.0 / scale)
