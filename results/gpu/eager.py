"""A model's training step in PyTorch alone: the same weights, inputs, precision and optimizer as the graph's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch

from executor.backend import synchronize
from executor.cases import Array, Case
from executor.data import Random, data_tensors
from executor.torch.tensors import array_of, tensor_of
from executor.values import Tile, fill, stream
from planner.graph.facts import precision
from planner.graph.ir import Graph, Value
from planner.layout.region import whole
from planner.plans.plan import Plan
from results.kernels.twins import TWINS

Step = Callable[[], torch.Tensor]
Attributes = Mapping[str, Value]

MIXED = "bfloat16, weights float32"
"""What `precision` says of a graph that autocast computes alike."""

OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd_momentum": torch.optim.SGD,
    "adamw": lambda weights, lr, beta1, beta2, eps, decay, **how: torch.optim.AdamW(
        weights, lr, (beta1, beta2), eps, decay, **how
    ),
}
"""PyTorch's optimizers by the operator that updates a weight in a graph, called with its attributes."""


def step(plan: Plan, xp: ModuleType, *, compiles: bool) -> Step:
    """Return a training step, whose result is the loss; a ValueError for a graph that updates weights otherwise."""
    graph, device = plan.graph, torch.device("cpu" if xp.__name__ == "numpy" else "cuda")
    roles = {tensor.name: tensor.role for tensor in graph.tensors.values()}
    values = dict(first_values(plan, xp))
    synchronize(xp)
    weights = {name: value.requires_grad_() for name, value in values.items() if roles[name] == "weight"}
    inputs = {name: value for name, value in values.items() if roles[name] == "input"}
    name, attributes = update_of(graph)
    optimizer = OPTIMIZERS[name](list(weights.values()), **attributes, fused=device.type == "cuda")
    in_order = partial(loss, plan.search.model.split("-", maxsplit=1)[0])
    loss_of: Callable[..., torch.Tensor] = torch.compile(in_order) if compiles else in_order

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=precision(graph) == MIXED):
            result = loss_of(weights, inputs)
        result.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return result.detach()

    return run


def gradient_of_weight(case: Case, xp: ModuleType) -> Array:
    """Return, in host memory, the gradient of a weight by autograd, of a case of `convolution_backward_weight`."""
    grad, image = (tensor_of(xp.asarray(operand.copy())) for operand in case.operands)
    attributes: dict[str, Any] = dict(case.attributes)
    taps = attributes["extents"]
    weight = grad.new_zeros(grad.shape[1], image.shape[1], taps["dy"], taps["dx"], requires_grad=True)
    result = torch.nn.functional.conv2d(image, weight, None, attributes["stride"], attributes["padding"])
    (gradient,) = torch.autograd.grad(result, weight, grad)
    return np.asarray(array_of(np, gradient.cpu()))


def loss(family: str, weights: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the loss of a model of a family of the zoo."""
    return TWINS[family](weights, inputs)[0]


def update_of(graph: Graph) -> tuple[str, Attributes]:
    """Return the operator that updates every weight, and its attributes."""
    updated = set(graph.updates.values())
    nodes = [node for node in graph.nodes if node.op in OPTIMIZERS and not updated.isdisjoint(node.outputs)]
    kinds = {(node.op, tuple(sorted(node.attrs.items()))) for node in nodes}
    if len(kinds) != 1:
        raise ValueError(f"expected one of {', '.join(OPTIMIZERS)} to update every weight alike, found {kinds}")
    return nodes[0].op, nodes[0].attrs


def first_values(plan: Plan, xp: ModuleType) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield weights and inputs as training begins with them, on the device that computes."""
    data, graph = Random(plan.graph, plan.seed), plan.graph
    given = {tensor.name for tensor in data_tensors(graph)}
    for tensor in graph.tensors.values():
        if tensor.init is None or tensor.role not in ("weight", "input"):
            continue
        array, tile = xp.empty(tensor.shape, tensor.dtype), Tile(tensor, whole(tensor.shape))
        if tensor.name in given:
            data.fill(xp, array, tile, 0)
        else:
            fill(xp, array, tile, stream(plan.seed, tensor.name))
        yield tensor.name, tensor_of(array)
