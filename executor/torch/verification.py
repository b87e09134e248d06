"""Training steps of an imported graph beside the module's own: the same weights, the same inputs, one worker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from os import cpu_count

import numpy as np
import torch
from rich.table import Table
from torch import nn

from executor.backend import asnumpy
from executor.check import Difference, least_precise, relative_difference, tolerance, with_rounding
from executor.cluster import HostArray, single_rank
from executor.torch.distributed import Batch
from executor.torch.state_files import array_of
from executor.training import Trainer, rank_programs
from executor.weights import Weights
from planner.errors import GraphError
from planner.graph.dropout import ITERATION
from planner.graph.ir import Graph
from planner.graph.optimizers import DECAYED, Optimizer
from planner.plans.plan import undivided
from planner.pytorch.tracing import Inputs, Step, in_order
from planner.pytorch.user_model import UserModel, imported, user_model
from tensor_partitioner import display

LEAST: Mapping[str, float] = {"bfloat16": 4e-2, "float16": 5e-3, "float32": 1e-4, "float64": 1e-10}
"""Differences that other kernels than PyTorch's may always make, relative to a tensor's largest value."""


STEPS = 2
"""In the second, an optimizer's states and their constants take part."""


@dataclass(frozen=True, slots=True)
class Compared:
    """How far a tensor is from PyTorch's: `what` is of it, its gradient or what the step leaves of it."""

    name: str
    what: str
    difference: Difference


@dataclass(frozen=True, slots=True)
class Verification(display.Shown):
    """Steps of a graph beside the module's; `dtype` is the one that it was computed in, `instead` says why."""

    model: str
    dtype: str
    compared: tuple[Compared, ...]
    instead: str = ""

    @property
    def said(self) -> str:
        """What is wrong, in one line; nothing where nothing is."""
        failed = [one for one in self.compared if not one.difference.excess <= 1]
        worst = max(failed, key=lambda one: one.difference.excess, default=None)
        if worst is None:
            return ""
        return (
            f"{self.model}: {len(failed)} of {len(self.compared)} tensors differ from PyTorch's, most of all "
            f"{worst.name}, {worst.what}, by {worst.difference.found:.3g} of its largest value, where rounding "
            f"explains {worst.difference.tolerance:.3g}"
        )


@display.tables.register
def verification_tables(shown: Verification) -> tuple[Table]:
    """Show every tensor that was compared."""
    rows = [
        [one.name, one.what, f"{one.difference.found:.2e}", f"{one.difference.tolerance:.2e}"] for one in shown.compared
    ]
    title = f"{shown.model}: {STEPS} steps beside PyTorch, in {shown.dtype}{shown.instead}; parts of the largest value"
    return (display.table(title, ["tensor", "of it", "largest difference", "rounding explains"], rows),)


def verify(make: Callable[[], object], model: str) -> Verification:
    """Train the module that a function makes, and its graph, for some steps, and compare.

    In double precision, unless the module insists on its own. Raises a GraphError for what cannot be imported.
    """
    try:
        return verified(_doubled(user_model(make())), model)
    except (GraphError, RuntimeError) as error:  # a dtype may be written into the model
        why = str(error).strip().partition("\n")[0]
        return replace(verified(user_model(make()), model), instead=f", as float64 failed: {why}")


def _doubled(made: UserModel) -> UserModel:
    """Return what was made in double precision."""

    def doubled(one: torch.Tensor) -> torch.Tensor:
        return one.double() if one.is_floating_point() else one

    inputs: Inputs = [doubled(one) for one in in_order(made.inputs)]
    if isinstance(made.inputs, Mapping):
        inputs = dict(zip(made.inputs, inputs, strict=True))
    loss = made.loss.double() if isinstance(made.loss, nn.Module) else made.loss
    targets = [doubled(one) for one in made.targets]
    if isinstance(made.optimizer, torch.optim.Optimizer):
        for state in made.optimizer.state.values():  # some have theirs before the first step
            state.update({name: doubled(one) for name, one in state.items() if isinstance(one, torch.Tensor)})
    return made._replace(module=made.module.double(), inputs=inputs, loss=loss, targets=targets)


def verified(made: UserModel, model: str) -> Verification:
    """Compare the first steps of what was made; the module is trained by them."""
    if not isinstance(made.optimizer, torch.optim.Optimizer):
        made = made._replace(optimizer=torch.optim.SGD(made.module.parameters(), lr=Optimizer("sgd").lr))
    graph = imported(made)
    if ITERATION in graph.tensors:
        raise GraphError(
            f"{model}: drops elements at random, by other masks than PyTorch's: build it with p=0 to compare"
        )
    ours = _ours(graph, made)
    loss, gradients = _trained(made)
    pairs = [(graph.metrics["loss"], "loss", array_of(loss)), *_theirs(graph, made, ours, gradients)]
    least = LEAST[least_precise(graph)]
    compared = []
    for name, what, theirs in pairs:
        value, by_rounding = ours[name]
        gap = relative_difference(value.reshape(theirs.shape), theirs)
        compared.append(Compared(name, what, Difference(gap, tolerance(by_rounding, least))))
    return Verification(model, least_precise(graph), tuple(compared))


def _ours(graph: Graph, made: UserModel) -> Mapping[str, tuple[HostArray, float]]:
    """Return last loss, first gradients and stored tensors of steps of the graph, and what rounding changes in each."""
    plan = undivided(graph)
    trainer = Trainer(rank_programs(plan, 0, 0), single_rank(cpu_count() or 1), np, "p2p")
    state = {name: array_of(one).copy() for name, one in made.module.state_dict().items()}
    trainer.begin_with(Weights.of(state, graph))
    batch = Batch.of(graph, made.module, made.inputs, made.targets)
    found = with_rounding(trainer, batch, STEPS)
    kept = {entry.tensor for entry in graph.entries.values() if entry.tensor is not None} - graph.updates.keys()
    return found | {name: (np.array(asnumpy(trainer.view(name))), 0.0) for name in kept}


def _trained(made: UserModel) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
    """Train the module; return the last loss, and the gradients of the first step by the parameters' names."""
    step, gradients = Step(made.module, made.loss, made.inputs), dict[str, torch.Tensor]()
    for _ in range(STEPS):
        made.optimizer.zero_grad()
        loss: torch.Tensor = step(*in_order(made.inputs), *made.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        if not gradients:
            parameters = made.module.named_parameters(remove_duplicate=False)
            gradients = {name: one.grad.to_dense().clone() for name, one in parameters if one.grad is not None}
        made.optimizer.step()
    return loss, gradients


def _theirs(
    graph: Graph, made: UserModel, ours: Collection[str], gradients: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, str, HostArray]]:
    """Yield what PyTorch has of our gradients and of every entry after the steps, with the names of our tensors.

    A gradient that only its update reads may be computed with that, and is then not ours, and one that weight decay was
    added to is not PyTorch's: what it leaves tells.
    """
    makers = {output: node for node in graph.nodes for output in node.outputs}
    seen = set[str | None]()
    for name, one in made.module.state_dict(keep_vars=True).items():
        entry = graph.entries[name]
        if entry.tensor is None or entry.tensor in seen:
            continue
        seen.add(entry.tensor)
        if name in gradients and entry.tensor in graph.updates:
            read = makers[graph.updates[entry.tensor]].inputs
            (gradient,) = (tensor for tensor in read if graph.tensors[tensor].role == "gradient")
            if gradient in ours and gradient != f"{entry.tensor}{DECAYED}":
                yield gradient, "gradient", array_of(gradients[name])
        yield entry.tensor, "after the steps", array_of(one)
