"""From a forward graph to a training iteration: gradients of every weight, and the optimizer's updates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from planner.errors import GraphError
from planner.graph.autodiff import gradients
from planner.graph.build import GraphBuilder
from planner.graph.ir import Graph
from planner.graph.optimizers import Optimizer, update_weights


def training_graph(
    builder: GraphBuilder, metrics: Mapping[str, str], optimizer: Optimizer, also: Iterable[str] = ()
) -> Graph:
    """Append backward pass and updates to a forward graph, and return the checked whole.

    `metrics` must name the "loss"; every tensor of role "weight" is trained. `also` names further tensors whose
    gradients are wanted. Raises GraphError.
    """
    loss = metrics.get("loss")
    if loss is None:
        raise GraphError(f"the metrics must name the loss, found {', '.join(metrics) or 'none'}")
    builder.set_role(loss, "loss")
    weights = [tensor.name for tensor in builder.tensors.values() if tensor.role == "weight"]
    found = gradients(builder, loss, (*weights, *also))
    updates = update_weights(builder, {weight: found[weight] for weight in weights}, optimizer)
    return builder.finish(updates, metrics)
