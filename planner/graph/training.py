"""From a forward graph to a training iteration: gradients of every weight, and the optimizer's updates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from planner.errors import GraphError
from planner.graph.autodiff import gradients
from planner.graph.build import GraphBuilder
from planner.graph.ir import Graph
from planner.graph.micro_batches import accumulate
from planner.graph.optimizers import Optimizer, update_weights
from planner.graph.recompute import recompute_activations
from planner.graph.training_mode import count_iterations, update_averages

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
    weights = [
        tensor.name
        for tensor in builder.tensors.values()
        if tensor.role == "weight" and tensor.init is not None and tensor.name not in builder.frozen
    ]
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
