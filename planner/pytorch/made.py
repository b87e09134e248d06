"""What a user's function returns: a module, example inputs and, if wanted, loss, targets and optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from planner.errors import GraphError
from planner.graph.ir import Graph
from planner.graph.optimizers import Optimizer
from planner.pytorch.importing import from_torch

SMALL_BYTES = 1 << 30
"""Modules with less in parameters and buffers are made for real, so that the content of buffers is known."""

EXPECTED = "(module, inputs), (module, inputs, loss, targets) or (module, inputs, loss, targets, optimizer)"


def graph_of(make: Callable[[], Any]) -> Any:
    """Return the graph of the module that a function makes, or what it returns where that is no module.

    The function runs first without memory for its tensors, so that a module of any size can be imported, and for a
    small one again with.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        made = make()
    if isinstance(made, Graph) or not _is_module(made):
        return made
    if _size(parts(made).module) < SMALL_BYTES:
        made = make()
    return imported(parts(made))


def imported(made: Made) -> Graph:
    """Return the graph of a module that was made."""
    optimizer = optimizer_of(made.optimizer)
    return from_torch(made.module, made.inputs, loss=made.loss, targets=made.targets, optimizer=optimizer)


def _is_module(made: Any) -> bool:
    return isinstance(made, nn.Module) or (isinstance(made, tuple) and bool(made) and isinstance(made[0], nn.Module))


class Made(NamedTuple):
    """What a user's function made."""

    module: nn.Module
    inputs: Sequence[torch.Tensor]
    loss: Callable[..., torch.Tensor] | None
    targets: Sequence[torch.Tensor]
    optimizer: Any


def parts(made: Any) -> Made:
    """Return module, inputs, loss, targets and optimizer; a GraphError for anything else."""
    if isinstance(made, nn.Module) or not _is_module(made):
        found = "a module alone" if isinstance(made, nn.Module) else type(made).__name__
        raise GraphError(f"expected {EXPECTED}, found {found}")
    module, inputs, loss, targets, optimizer = (*made, None, (), None)[:5] if len(made) < 4 else (*made, None)[:5]
    given = []
    for name, values in (("inputs", inputs), ("targets", targets)):
        one = (values,) if isinstance(values, torch.Tensor) else values
        if not isinstance(one, tuple | list) or not all(isinstance(value, torch.Tensor) for value in one):
            raise GraphError(f"expected {EXPECTED}, with tensors as {name}, found {values!r}")
        given.append(tuple(one))
    return Made(module, given[0], loss, given[1], optimizer)


def _size(module: nn.Module) -> int:
    return sum(one.nbytes for one in (*module.parameters(), *module.buffers()))


def optimizer_of(given: Any) -> Optimizer | None:
    """Return the optimizer of ours that does what PyTorch's does; a GraphError where none does."""
    if given is None or isinstance(given, Optimizer):
        return given
    if not isinstance(given, torch.optim.Optimizer):
        raise GraphError(f"expected an optimizer of PyTorch or planner.Optimizer, found {given!r}")
    (group, *others), kind = given.param_groups, type(given).__name__
    if others:
        raise GraphError(f"{kind}: expected one group of parameters, found {len(others) + 1}")
    refused = ("nesterov", "amsgrad", "maximize", "centered", "dampening", "lr_decay", "initial_accumulator_value")
    if used := [name for name in refused if group.get(name)]:
        raise GraphError(f"{kind}: {', '.join(used)} has no operator here")
    if group.get("weight_decay") and kind != "AdamW":
        raise GraphError(f"{kind}: weight_decay has no operator here but in AdamW")
    betas = group.get("betas", (0.9, 0.999))
    shared = {"lr": float(group["lr"]), "eps": float(group.get("eps", 1e-8))}
    match kind:
        case "SGD":
            momentum = float(group["momentum"])
            return Optimizer("momentum" if momentum else "sgd", momentum=momentum, **shared)
        case "Adam" | "AdamW":
            decay = float(group["weight_decay"])
            return Optimizer(kind.lower(), beta1=float(betas[0]), beta2=float(betas[1]), decay=decay, **shared)
        case "RMSprop" if not group["momentum"]:
            return Optimizer("rmsprop", alpha=float(group["alpha"]), **shared)
        case "Adagrad":
            return Optimizer("adagrad", **shared)
    raise GraphError(f"{kind} has no operator here: expected SGD, Adam, AdamW, RMSprop without momentum or Adagrad")
