"""Compare training steps of an imported graph with the module's own: same weights, same inputs, one worker."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from os import cpu_count
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from executor.backend import asnumpy
from executor.check import Difference, least_precise, tolerance, with_rounding
from executor.cluster import HostArray, single_rank
from executor.torch.batches import Batch, array_of
from executor.training import Trainer, rank_programs
from executor.weights import Weights
from planner.errors import GraphError
from planner.graph.infer import describe
from planner.graph.ir import Graph
from planner.graph.optimizers import DECAYED, Optimizer
from planner.graph.training import counter
from planner.plans.plan import undivided
from planner.pytorch.arguments import Arguments, contained
from planner.pytorch.capture.trace import Step
from planner.pytorch.user_model import UserModel, imported, user_model
from tensor_partitioner import display


class Rounded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within this mode, every operator's result is perturbed by up to the distance between neighbouring numbers.

    Equal numbers get equal errors, as from one kernel, so ties stay ties. Integers are exact. `sample` selects the
    errors.
    """

    def __init__(self, sample: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._moved = partial(_moved, sample)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator. In-place results and views are not perturbed."""
        result = func(*args, **(kwargs or {}))
        is_alias = any(returned.alias_info is not None for returned in func._schema.returns)
        return result if is_alias or _is_exact(func._schema.name, args) else tree_map(self._moved, result)


def _is_exact(name: str, arguments: Sequence[Any]) -> bool:
    """Return whether an operator selects or moves elements. Its results are compared with those elements."""
    return name.removeprefix("aten::") in EXACT or any(
        argument in EXTREME for argument in arguments if isinstance(argument, str | float)
    )


EXACT = ("amax", "amin", "aminmax", "max", "min", "gather", "index", "index_select", "tril", "triu", "flip", "clone")

EXTREME = ("amax", "amin", inf, -inf)
"""Arguments with which other operators select elements."""


def _moved(sample: int, value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    if value.layout is not torch.strided or value.is_nested or value._is_zerotensor():
        return value
    by_chance = torch.sin(torch.frexp(value.double()).mantissa * 2**52 + sample)
    moved = value * (1 + torch.finfo(value.dtype).eps * by_chance)
    return torch.where(value == value.round(), value, moved.to(value.dtype))


LEAST: Mapping[str, float] = {"bfloat16": 4e-2, "float16": 5e-3, "float32": 1e-4, "float64": 1e-10}
"""Relative differences that kernels other than PyTorch's may always have."""

LEAST_SHARE = 1e-3
"""A gradient is compared as if its largest value were at least this share of the largest of all gradients, and stored
tensors as if theirs were this share of the largest movement: values that are zero except for rounding have no
significant digits."""

UNTRAINED = "PyTorch itself cannot train the module"

REPEATED = " when PyTorch takes the same steps again, as the module keeps what is no buffer between calls"
"""Added for modules whose steps depend on earlier calls. Their differences would otherwise look like rounding."""

GRADIENT, STORED = "gradient", "after the steps"

SECONDS_PER_NODE, OPERATIONS_PER_SECOND = 4e-3, 2e9
"""Cost of importing and running small operators, and rate of large ones in double precision, on two cores."""

SAMPLES = 16
"""Most samples of PyTorch's own rounding errors. Samples are drawn until they explain a difference: at a kink, only
some have the sign of PyTorch's error."""

STEPS = 3
"""From the second step on, an optimizer's states and constants take part, and counters of the module."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The difference of a tensor from PyTorch's.

    `what` says which value: the tensor, its gradient, or what the steps leave.
    """

    name: str
    what: str
    difference: Difference


@dataclass(frozen=True, slots=True)
class Verification(display.Shown):
    """Steps of a graph compared with the module's, computed in `dtype`; `instead` says why that is not float64."""

    model: str
    dtype: str
    compared: tuple[Compared, ...]
    instead: str = ""

    @property
    def failure(self) -> str:
        """What differs, in one line; "" if nothing does."""
        failed = [tensor for tensor in self.compared if not tensor.difference.excess <= 1]
        if not failed:
            return ""
        worst = max(failed, key=lambda tensor: tensor.difference.excess)
        return (
            f"{self.model}: {len(failed)} of {len(self.compared)} tensors differ from PyTorch, most "
            f"{worst.name}, {worst.what}, by {worst.difference.value:.3g} of its largest value; rounding "
            f"explains {worst.difference.tolerance:.3g}"
        )


@display.tables.register
def verification_tables(shown: Verification) -> tuple[Table]:
    """Show every tensor that was compared."""
    rows = [
        [tensor.name, tensor.what, f"{tensor.difference.value:.2e}", f"{tensor.difference.tolerance:.2e}"]
        for tensor in shown.compared
    ]
    title = f"{shown.model}: {STEPS} steps against PyTorch, in {shown.dtype}{shown.instead}; parts of the largest value"
    return (display.table(title, ["tensor", "value", "largest difference", "rounding explains"], rows),)


def verify(make: Callable[[], object], model: str) -> Verification:
    """Train the module that a function returns, and its graph, for some steps, and compare.

    They are trained in double precision. If the module insists on its own dtype, it is made again, because it is half
    converted. Raises GraphError if it cannot be imported.
    """
    try:
        return verified(_doubled(user_model(make())), model)
    except (GraphError, RuntimeError) as error:  # a dtype may be fixed in the model
        reason = str(error).strip().partition("\n")[0]
        return replace(verified(user_model(make()), model), instead=f", as float64 failed: {reason}")


def estimated_seconds(graph: Graph) -> float:
    """Return an estimate of the seconds to verify an imported graph: it is imported again and trained three times."""
    operations = 0.0
    for node in graph.nodes:
        description = describe(node, graph.tensors)
        shapes = [graph.tensors[name].shape for name in node.inputs]
        if not description.is_opaque:
            operations += description.operations(description.extents(shapes, node.attrs))
    return SECONDS_PER_NODE * len(graph.nodes) + 3 * STEPS * operations / OPERATIONS_PER_SECOND


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _doubled(user: UserModel) -> UserModel:
    arguments = Arguments(user.inputs, user.targets).mapped(_double)
    loss = user.loss.double() if isinstance(user.loss, nn.Module) else user.loss
    if isinstance(user.optimizer, torch.optim.Optimizer):
        for state in user.optimizer.state.values():  # some have state before the first step
            state.update({name: _double(value) for name, value in state.items() if isinstance(value, torch.Tensor)})
    return user._replace(module=user.module.double(), inputs=arguments.inputs, loss=loss, targets=arguments.targets)


def verified(user: UserModel, model: str) -> Verification:
    """Compare the first steps of a user's model, whose module they train, with those of its graph."""
    if not isinstance(user.optimizer, torch.optim.Optimizer):
        user = user._replace(optimizer=torch.optim.SGD(user.module.parameters(), lr=Optimizer("sgd").lr))
    graph = imported(user)
    if counter(graph.tensors):
        raise GraphError(
            f"{model}: dropout uses other random masks than PyTorch's: build the model with p=0 to compare"
        )
    before, state = _stored(user), copy.deepcopy(user.optimizer.state_dict())
    with contained("a step of the graph"):
        ours = _ours(graph, user)
    loss, gradients = _trained(user)
    theirs = _theirs(graph, user, ours, loss, gradients)
    after, dtype = _stored(user), least_precise(graph)
    pairs = ((now, before[name]) for name, now in after.items() if name in before)
    moved = (_size(array_of(now - then)) for now, then in pairs if then.is_floating_point() and now.shape == then.shape)
    least = {
        GRADIENT: LEAST_SHARE * max(map(_size, map(array_of, gradients.values())), default=0.0),
        STORED: LEAST_SHARE * max(moved, default=0.0),
    }

    def gaps(others: Theirs) -> list[float]:
        pairs = zip(others, theirs, strict=True)
        return [_difference(x.reshape(y.shape), y, least.get(what, 0.0)) for (*_, x), (_, what, y) in pairs]

    def judged(differences: list[float], roundings: list[float], when: str = "") -> Verification:
        compared = [
            Compared(name, what + when, Difference(gap, tolerance(rounding, LEAST[dtype])))
            for (name, what, _), gap, rounding in zip(theirs, differences, roundings, strict=True)
        ]
        return Verification(model, dtype, tuple(compared))

    verification = judged(gaps(_again(graph, user, ours, before, state)), [0.0] * len(theirs), REPEATED)
    if verification.failure:
        return verification
    of_ours = gaps([(name, what, ours[name][0]) for name, what, _ in theirs])
    by_rounding = [ours[name][1] for name, *_ in theirs]
    for sample in range(SAMPLES):
        with Rounded(sample):
            by_rounding = list(map(max, by_rounding, gaps(_again(graph, user, ours, before, state))))
        verification = judged(of_ours, by_rounding)
        if not verification.failure:
            break
    return verification


Tensors = Mapping[str, torch.Tensor]

Theirs = list[tuple[str, str, HostArray]]
"""What PyTorch computes: the name of our tensor, which value of it, and its content."""


def _again(graph: Graph, user: UserModel, ours: Collection[str], before: Tensors, state: dict[str, Any]) -> Theirs:
    """Repeat PyTorch's steps from the same start."""
    with torch.no_grad():
        for name, tensor in _tensors(user.module).items():
            if name in before and before[name].shape == tensor.shape:  # forward makes the others
                tensor.copy_(before[name])
    user.optimizer.load_state_dict(copy.deepcopy(state))
    return _theirs(graph, user, ours, *_trained(user))


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by name, including those that no state dict has."""
    return dict((*module.named_parameters(), *module.named_buffers()))


def _stored(user: UserModel) -> dict[str, torch.Tensor]:
    """Return copies of a module's tensors."""
    return {name: tensor.detach().clone() for name, tensor in _tensors(user.module).items()}


def _size(array: HostArray) -> float:
    """Return the largest finite absolute value."""
    return float(np.abs(array[np.isfinite(array)].astype(np.float64)).max(initial=0.0))


def _difference(actual: HostArray, expected: HostArray, least: float) -> float:
    """Return max|actual - expected| relative to the largest expected value, or to `least` if that is larger.

    Equal infinities, and NaN in both, are no difference.
    """
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    is_equal = (a == b) | (np.isnan(a) & np.isnan(b))
    gap = float(np.abs(np.where(is_equal, 0, a) - np.where(is_equal, 0, b)).max(initial=0.0))
    return gap / (max(_size(expected), least) or 1.0)


def _ours(graph: Graph, user: UserModel) -> Mapping[str, tuple[HostArray, float]]:
    """Return the last loss, first gradients and stored tensors of the graph's steps, and the effect of rounding."""
    trainer = Trainer(rank_programs(undivided(graph), 0, 0), single_rank(cpu_count() or 1), np, "p2p")
    state = {name: array_of(tensor).copy() for name, tensor in user.module.state_dict().items()}
    trainer.begin_with(Weights.of(state, graph))
    batch = Batch(graph, user.module, user.inputs, user.targets)
    kept = {entry.tensor for entry in graph.entries.values() if entry.tensor is not None} - graph.updates.keys()
    return with_rounding(trainer, batch, STEPS) | {name: (np.array(asnumpy(trainer.view(name))), 0.0) for name in kept}


def _trained(user: UserModel) -> tuple[torch.Tensor, Tensors]:
    """Train the module; return the last loss, and the gradients of the first step by parameter name.

    Raises GraphError if PyTorch itself cannot train the module.
    """
    arguments, gradients = Arguments(user.inputs, user.targets), dict[str, torch.Tensor]()
    step = Step(user.module, user.loss, arguments.structure)
    try:
        for _ in range(STEPS):
            user.optimizer.zero_grad()
            loss: torch.Tensor = step(*arguments.mapped(torch.clone).values)
            loss.backward()  # type: ignore[no-untyped-call]
            if not gradients:
                parameters = user.module.named_parameters(remove_duplicate=False)
                gradients = {name: p.grad.to_dense().clone() for name, p in parameters if p.grad is not None}
            user.optimizer.step()
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise GraphError(f"{UNTRAINED}: {type(error).__name__}: {reason}") from error
    return loss, gradients


def _theirs(graph: Graph, user: UserModel, ours: Collection[str], loss: torch.Tensor, gradients: Tensors) -> Theirs:
    """Return copies of the loss, of gradients and of entries after the steps, with the names of our tensors.

    A gradient that only its update reads may be fused with it and so not exist in our graph. A gradient with weight
    decay added is not PyTorch's. For those, the stored tensors tell.
    """
    theirs = [(graph.metrics["loss"], "loss", array_of(loss).copy())]
    makers = {output: node for node in graph.nodes for output in node.outputs}
    seen = set[str | None]()
    for name, tensor in user.module.state_dict(keep_vars=True).items():
        entry = graph.entries.get(name)  # None for entries that forward registers
        if entry is None or entry.tensor is None or entry.tensor in seen:
            continue
        seen.add(entry.tensor)
        if name in gradients and entry.tensor in graph.updates:
            _, gradient, *_ = makers[graph.updates[entry.tensor]].inputs
            if gradient in ours and gradient != f"{entry.tensor}{DECAYED}":
                theirs.append((gradient, GRADIENT, array_of(gradients[name]).copy()))
        theirs.append((entry.tensor, STORED, array_of(tensor).copy()))
    return theirs
