"""What a user's function returns: a module, example inputs and, if wanted, loss, targets and optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from math import prod
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from planner.errors import GraphError
from planner.graph.ir import Graph
from planner.graph.optimizers import Optimizer
from planner.pytorch.importing import from_torch
from planner.pytorch.tracing import Inputs

REFUSED = ("nesterov", "amsgrad", "maximize", "centered", "dampening", "lr_decay", "initial_accumulator_value")
"""Settings of PyTorch's optimizers that are refused where they are not zero or false."""

EXPECTED_OPTIMIZERS = "expected PyTorch's SGD, Adam, AdamW, RMSprop without momentum or Adagrad"
EXPECTED = "(module, inputs), (module, inputs, loss, targets) or (module, inputs, loss, targets, optimizer)"


def graph_of(make: Callable[[], Any], *, opaque_unknown: bool = False) -> Any:
    """Return the graph of the module that a function makes, or what it returns where that is no module.

    The parameters get no memory, so that a module of any size can be imported. Where that does not suit the function it
    runs once more as it is.
    """
    try:
        with _without_memory(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # as layers are copied
            made = make()
            if _is_module(made):
                optimizer_of(parts(made))  # by identity, which a parameter may have lost as it became fake
    except Exception:
        made = make()
    if isinstance(made, Graph) or not _is_module(made):
        return made
    return imported(parts(made), opaque_unknown=opaque_unknown)


def imported(made: Made, *, opaque_unknown: bool = False) -> Graph:
    """Return the graph of a module that was made."""
    return from_torch(
        made.module,
        made.inputs,
        loss=made.loss,
        targets=made.targets,
        optimizer=optimizer_of(made),
        opaque_unknown=opaque_unknown,
    )


class _LargeAreFake(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within, tensors made from nothing get no memory where that would be much."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mode = mode

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, a large tensor's without memory."""
        is_large = function.namespace == "aten" and function._schema.arguments[:1] and _elements(function, args) > LARGE
        with self.mode if is_large else nullcontext():
            return function(*args, **(kwargs or {}))


LARGE = 1 << 28
"""Elements from which on a tensor gets no memory."""


def _elements(function: Any, args: Sequence[Any]) -> int:
    """Return how many elements an operator makes that is told their number; 0 for any other."""
    return prod(args[0]) if function._schema.arguments[0].name == "size" and args else 0


@contextmanager
def _without_memory() -> Iterator[None]:
    """Within, parameters of modules are fake as soon as they are registered; buffers keep their content."""
    mode, known = FakeTensorMode(allow_non_fake_inputs=True), WeakTensorKeyDictionary()

    def registered(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or isinstance(parameter, FakeTensor):
            return parameter
        if parameter not in known:
            known[parameter] = nn.Parameter(mode.from_tensor(parameter.detach()), parameter.requires_grad)
        found: nn.Parameter = known[parameter]
        return found

    handle = register_module_parameter_registration_hook(registered)  # type: ignore[arg-type]
    try:
        with _LargeAreFake(mode):
            yield
    finally:
        handle.remove()


def _is_module(made: Any) -> bool:
    return isinstance(made, nn.Module) or (isinstance(made, tuple) and bool(made) and isinstance(made[0], nn.Module))


class Made(NamedTuple):
    """What a user's function made."""

    module: nn.Module
    inputs: Inputs
    loss: Callable[..., torch.Tensor] | None
    targets: Sequence[torch.Tensor]
    optimizer: Any


def parts(made: Any) -> Made:
    """Return module, inputs, loss, targets and optimizer; a GraphError for anything else."""
    if isinstance(made, nn.Module) or not _is_module(made):
        found = "a module alone" if isinstance(made, nn.Module) else type(made).__name__
        raise GraphError(f"expected {EXPECTED}, found {found}")
    if len(made) not in (2, 4, 5):
        missing = ", no targets" if len(made) == 3 else ""
        raise GraphError(f"expected {EXPECTED}, found {len(made)}{missing}: ({', '.join(map(_kind, made))})")
    rest: tuple[Any, ...] = (None, (), None)[len(made) - 2 :]
    module, inputs, loss, targets, optimizer = tuple(made) + rest
    return Made(module, _tensors("inputs", inputs), loss, _tensors("targets", targets), optimizer)


def _kind(one: Any) -> str:
    return getattr(one, "__name__", type(one).__name__)


def _tensors(name: str, values: Any) -> Any:
    """Return a tensor, or several in order or by name, as several; a GraphError for anything else."""
    found = (values,) if isinstance(values, torch.Tensor) else values
    every = found.values() if isinstance(found, Mapping) else found
    if not isinstance(found, tuple | list | Mapping) or not all(isinstance(one, torch.Tensor) for one in every):
        raise GraphError(f"expected {EXPECTED}, with tensors as {name}, found {values!r}")
    return found


def optimizer_of(made: Made) -> Optimizer | dict[nn.Parameter, Optimizer] | None:
    """Return the optimizer of ours that does what PyTorch's does, by parameter; a GraphError where none does."""
    given = made.optimizer
    if given is None or isinstance(given, Optimizer):
        return given
    if not isinstance(given, torch.optim.Optimizer):
        raise GraphError(f"expected an optimizer of PyTorch or planner.Optimizer, found {given!r}")
    kind = type(given).__name__
    if getattr(torch.optim, kind, None) is not type(given):
        raise GraphError(f"{kind} has no operator here: {EXPECTED_OPTIMIZERS}")
    found = {one: _settings(kind, group) for group in given.param_groups for one in group["params"]}
    others = made.loss.parameters() if isinstance(made.loss, nn.Module) else ()  # which are refused by themselves
    own = {*made.module.parameters(), *others}
    if strange := [one for one in found if one not in own]:
        raise GraphError(
            f"{kind}: {len(strange)} of its {len(found)} parameters are none of the module's, "
            f"the first of shape {list(strange[0].shape)}: give it those of the module that is returned"
        )
    return found


def _settings(kind: str, group: Mapping[str, Any]) -> Optimizer:
    """Return what an optimizer of PyTorch does with a group of parameters."""
    if used := [name for name in REFUSED if group.get(name)]:
        raise GraphError(f"{kind}: {', '.join(used)} has no operator here")
    shared = {"lr": float(group["lr"]), "eps": float(group.get("eps", 1e-8))}
    decay = float(group.get("weight_decay", 0.0))
    betas = dict(zip(("beta1", "beta2"), group.get("betas", ()), strict=False))
    if kind == "AdamW" or group.get("decoupled_weight_decay"):
        return Optimizer("adamw", decay=decay, **betas, **shared)
    match kind:
        case "SGD":
            momentum = float(group["momentum"])
            return Optimizer("momentum" if momentum else "sgd", momentum=momentum, weight_decay=decay, **shared)
        case "Adam":
            return Optimizer("adam", weight_decay=decay, **betas, **shared)
        case "RMSprop" if not group["momentum"]:
            return Optimizer("rmsprop", alpha=float(group["alpha"]), weight_decay=decay, **shared)
        case "Adagrad":
            return Optimizer("adagrad", weight_decay=decay, **shared)
    raise GraphError(f"{kind} has no operator here: {EXPECTED_OPTIMIZERS}")
