"""Optimizers: append the nodes that update the weights; return which tensor replaces which.

An optimizer is an operator of the catalog. Its operands are a weight, its gradient, states of the weight's shape and,
named `t`, the number of steps taken. Its outputs replace the weight and its states; its attributes are constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from string import ascii_lowercase

import tdl
from planner.errors import GraphError
from planner.graph.build import ZEROS, GraphBuilder
from planner.graph.ir import Node, Tensor, Value
from tensor_partitioner.display import Shown

LEAST_NORM = 1e-6
"""Added to the norm in the divisor, as in PyTorch."""

NARROW = ("float16", "bfloat16")


def clip_by_value(builder: GraphBuilder, gradients: Mapping[str, str], most: float) -> dict[str, str]:
    """Append the nodes that clamp every element to [-most, most]; return the gradients' new names, by weight."""
    emit = partial(builder.apply, "clamp", role="gradient", min=-most, max=most)
    return {weight: emit(gradient, name=f"{weight}.grad.bounded") for weight, gradient in gradients.items()}


def clip_by_norm(builder: GraphBuilder, gradients: Mapping[str, str], most: float) -> dict[str, str]:
    """Append the nodes that scale all gradients by one factor if their norm exceeds `most`; return their new names.

    The norm is the square root of the sum of squares of all elements, as in `torch.nn.utils.clip_grad_norm_`.
    """
    if not gradients:
        return {}
    emit = partial(builder.apply, role="gradient")
    squares = [_sum_of_squares(builder, weight, gradient) for weight, gradient in gradients.items()]
    # `stack` has one operand per square; a sum of the squares would tie the layouts of all gradients.
    stacked = emit("stack", *squares, name="clip.squares", dim=0)
    norm = emit("sqrt", emit("sum", stacked, name="clip.total", dims=(0,)), name="clip.norm")
    above = emit("add_scalar", norm, name="clip.above", value=LEAST_NORM)
    ratio = emit("scale", emit("reciprocal", above, name="clip.inverse"), name="clip.ratio", factor=most)
    factor = emit("clamp", ratio, name="clip.factor", max=1.0)
    return {weight: _scaled(builder, weight, gradient, factor) for weight, gradient in gradients.items()}


def _sum_of_squares(builder: GraphBuilder, weight: str, gradient: str) -> str:
    """Return the sum of a gradient's squares, in at least single precision."""
    emit = partial(builder.apply, role="gradient")
    if builder.tensors[gradient].dtype in NARROW:
        gradient = emit("cast", gradient, name=f"{weight}.grad.wide", dtype="float32")
    letters = ascii_lowercase[: len(builder.shape(gradient))]
    return emit("einsum", gradient, gradient, name=f"{weight}.grad.squares", equation=f"{letters},{letters}->")


def _scaled(builder: GraphBuilder, weight: str, gradient: str, factor: str) -> str:
    emit = partial(builder.apply, role="gradient")
    dtype = builder.tensors[gradient].dtype
    if builder.tensors[factor].dtype != dtype:
        factor = emit("cast", factor, name=f"{weight}.grad.factor", dtype=dtype)
    return emit("mul", gradient, factor, name=f"{weight}.grad.clipped", dims=())


_OPERATORS = ("sgd", "adam", "adamw", "rmsprop", "adagrad")
OPTIMIZERS: dict[str, str | None] = {"momentum": "sgd_momentum", **{op: op for op in _OPERATORS}, "none": None}
"""Operator that updates one weight, by optimizer; `none` computes gradients and updates nothing."""

CLIPPING = ("clip_norm", "clip_value")
"""Options that clip all gradients together."""

OF_GRADIENTS = (*CLIPPING, "weight_decay")
"""Options applied to gradients before any optimizer, by separate operators."""

DECAYED = ".grad.decayed"
"""Suffix of the sum of a weight's gradient and its decay."""

STEPS = "t"
LEAST_FLOAT16 = 2.0**-24


@dataclass(frozen=True, slots=True)
class Optimizer(Shown):
    """An optimizer and its constants; each field is the operator's attribute of that name.

    Before the update, `clip_value` bounds every element of the gradients and `clip_norm` the norm of all gradients
    together, unless None. Then `weight_decay` times the weight is added to each gradient, as PyTorch's optimizers other
    than AdamW do; AdamW's `decay` shrinks weights directly. Raises GraphError for a value out of range.
    """

    name: str = "momentum"
    lr: float = 0.01
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    alpha: float = 0.99
    decay: float = 0.01
    clip_norm: float | None = None
    clip_value: float | None = None
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        """Check every number that has a range."""
        clipping = [name for name in CLIPPING if getattr(self, name) is not None]
        self._require("a finite number above 0", (*clipping, "eps"), lambda value: 0 < value < math.inf)
        self._require("at least 0 and below 1", ("beta1", "beta2", "alpha"), lambda value: 0 <= value < 1)
        self._require("a finite number of at least 0", ("weight_decay",), lambda value: 0 <= value < math.inf)

    def _require(self, expected: str, names: Iterable[str], holds: Callable[[float], bool]) -> None:
        for name in names:
            value = getattr(self, name)
            if type(value) not in (int, float) or not holds(value):
                raise GraphError(f"{name} must be {expected}, found {value!r}")


CONSTANTS = tuple(field.name for field in fields(Optimizer) if field.name not in ("name", *OF_GRADIENTS))


def operator_of(name: str) -> str | None:
    """Return the operator of an optimizer, None for "none"; raise GraphError for an unknown optimizer."""
    if name not in OPTIMIZERS:
        raise GraphError(f"unknown optimizer {name!r}, expected one of {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name]


def constants_of(name: str) -> tuple[str, ...]:
    """Return the names of an optimizer's constants; raise GraphError for an unknown optimizer."""
    op = operator_of(name)
    return () if op is None else tuple(tdl.catalog[op].attributes)


Updates = dict[str, str]
"""Maps each tensor that the iteration changes to its replacement."""


def update_weights(
    builder: GraphBuilder, gradients: Mapping[str, str], optimizer: Optimizer | Mapping[str, Optimizer]
) -> Updates:
    """Append one update per weight of `gradients` (weight -> its gradient); return the updates.

    A weight w, or its value after the forward pass, is updated to "w.next"; its states, named after the operator's
    operands ("w.velocity"; "w.m" and "w.v"), and the step count "step" likewise. Weights may have individual
    optimizers, by name, but their clipping options must be equal, because the norm is that of all gradients together.
    Raises GraphError for an unknown optimizer and for inconsistent options.
    """
    optimizers = dict.fromkeys(gradients, optimizer) if isinstance(optimizer, Optimizer) else optimizer
    operators = {weight: op for weight in gradients if (op := operator_of(optimizers[weight].name)) is not None}
    if not operators:
        return {}
    updates, step = Updates(), ""
    if any(STEPS in tdl.catalog[op].operands for op in operators.values()):
        step = builder.shared(Tensor("step", (), builder.weight_dtype, "state", ZEROS))
        updates = _update(builder, "increment", (step,), (step,), {})
    gradients = _clipped(
        builder, {weight: gradients[weight] for weight in operators}, [optimizers[weight] for weight in operators]
    )
    for weight, op in operators.items():
        settings = optimizers[weight]
        gradient = _with_decay(builder, weight, gradients[weight], settings.weight_decay)
        attrs: dict[str, Value] = {name: getattr(settings, name) for name in tdl.catalog[op].attributes}
        _check_epsilon(builder, attrs)
        updates |= _updated(builder, op, (weight, gradient, f"{step}.next"), attrs)
    return updates


def _check_epsilon(builder: GraphBuilder, attrs: Mapping[str, Value]) -> None:
    eps = attrs.get("eps")
    if builder.weight_dtype == "float16" and isinstance(eps, float) and eps < LEAST_FLOAT16:
        raise GraphError(
            f"eps must be at least {LEAST_FLOAT16:.2g} in float16, where smaller values are zero, found {eps:g};"
            " mixed-float16 keeps optimizer state in float32"
        )


def _clipped(builder: GraphBuilder, gradients: Mapping[str, str], optimizers: Sequence[Optimizer]) -> Mapping[str, str]:
    """Append the nodes that clip gradients; return the gradients' new names, by weight."""
    wanted = {tuple(getattr(optimizer, name) for name in CLIPPING) for optimizer in optimizers}
    if len(wanted) > 1:
        raise GraphError(f"all weights must have the same {' and '.join(CLIPPING)}, found {sorted(map(str, wanted))}")
    ((norm, value),) = wanted
    if value is not None:
        gradients = clip_by_value(builder, gradients, value)
    if norm is not None:
        gradients = clip_by_norm(builder, gradients, norm)
    return gradients


def _with_decay(builder: GraphBuilder, weight: str, gradient: str, factor: float) -> str:
    """Append the nodes that add a multiple of the weight to its gradient; return the sum's name."""
    if not factor:
        return gradient
    value = builder.changed.get(weight, weight)
    added = builder.apply("scale", value, name=f"{weight}.grad.decay", role="gradient", factor=factor)
    return builder.apply("add", gradient, added, name=f"{weight}{DECAYED}", role="gradient")


def _updated(builder: GraphBuilder, op: str, operands: tuple[str, str, str], attrs: Mapping[str, Value]) -> Updates:
    """Append the node that updates one weight and its states from its gradient and the number of steps."""
    weight, gradient, steps = operands
    rest = tdl.catalog[op].operands[2:]
    names = {operand: f"{weight}.{operand}" for operand in rest if operand != STEPS}
    states = {operand: builder.state(name, builder.shape(weight)) for operand, name in names.items()}
    inputs = (builder.changed.get(weight, weight), gradient, *(states.get(operand, steps) for operand in rest))
    return _update(builder, op, inputs, (weight, *states.values()), attrs)


def _update(
    builder: GraphBuilder, op: str, inputs: tuple[str, ...], changed: tuple[str, ...], attrs: Mapping[str, Value]
) -> Updates:
    outputs = tuple(f"{tensor}.next" for tensor in changed)
    roles = tuple(builder.tensors[tensor].role for tensor in changed)
    builder.emit(Node(f"{changed[0]}.update", op, inputs, outputs, attrs), roles)
    return dict(zip(changed, outputs, strict=True))
