"""Kernels that call one of PyTorch's operators or fused optimizers.

A fused optimizer reads each operand once. On a GPU it updates several weights at once. Operators that only PyTorch has
are called by name, and its autograd for their gradients.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, cast

import numpy as np
import torch

from executor.kernels import KERNELS, Array, Kernel, KernelCall, run
from executor.kernels.call import require_room
from executor.schedules import LEARNING_RATE
from executor.torch.tensors import are_computed, array_of, spread, tensor_of, tensors_of
from planner.errors import DataError, InputError
from planner.graph.ir import Value
from planner.graph.opaque_ops import CALL, GRADIENT, OWN_NAMESPACES
from planner.grouping import grouped
from planner.pytorch.nodes import advice

Compute = Callable[..., object]


def _spread_operands(call: KernelCall) -> list[torch.Tensor]:
    """Return the operands, with the last two broadcast against the result."""
    operands, (out,) = tensors_of(call)
    for place, key in ((-2, "a_dims"), (-1, "dims")):
        if call.attributes.get(key) is not None:
            operands = [*operands]
            operands[place] = spread(operands[place], call.integers(key), out.ndim)
    return operands


def _kernel(op: str, compute: Compute, *names: str) -> Kernel:
    """Return the kernel of a function of the operands and these attributes that writes to `out`.

    Integers use the kernel on arrays, which detects overflow.
    """

    def kernel(call: KernelCall) -> None:
        operands, (out,) = call.once(_spread_operands), tensors_of(call)[1]
        if all(tensor.is_floating_point() for tensor in (*operands, out)):
            compute(*operands, *(call.number(name) for name in names), out=out)
        else:
            KERNELS[op](call)

    return kernel


def add_n(call: KernelCall) -> None:
    """Sum all operands from first to last. 16-bit sums are rounded at the end."""
    (first, *others), (out,) = tensors_of(call)
    if not others:
        out.copy_(first)
        return
    *middle, last = others
    if middle and first.dtype in (torch.float16, torch.bfloat16):
        first = first.float()
    for operand in middle:
        first = first + operand
    torch.add(first, last, out=out)


def convert(call: KernelCall) -> None:
    """Convert to the dtype of the output."""
    (x,), (out,) = tensors_of(call)
    if out.is_floating_point() or out.dtype == torch.bool:
        out.copy_(x)
    else:
        KERNELS["cast"](call)


PLAIN = ("add", "sub", "mul", "div", "neg", "abs", "exp", "log", "sqrt", "rsqrt", "square", "reciprocal", "sin", "cos")
"""Operators without attributes that are called like PyTorch's functions."""

OF_NUMBERS: dict[str, tuple[Compute, str]] = {
    "scale": (torch.mul, "factor"),
    "add_scalar": (torch.add, "value"),
    "pow_scalar": (torch.pow, "value"),
}
"""Functions of an operand and an attribute."""

ELEMENTWISE: dict[str, Kernel] = {
    **{op: _kernel(op, getattr(torch, op)) for op in PLAIN},
    **{op: _kernel(op, function, name) for op, (function, name) in OF_NUMBERS.items()},
    "add_n": add_n,
    "cast": convert,
}
"""Kernels by operator."""


LEAST = 1 << 14
"""Elements of a weight from which PyTorch's kernel is faster than NumPy's. Its call takes longer."""

Tensors = list[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Update:
    """One step of an optimizer. Outputs may share memory with any input.

    `updated` are the operands that become the outputs, in order: the weight and its states. Operand 1 is the gradient.
    On a GPU PyTorch's kernels need the same dtype for all. `step` writes them in place, given the call, gradients, and
    a list for each of them.
    """

    op: str
    updated: tuple[int, ...]
    step: Callable[[KernelCall, Tensors, list[Tensors]], None]

    def __call__(self, call: KernelCall) -> None:
        """Update one weight."""
        is_small = call.xp is np and call.inputs[0].size < LEAST
        if is_small or not self._is_fused(call):
            run(KERNELS[self.op], call)
            return
        operands, outs = tensors_of(call)
        pairs = [(operands[place], out) for place, out in zip(self.updated, outs, strict=True)]
        updated = [x if x.data_ptr() == out.data_ptr() else x.clone() for x, out in pairs]
        self.step(call, [operands[1]], [[tensor] for tensor in updated])
        for (_, out), tensor in zip(pairs, updated, strict=True):
            if out.data_ptr() != tensor.data_ptr():
                out.copy_(tensor)

    def several(self, calls: Sequence[KernelCall]) -> Callable[[], None] | None:
        """Return one action for several updates; None if one is not in place."""
        if not all(self._is_fused(call) and self._is_in_place(call) for call in calls):
            return None

        def action() -> None:  # settings may differ and change
            for group in grouped((_settings(call), call) for call in calls).values():
                operands = [tensors_of(call)[0] for call in group]
                self.step(group[0], [x[1] for x in operands], [[x[place] for x in operands] for place in self.updated])

        return action

    def _is_fused(self, call: KernelCall) -> bool:
        operands, outs = tensors_of(call)
        weight, *others = (operands[place] for place in (*self.updated, 1))
        are_alike = all((x.dtype, x.stride()) == (weight.dtype, weight.stride()) for x in others)
        is_dense = are_computed(call, operands) and all(tensor.is_contiguous() for tensor in (*operands, *outs))
        return is_dense and (call.xp is np or (are_alike and call.attributes.get("momentum") != 0))

    def _is_in_place(self, call: KernelCall) -> bool:
        operands, outs = tensors_of(call)
        return all(operands[place].data_ptr() == out.data_ptr() for place, out in zip(self.updated, outs, strict=True))


def _settings(call: KernelCall) -> tuple[Value, ...]:
    """Return what must be equal for updates to run together: attributes and dtype."""
    settings = (value for name, value in call.attributes.items() if name != "extents")
    return call.inputs[0].dtype.name, *(value if isinstance(value, Hashable) else id(value) for value in settings)


def _rate(call: KernelCall) -> Any:
    """Return the learning rate: a number, or the tensor that a captured step reads."""
    rate: Any = call.attributes[LEARNING_RATE]
    return rate if isinstance(rate, int | float) else tensor_of(rate)


def _sgd(call: KernelCall, gradients: Tensors, updated: list[Tensors]) -> None:
    weights, *velocities = updated
    torch._fused_sgd_(
        weights, gradients, *(velocities or [[]]), lr=_rate(call), momentum=call.number("momentum", 0.0),
        weight_decay=0.0, dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
    )  # fmt: skip


def _adam(function: Callable[..., object]) -> Callable[[KernelCall, Tensors, list[Tensors]], None]:
    def step(call: KernelCall, gradients: Tensors, updated: list[Tensors]) -> None:
        weights, *means = updated
        count = tensors_of(call)[0][4].to(torch.float32)
        function(
            weights, gradients, *means, [], [count] * len(weights),
            lr=_rate(call), beta1=call.number("beta1"), beta2=call.number("beta2"), eps=call.number("eps"),
            weight_decay=call.number("decay", 0.0), amsgrad=False, maximize=False,
        )  # fmt: skip

    return step


UPDATES: dict[str, Update] = {
    update.op: update
    for update in (
        Update("sgd", (0,), _sgd),
        Update("sgd_momentum", (0, 2), _sgd),
        Update("adam", (0, 2, 3), _adam(torch._fused_adam_)),
        Update("adamw", (0, 2, 3), _adam(torch._fused_adamw_)),
    )
}
"""Kernels by operator."""


_VALUE = "Tensor|int|float|bool|number|Device|Generator"
VALUES = re.compile(rf"(Optional\[)?(List\[)?(Optional\[)?({_VALUE})\]*")
"""Types of arguments that name neither files nor handles. A plan only names its own devices and generators."""

TEXT = re.compile(r"(Optional\[)?str\]?")
CHOICES = re.compile(
    "UPLO|activation|algorithm|approximate|driver|equation|indexing|interpolation|mode|norm|ord|p|pad_mode|padding|"
    "padding_side|reduce|rounding_mode|side"
)
"""String arguments that select a method of computation."""


def call_operator(call: KernelCall) -> None:
    """Write the results of the operator."""
    with torch.no_grad():
        results = _results(call, _operands(call))
    for out, result in zip(call.outputs, results, strict=True):
        if result.shape != out.shape:
            raise DataError(
                f"{call.attributes['target']} returns shape {tuple(result.shape)} in this batch, {out.shape} in the "
                f"example that was planned: select the same number in every batch, or use torch.where{advice()}"
            )
        if result.dtype == torch.int64:
            require_room(call, array_of(call.xp, result != result.int()))
        tensor_of(out).copy_(result)


def call_gradient(call: KernelCall) -> None:
    """Write the gradients of the operands in `differentiable`, given those of the results in `arriving`."""
    operands = _operands(call)
    count = len(operands)
    differentiable = [operands[number].requires_grad_() for number in call.integers("differentiable")]
    with torch.enable_grad():
        results = _results(call, operands)
    arriving = zip(call.integers("arriving"), call.inputs[count:], strict=True)
    pairs = [(results[number], _copied(call, array)) for number, array in arriving if results[number].requires_grad]
    gradients: Sequence[torch.Tensor | None] = [None] * len(differentiable)
    if pairs:
        ends, of_ends = zip(*pairs, strict=True)
        gradients = torch.autograd.grad(ends, differentiable, of_ends, allow_unused=True)
    for out, gradient in zip(call.outputs, gradients, strict=True):
        tensor_of(out).copy_(torch.zeros(()) if gradient is None else gradient)


def _operands(call: KernelCall) -> list[torch.Tensor]:
    """Return copies of the operands, because an operator may change them, in the dtypes that it expects."""
    dtypes = cast("tuple[str, ...]", call.attributes["given"])
    arrays = call.inputs[: len(dtypes)]
    return [_copied(call, array).to(getattr(torch, dtype)) for array, dtype in zip(arrays, dtypes, strict=True)]


def _copied(call: KernelCall, array: Array) -> torch.Tensor:
    return tensor_of(call.xp.array(array, copy=True, order="C"))


def _results(call: KernelCall, operands: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run the operator. Raises as `_operator`."""
    function = _operator(str(call.attributes["target"]))
    attributes = cast("Mapping[str, Any]", call.attributes["arguments"])
    named = {name: _decoded(value, operands) for name, value in attributes.items()}
    in_order = [named.pop(argument.name) for argument in function._schema.arguments if not argument.kwarg_only]
    results = function(*in_order, **named)
    return list(results) if isinstance(results, list | tuple) else [results]


@lru_cache(1 << 10)
def _operator(target: str) -> Any:
    """Return an operator by name.

    Raises InputError if it is one of PyTorch's that does more than compute tensors, or does not exist in this process.
    """
    namespace, *path = target.split(".")
    try:
        function: Any = reduce(getattr, path, getattr(torch.ops, namespace))
        schema = function._schema
    except AttributeError as error:
        raise InputError(
            f"PyTorch has no operator {target} here: name the file that defines it, as in --operators FILE.py"
        ) from error
    if namespace in OWN_NAMESPACES and not is_pure(schema):
        raise InputError(f"{target}: expected an operator that computes tensors from tensors and numbers")
    return function


def is_pure(schema: Any) -> bool:
    """Return whether an operator computes tensors from tensors and numbers, and changes nothing else, by its schema."""
    arguments = all(
        VALUES.fullmatch(str(argument.type))
        or (TEXT.fullmatch(str(argument.type)) and CHOICES.fullmatch(argument.name))
        for argument in schema.arguments
    )
    results = all(str(result.type) in ("Tensor", "List[Tensor]") for result in schema.returns)
    return bool(arguments and schema.returns and results and not schema.is_mutable)


def _decoded(value: Any, operands: list[torch.Tensor]) -> Any:
    """Return an argument as it was given. Tensors are this worker's, on its device."""
    if isinstance(value, tuple):
        return [_decoded(entry, operands) for entry in value]
    if not isinstance(value, Mapping):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "tensor":
            return operands[content]
        case "device":
            return operands[0].device if operands else torch.device("cpu")
    constant = getattr(torch, content, None)
    if not isinstance(constant, torch.dtype | torch.layout | torch.memory_format):
        raise InputError(f"expected a dtype, layout or memory format of PyTorch, found {content!r}")
    return constant


def _refusing(kernel: Kernel) -> Kernel:
    """Return the kernel so that what PyTorch raises for its operands or arguments is a DataError with its name."""

    def run_kernel(call: KernelCall) -> None:
        try:
            kernel(call)
        except (InputError, torch.OutOfMemoryError):
            raise
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise DataError(f"{call.attributes['target']}: {reason}") from error

    return run_kernel


OPAQUE_KERNELS: dict[str, Kernel] = {CALL: _refusing(call_operator), GRADIENT: _refusing(call_gradient)}
