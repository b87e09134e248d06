"""The result of a user's function: a module, example inputs and, optionally, loss, targets and optimizer."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from math import prod
from types import FrameType, ModuleType, NoneType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from planner.errors import GraphError
from planner.graph.build import MIXED
from planner.graph.ir import Graph
from planner.graph.optimizers import CLIPPING, Optimizer
from planner.pytorch.arguments import Arguments, Inputs
from planner.pytorch.capture.export_errors import OF_MODULES
from planner.pytorch.importing import from_torch
from planner.pytorch.nodes import leaves
from planner.pytorch.private import (
    HOOKS_OF_STEPS,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    TorchDispatchMode,
    forget_conversions,
    schema_of,
)
from planner.pytorch.state.contents import is_known
from tensor_partitioner.display import progress

_CLASSES = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad)
OPTIMIZERS = {kind: kind.__name__.lower() for kind in _CLASSES}
"""Names of PyTorch's optimizers in this package."""

REFUSED = ("nesterov", "amsgrad", "maximize", "centered", "dampening", "lr_decay", "initial_accumulator_value")
"""Settings of PyTorch's optimizers that are refused unless zero or false."""

EXPECTED_OPTIMIZERS = "expected PyTorch's SGD, Adam, AdamW, RMSprop without momentum or Adagrad"
EXPECTED = "(module, inputs) or (module, inputs, loss, targets), each also with an optimizer at the end"


GIVEN = (torch.Tensor, int, float, str, NoneType)
"""Types of a module's arguments; all but tensors are the same in every call."""


class UserModel(NamedTuple):
    """A module, its inputs, and how it is trained."""

    module: nn.Module
    inputs: Inputs
    loss: Callable[..., torch.Tensor] | None
    targets: Sequence[torch.Tensor]
    optimizer: Any


def graph_of(make: Callable[[], object], **options: Any) -> object:
    """Return the graph of the module that a function returns; if it returns no module, return its result."""
    result = module_of(make)
    return graph_of_model(result, **options) if isinstance(result, UserModel) else result


def module_of(make: Callable[[], object]) -> object:
    """Return the module that a function returns as a UserModel; if it returns no module, return its result.

    Parameters get no memory, so modules of any size can be imported. The function runs once more, with memory, if it
    needs parameter values, for which PyTorch raises a RuntimeError, if its buffers are random numbers drawn after those
    of parameters, or if its module keeps the original parameters in lists or closures. Other errors are not retried.
    """
    fakes = Fakes()
    try:
        with _without_memory(fakes), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # when layers are copied
            result = make()
        is_other = fakes.are_read or any(tensor in fakes.draws or tensor in fakes.of for tensor in _contents(result))
        is_other = is_other or len(fakes.of) > len(_optimized(result, fakes))
    except RuntimeError:
        if not fakes.nbytes:
            raise
        is_other = True
    if is_other:
        with progress(f"creating the module again with memory for its parameters, {fakes.nbytes / 1e9:.3g} GB", 1):
            fakes, result = Fakes(), make()
    if isinstance(result, Graph) or not _is_module(result):
        return result
    model = user_model(result)
    if isinstance(model.optimizer, torch.optim.Optimizer):  # created before its parameters were replaced
        for group in model.optimizer.param_groups:
            group["params"] = [fakes.of.get(p, p) for p in group["params"]]  # type: ignore[no-untyped-call]
    return model


def graph_of_model(
    model: UserModel,
    *,
    opaque_unknown: bool = False,
    precision: str | None = None,
    optimizer: Optimizer | None = None,
    **recipe: Any,
) -> Graph:
    """Return the training graph of a user's model.

    A module runs within `torch.autocast` for a mixed `precision`; for "float32" its parameters must have that dtype.
    `optimizer` is for a model without one. `recipe` holds `micro_batches`, each with its part of the samples, and
    `recompute`.
    """
    if optimizer is not None:
        if model.optimizer is not None:
            raise GraphError("the model has its own optimizer, so optimizer options do not apply")
        model = model._replace(optimizer=optimizer)
    if precision == "float32" and not is_single(model):
        others = {p.dtype for p in model.module.parameters()} - {torch.float32}
        raise GraphError(f"precision float32 needs float32 parameters, found {', '.join(sorted(map(str, others)))}")
    autocast = getattr(torch, MIXED[precision]) if precision in MIXED else None
    if (count := recipe.get("micro_batches", 1)) > 1:
        model, *_ = in_parts(model, count)
    return imported(model, opaque_unknown=opaque_unknown, autocast=autocast, **recipe)


def is_single(model: UserModel) -> bool:
    """Return True if all parameters are in single precision."""
    return all(parameter.dtype is torch.float32 for parameter in model.module.parameters())


def in_parts(model: UserModel, count: int) -> list[UserModel]:
    """Return models whose examples are equal parts of a model's samples.

    Samples are along the first dimension of the first input, and of all other inputs that have one. Targets, such as
    the labels of all tokens, may have a multiple of the samples there. Raises GraphError if they do not, or if `count`
    does not divide the samples.
    """
    arguments = Arguments(model.inputs, model.targets)
    tensors = [value for value in arguments.values if isinstance(value, torch.Tensor)]
    samples = next((len(tensor) for tensor in tensors if tensor.dim()), 0)
    if not samples or samples % count:
        raise GraphError(f"the number of samples must be divisible by {count} micro-batches, found {samples}")

    def parts(name: str, tensor: Any, *, is_target: bool) -> Sequence[Any]:
        if not isinstance(tensor, torch.Tensor) or not tensor.dim():
            return [tensor] * count
        rows = len(tensor)
        if rows != samples and not (is_target and rows and rows % samples == 0):
            raise GraphError(
                f"{name}: expected {samples} samples in the first dimension, found shape {list(tensor.shape)}"
            )
        return tensor.split(rows // count)  # type: ignore[no-untyped-call,no-any-return]

    named = enumerate(zip(arguments.names(model.module), arguments.values, strict=True))
    split = (parts(*pair, is_target=place >= arguments.of_inputs) for place, pair in named)
    of_parts = (arguments.of(values) for values in zip(*split, strict=True))
    return [model._replace(inputs=part.inputs, targets=part.targets) for part in of_parts]


def imported(
    model: UserModel, *, opaque_unknown: bool = False, autocast: torch.dtype | None = None, **recipe: Any
) -> Graph:
    """Return the training graph of a user's model; `recipe` is as for `from_torch`."""
    module, inputs, loss, targets, _ = model
    return from_torch(
        module,
        inputs,
        loss=loss,
        targets=targets,
        optimizer=optimizer_of(model),
        opaque_unknown=opaque_unknown,
        autocast=autocast,
        **recipe,
    )


def _contents(result: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors, including those in containers, of the module in a function's result."""
    module = result[0] if isinstance(result, tuple) and result else result
    for part in module.modules() if isinstance(module, nn.Module) else ():
        others = (vars(part)[name] for name in vars(part).keys() - OF_MODULES)
        held = [*part.buffers(recurse=False), *others]
        yield from (value for value in tree_leaves(held) if isinstance(value, torch.Tensor))


def _optimized(result: Any, fakes: Fakes) -> set[nn.Parameter]:
    """Return the original parameters that the optimizer in a function's result holds."""
    optimizer = result[-1] if isinstance(result, tuple) and result else None
    groups = optimizer.param_groups if isinstance(optimizer, torch.optim.Optimizer) else ()
    return {parameter for group in groups for parameter in group["params"] if parameter in fakes.of}


class _LargeAreFake(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within this mode, large new tensors get no memory."""

    def __init__(self, mode: FakeTensorMode, fakes: Fakes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mode, self.fakes = mode, fakes

    def __torch_dispatch__(self, function: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator; large tensors get no memory, and tensors for the device meta are created on the CPU."""
        if function is READ and isinstance(args[0], FakeTensor) and _is_within(nn.init):
            return 0  # no element needs to be redrawn
        schema, named = schema_of(function), dict(kwargs or {})
        if str(named.get("device")) == "meta":
            named["device"] = torch.device("cpu")
        is_told = schema and function.namespace == "aten" and schema.arguments and schema.arguments[0].name == "size"
        is_large = is_told and args and prod(args[0]) > LARGE
        with self.mode if is_large else nullcontext():
            result = function(*args, **named)
        forget_conversions(self.mode)
        self.fakes.follow(function, [*args, *named.values()], result)
        return result


READ = torch.ops.aten._local_scalar_dense.default
"""The operator that reads an element."""


def _is_within(module: ModuleType) -> bool:
    """Return True if a function of a module is running."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename != module.__file__:
        frame = frame.f_back
    return frame is not None


LARGE = 1 << 28
"""Number of elements from which on a tensor gets no memory."""


class Fakes:
    """Parameters without memory, by the parameter that each stands for, and the bytes that they would take.

    They draw no random numbers, so `draws`, which depend on random numbers drawn afterwards, differ from those with
    memory. `are_read` is True if the function read one of them.
    """

    def __init__(self) -> None:
        self.of, self.draws = WeakTensorKeyDictionary(), WeakTensorKeyDictionary()
        self.nbytes = 0
        self.draw_nothing = self.are_read = False

    def follow(self, function: OpOverload, arguments: list[object], result: object) -> None:
        """Record results of an operator that depend on random numbers."""
        is_random = torch.Tag.nondeterministic_seeded in function.tags
        tensors = [value for argument in arguments for value in leaves(argument) if isinstance(value, torch.Tensor)]
        self.draw_nothing |= is_random and any(isinstance(tensor, FakeTensor) for tensor in (*tensors, result))
        if (is_random and self.draw_nothing) or any(tensor in self.draws for tensor in tensors):
            self.are_read |= not isinstance(result, torch.Tensor | list | tuple)
            self.draws.update({value: True for value in leaves(result) if is_known(value)})


@contextmanager
def _without_memory(fakes: Fakes) -> Iterator[None]:
    """Within this context, module parameters become fake when they are registered; buffers keep their content."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def registered(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None:
            return None
        fakes.nbytes += parameter.nbytes * (parameter not in fakes.of)
        if isinstance(parameter, FakeTensor):
            return parameter
        if parameter not in fakes.of:
            fakes.of[parameter] = nn.Parameter(mode.from_tensor(parameter.detach()), parameter.requires_grad)
        fake: nn.Parameter = fakes.of[parameter]
        return fake

    handle = register_module_parameter_registration_hook(registered)  # type: ignore[arg-type]
    try:
        with _LargeAreFake(mode, fakes):
            yield
    finally:
        handle.remove()


def _is_module(result: object) -> bool:
    first = result[0] if isinstance(result, tuple) and result else result
    return isinstance(first, nn.Module)


def user_model(result: object) -> UserModel:
    """Return a function's result as a UserModel; raise GraphError if it is malformed."""
    if not isinstance(result, tuple) or not _is_module(result):
        kind = "a module alone" if isinstance(result, nn.Module) else type(result).__name__
        raise GraphError(f"expected {EXPECTED}, found {kind}")
    if len(result) == 3 and isinstance(result[2], torch.optim.Optimizer | Optimizer):
        result = (*result[:2], None, (), result[2])
    if len(result) not in (2, 4, 5):
        missing = ", no targets" if len(result) == 3 else ""
        kinds = (getattr(entry, "__name__", type(entry).__name__) for entry in result)
        raise GraphError(f"expected {EXPECTED}, found {len(result)}{missing}: ({', '.join(kinds)})")
    rest: tuple[Any, ...] = (None, (), None)[len(result) - 2 :]
    module, inputs, loss, targets, optimizer = result + rest
    return UserModel(module, _tensors("inputs", inputs), loss, _tensors("targets", targets), optimizer)


def _tensors(name: str, values: Any) -> Any:
    """Return a tensor, or several in order or by name, as a collection; raise GraphError for anything else."""
    several = (values,) if isinstance(values, torch.Tensor) else values
    held = tree_leaves(dict(several) if isinstance(several, Mapping) else several)
    if not isinstance(several, tuple | list | Mapping) or not all(isinstance(x, GIVEN) for x in held):
        strange = next((x for x in held if not isinstance(x, GIVEN)), values)
        raise GraphError(f"expected {EXPECTED}, with tensors as {name}, found {type(strange).__name__}")
    return (several,) if name == "targets" and isinstance(several, Mapping) else several


def optimizer_of(model: UserModel) -> Optimizer | dict[nn.Parameter, Optimizer] | None:
    """Return the optimizer of every parameter, equivalent to PyTorch's; raise GraphError if there is no equivalent."""
    optimizer = model.optimizer
    if optimizer is None or isinstance(optimizer, Optimizer):
        return optimizer
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise GraphError(f"expected an optimizer of PyTorch or planner.Optimizer, found {optimizer!r}")
    kind = type(optimizer).__name__
    if any(map(_has_stepped, optimizer.state.values())):
        raise GraphError(f"{kind} has already taken steps: plan with a new one; distribute() takes over its state")
    if any(getattr(optimizer, hooks) for hooks in HOOKS_OF_STEPS):
        raise GraphError(
            f"{kind} has step hooks, which would not run: remove them; use a group's clip_norm or clip_value to clip"
        )
    settings = {p: settings_of(type(optimizer), group) for group in optimizer.param_groups for p in group["params"]}
    of_loss = model.loss.parameters() if isinstance(model.loss, nn.Module) else ()  # refused separately
    known = {*model.module.parameters(), *of_loss}
    if strange := [parameter for parameter in settings if parameter not in known]:
        raise GraphError(
            f"{kind}: {len(strange)} of its {len(settings)} parameters do not belong to the module, "
            f"the first of shape {list(strange[0].shape)}: pass parameters of the module that is returned"
        )
    return settings


def _has_stepped(state: Mapping[str, Any]) -> bool:
    """Return True if an optimizer's state of a parameter is from after its first step."""
    steps = state.get("step")
    return bool(state) and not (isinstance(steps, torch.Tensor) and is_known(steps) and steps == 0)


def settings_of(kind: type[torch.optim.Optimizer], group: Mapping[str, Any]) -> Optimizer:
    """Return the optimizer equivalent to PyTorch's for a group of parameters, with its clipping options."""
    if kind not in OPTIMIZERS:
        raise GraphError(f"{kind.__name__} is not supported: {EXPECTED_OPTIMIZERS}")
    if used := [name for name in REFUSED if group.get(name)]:
        raise GraphError(f"{kind.__name__}: {', '.join(used)} is not supported")
    name, decay = OPTIMIZERS[kind], float(group.get("weight_decay", 0.0))
    settings = {key: float(group[key]) for key in ("lr", "eps", "alpha") if key in group}
    settings |= {key: group[key] for key in CLIPPING if key in group}
    settings |= dict(zip(("beta1", "beta2"), group.get("betas", ()), strict=False))
    if name == "adamw" or group.get("decoupled_weight_decay"):
        return Optimizer("adamw", decay=decay, **settings)
    if momentum := group.get("momentum"):
        if name != "sgd":
            raise GraphError(f"{kind.__name__} is not supported: {EXPECTED_OPTIMIZERS}")
        return Optimizer("momentum", momentum=float(momentum), weight_decay=decay, **settings)
    return Optimizer(name, weight_decay=decay, **settings)
