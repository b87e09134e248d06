"""A PyTorch optimizer bound to a plan's updates: its groups control them, and the plan's states are its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from executor.torch.batches import array_of
from executor.torch.tensors import tensor_of
from executor.training import Trainer
from planner.errors import PlanError
from planner.graph.ir import Graph, Node, Value, entries_of
from planner.graph.optimizers import Optimizer, operator_of
from planner.pytorch.user_model import settings_of

CLASSES: Mapping[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "sgd_momentum": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}
"""PyTorch's optimizers, by the operator that updates one weight."""

STATES: Mapping[str, tuple[str, ...]] = {
    "sgd": (),
    "sgd_momentum": ("momentum_buffer",),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq"),
    "rmsprop": ("square_avg",),
    "adagrad": ("sum",),
}
"""PyTorch's names for the states with a weight's shape, in the order of the operator's operands."""

STEP = "step"
"""PyTorch's name for the number of steps. The plan has one for all weights."""


@dataclass(frozen=True, slots=True)
class Update:
    """The update of a parameter: its name in the module, the node, and what is applied to the gradient before.

    `states` are the graph's tensors with the weight's shape, by PyTorch's names. `count` is its number of steps, if
    any.
    """

    name: str
    node: Node
    before: Mapping[str, float | None]
    states: Mapping[str, str]
    count: str | None


def updates_of(graph: Graph) -> dict[str, Update]:
    """Return the updates of a graph's weights, by the name of their first entry."""
    producers = {output: node for node in graph.nodes for output in node.outputs}
    replaced = {output: tensor for tensor, output in graph.updates.items()}
    clipping = {
        "clip_norm": _attribute(graph, "clip.ratio", "factor"),
        "clip_value": _attribute(graph, ".grad.bounded", "max"),
    }
    updates: dict[str, Update] = {}
    bound = set[str]()
    for name, entry in entries_of(graph).items():
        node = producers.get(graph.updates.get(entry.tensor or "", ""))
        if node is None or node.op not in CLASSES or node.name in bound:
            continue
        bound.add(node.name)
        states = dict(zip(STATES[node.op], node.inputs[2:], strict=False))
        count = next((replaced[operand] for operand in node.inputs if operand in replaced), None)
        updates[name] = Update(name, node, {"weight_decay": _weight_decay(node, producers), **clipping}, states, count)
    return updates


def _attribute(graph: Graph, ending: str, name: str) -> Any:
    """Return the attribute of the first node whose name ends so; None if there is none."""
    return next((node.attrs[name] for node in graph.nodes if node.name.endswith(ending)), None)


def _weight_decay(node: Node, producers: Mapping[str, Node]) -> float:
    """Return the multiple of the weight that is added to its gradient."""
    weight, gradient = node.inputs[:2]
    added = producers.get(producers[gradient].inputs[-1])
    is_decay = (
        producers[gradient].op == "add" and added is not None and (added.op, added.inputs) == ("scale", (weight,))
    )
    return float(added.attrs["factor"]) if is_decay else 0.0  # type: ignore[union-attr, arg-type]


def torch_optimizer(graph: Graph, module: nn.Module) -> torch.optim.Optimizer | None:
    """Return the PyTorch optimizer equivalent to a graph's updates; None if the graph has none.

    Raises PlanError if updates belong to several classes.
    """
    updates, parameters = updates_of(graph), dict(module.named_parameters(remove_duplicate=False))
    classes = {CLASSES[update.node.op] for update in updates.values()}
    if len(classes) > 1:
        raise PlanError(f"expected updates by one optimizer, found {len(classes)}: pass the optimizer to distribute()")
    groups: dict[str, dict[str, Any]] = {}
    for update in updates.values():
        settings = _group(update)
        groups.setdefault(str(settings), {"params": [], **settings})["params"].append(parameters[update.name])
    return classes.pop()([*groups.values()]) if groups else None  # type: ignore[call-arg]


def _group(update: Update) -> dict[str, Any]:
    """Return an update's attributes as a parameter group of PyTorch."""
    attributes: Mapping[str, Any] = update.node.attrs
    group = {key: attributes[key] for key in ("lr", "momentum", "alpha", "eps") if key in attributes}
    group |= {key: value for key, value in update.before.items() if value is not None}
    group["weight_decay"] = attributes.get("decay", group["weight_decay"])
    return group | ({"betas": (attributes["beta1"], attributes["beta2"])} if "beta1" in attributes else {})


class PlannedUpdates:
    """A PyTorch optimizer bound to the updates of a trainer's plan (collective).

    Its existing state is taken over and from then on only lives in the trainer's arena. Raises PlanError if the
    optimizer and the plan have different parameters.
    """

    def __init__(self, trainer: Trainer, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._trainer = trainer
        self._bound = _bound(trainer.graph, module, optimizer)
        self._gradients: dict[nn.Parameter, torch.Tensor] = {}
        self._steps = self._steps_before = 0
        self._changes()
        self._take_state(optimizer)
        optimizer.register_step_pre_hook(lambda *_: self._hide_gradients())
        optimizer.register_step_post_hook(lambda *_: self._show_gradients())
        optimizer.register_state_dict_pre_hook(self._show_state)
        optimizer.register_state_dict_post_hook(lambda *_: optimizer.state.clear())
        optimizer.register_load_state_dict_post_hook(self._take_state)

    @property
    def updates(self) -> Sequence[Update]:
        """The updates of all parameters."""
        return [*self._bound.values()]

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The settings of the optimizer's groups, without parameters."""
        return [
            {key: value for key, value in group.items() if key != "params"} for group in self.optimizer.param_groups
        ]

    def resume(self, steps: int, groups: Sequence[Mapping[str, Any]]) -> None:
        """Resume after `steps` steps, with the settings of a checkpoint's groups, in order."""
        self._steps = self._steps_before + steps
        for group, values in zip(self.optimizer.param_groups, groups, strict=True):
            group.update(values)

    def apply(self, steps: int) -> None:
        """Apply the settings of the optimizer's groups to the next step. Raises PlanError if they need another plan."""
        self._steps = self._steps_before + steps + 1
        self._trainer.rate.change(self._changes())

    def _changes(self) -> Mapping[str, Mapping[str, Value]]:
        """Return the attributes of every update's node that the optimizer's groups require."""
        changes = {}
        for group in self.optimizer.param_groups:
            settings = settings_of(type(self.optimizer), group)
            for parameter in group["params"]:
                if (update := self._bound.get(parameter)) is not None:
                    changes[update.node.name] = _attributes(update, settings)
        return changes

    def _hide_gradients(self) -> None:
        """Leave nothing to do for the optimizer's own step, which schedulers count."""
        self._gradients = {parameter: parameter.grad for parameter in self._bound if parameter.grad is not None}
        for parameter in self._gradients:
            parameter.grad = None

    def _show_gradients(self) -> None:
        for parameter, gradient in self._gradients.items():
            parameter.grad = gradient

    def _show_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the whole state of the optimizer on rank 0 (collective). Before the first step there is none."""
        if not self._steps:
            return
        count = next((update.count for update in self.updates if update.count is not None), None)
        steps = self._steps if count is None else self._trainer.whole(count)
        for parameter, update in self._bound.items():
            whole = {name: self._trainer.whole(tensor) for name, tensor in update.states.items()}
            if self._trainer.cluster.rank == 0 and whole:
                state = {name: tensor_of(np.asarray(array).reshape(parameter.shape)) for name, array in whole.items()}
                optimizer.state[parameter] = {STEP: torch.tensor(float(np.asarray(steps))), **state}

    def _take_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Write this rank's part of the optimizer's state to the arena (collective). Missing state is zero."""
        sizes = self._trainer.cluster.all_gather(len(optimizer.state))
        if len({*sizes}) > 1:
            raise PlanError(f"expected the optimizer's state on every rank, found that of {sizes} parameters by rank")
        if not optimizer.state:
            return
        counts = {float(state[STEP]) for state in optimizer.state.values() if STEP in state}
        if len(counts) > 1:
            raise PlanError(
                f"expected the same number of steps for all parameters of the optimizer, found {sorted(counts)}"
            )
        self._steps_before = self._steps = int(max(counts, default=0))
        for parameter, update in self._bound.items():
            for name, tensor in update.states.items():
                value = optimizer.state[parameter].get(name)
                self._trainer.write(tensor, np.zeros(parameter.shape) if value is None else array_of(value.cpu()))
            if update.count is not None:
                self._trainer.write(update.count, np.array([*counts] or [0]))
        optimizer.state.clear()


def _bound(graph: Graph, module: nn.Module, optimizer: torch.optim.Optimizer) -> Mapping[nn.Parameter, Update]:
    """Return each parameter's update. Raises PlanError if the trained parameters are not the optimizer's.

    The optimizer may have other parameters without gradients, which the graph does not read or forward changes.
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    bound = {parameters[name]: update for name, update in updates_of(graph).items()}
    tensors = {name: entry.tensor for name, entry in graph.entries.items() if name in parameters}
    idle = {parameters[name] for name, tensor in tensors.items() if tensor is None or tensor in graph.updates}
    owned = {parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad}
    names = [
        name
        for name, parameter in module.named_parameters()
        if (parameter in bound) != (parameter in owned - (idle - bound.keys()))
    ]
    if names or not owned <= {*parameters.values()}:
        raise PlanError(
            f"expected an optimizer of the parameters that the plan trains; they differ in {', '.join(names[:3])}: "
            "plan with this optimizer"
        )
    return bound


def _attributes(update: Update, settings: Optimizer) -> Mapping[str, Value]:
    """Return the attributes of an update's operator, given settings. Raises PlanError if they need another plan."""
    before = {name: getattr(settings, name) for name in update.before}
    if operator_of(settings.name) != update.node.op or before != update.before:
        planned, others = f"{update.node.op} {update.before}", f"{operator_of(settings.name)} {before}"
        raise PlanError(f"{update.name}: planned with {planned}, found {others}: plan with these settings")
    return {name: getattr(settings, name) for name in update.node.attrs}
