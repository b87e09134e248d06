"""Reverse-mode derivatives of expressions, with one rule per function.

If a condition selects a value, it also selects the gradient. The gradient is not multiplied by zero, because that would
turn infinity into NaN. At ties and bounds the gradients are those of PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tdl.expr import Call, Constant, Expr, lift
from tdl.index import TDLError
from tdl.language import cos, cosh, exp, hypot, log, power, sigmoid, sign, sin, sinh, sqrt, trunc, where

Gradients = dict[int, Expr]
"""The gradient of each leaf that a value depends on, by the leaf's number."""


def gradients(value: Expr, arriving: Expr, leaves: Sequence[Expr]) -> tuple[Expr, ...]:
    """Return the gradient of each leaf, given the gradient that arrives at the value.

    Leaves are expressions in `value`, compared by identity. Raises TDLError if a function has no derivative.
    """
    numbers = {id(leaf): number for number, leaf in enumerate(leaves)}
    passed = _passed(value, arriving, numbers)
    return tuple(passed.get(number, Constant(0.0)) for number in range(len(leaves)))


def _passed(value: Expr, arriving: Expr, numbers: Mapping[int, int]) -> Gradients:
    if id(value) in numbers:
        return {numbers[id(value)]: arriving}
    if not isinstance(value, Call) or not _reads(value, numbers):
        return {}
    if value.function == "where":
        return _chosen(value.arguments[0], *(_passed(part, arriving, numbers) for part in value.arguments[1:]))
    if value.function == "multiply" and value.arguments[0] is not value.arguments[1]:
        return _of_product(value.arguments, arriving, numbers)
    total: Gradients = {}
    if value.function not in RULES:
        raise TDLError(f"{value.function} has no derivative")
    shares = RULES[value.function](arriving, value, *value.arguments)
    for argument, share in zip(value.arguments, shares, strict=True):
        if _reads(argument, numbers) and not isinstance(share, Constant):
            for number, gradient in _passed(argument, share, numbers).items():
                total[number] = total[number] + gradient if number in total else gradient
    return total


def _of_product(factors: Sequence[Expr], arriving: Expr, numbers: Mapping[int, int]) -> Gradients:
    """Return the gradients of a product.

    The other factor is applied last, because a large factor often meets a small one.
    """
    a, b = factors
    total = {number: _times(gradient, b) for number, gradient in _passed(a, arriving, numbers).items()}
    for number, gradient in _passed(b, arriving, numbers).items():
        share = _times(gradient, a)
        total[number] = total[number] + share if number in total else share
    return total


def _reads(value: Expr, numbers: Mapping[int, int]) -> bool:
    return id(value) in numbers or any(_reads(child, numbers) for child in value.children)


def _chosen(condition: Expr, first: Gradients, second: Gradients) -> Gradients:
    zero = Constant(0)
    numbers = sorted({*first, *second})
    return {number: where(condition, first.get(number, zero), second.get(number, zero)) for number in numbers}


def _times(gradient: Expr, *factors: Expr | float) -> Expr:
    """Return a product with all constants merged into one, which comes last."""
    for factor in map(lift, factors):
        inner, constant = _parted(gradient)
        if isinstance(factor, Constant):
            scale = constant * float(factor.value)
            gradient = inner if scale == 1 else inner * scale
        else:
            gradient = inner * factor if constant == 1 else inner * factor * constant
    return gradient


def _over(gradient: Expr, divisor: Expr) -> Expr:
    """Return a quotient with constants moved to the end."""
    if isinstance(divisor, Constant):
        return _times(gradient, 1 / float(divisor.value))
    inner, constant = _parted(gradient)
    return _times(inner / divisor, constant)


def _parted(gradient: Expr) -> tuple[Expr, float]:
    """Split an expression into a factor without a constant, and the constant."""
    match gradient:
        case Call("multiply", (inner, Constant(value))):
            return inner, float(value)
    return gradient, 1.0


def _difference(a: Expr, b: Expr) -> Expr:
    return a if isinstance(b, Constant) and b.value == 0 else a - b


def _quotient(g: Expr, result: Expr, a: Expr, b: Expr) -> tuple[Expr, ...]:
    share = _over(g, b)
    if isinstance(a, Constant):
        return share, _times(_over(g, b * b), -float(a.value))
    return share, _times(share, result, -1.0)


def _of_greater(g: Expr, a: Expr, b: Expr) -> Expr:
    """Return the share of a gradient that goes to a: all if a is greater, half if they are equal, otherwise none."""
    return where(a < b, 0, where(a == b, 0.5 * g, g))


def _power(g: Expr, result: Expr, a: Expr, b: Expr) -> tuple[Expr, ...]:
    """Return the gradients of base and exponent. The exponent's is zero for base 0 and a non-negative power."""
    base = where(b == 0, 0, _times(g, power(a, b - 1), b))
    if isinstance(b, Constant):
        root = a if b.value == 2 else power(a, b.value - 1)
        base = _times(g, root, b) if b.value else where(a == g, 0.0, 0.0)  # zeros with the index variables of both
    exponent = _times(g, result, log_of(float(a.value)) if isinstance(a, Constant) else log(a))
    if isinstance(a, Constant):
        return base, exponent if a.value else where(b >= 0, 0, exponent)
    return base, where((a == 0) & (b >= 0), 0, exponent)


def log_of(value: float) -> float:
    """Return the logarithm of any number, as NumPy would: -inf for 0 and nan for negative numbers."""
    return math.log(value) if value > 0 else math.nan if value < 0 else -math.inf


def _angle(g: Expr, _: Expr, a: Expr, b: Expr) -> tuple[Expr, ...]:
    """Return the gradients of an angle. They are zero if both coordinates are zero."""
    squares = a * a + b * b
    share = where(squares == 0, 0, g / squares)
    return share * b, -share * a


RULES: Mapping[str, Callable[..., tuple[Expr, ...]]] = {
    "add": lambda g, r, a, b: (g, g),
    "subtract": lambda g, r, a, b: (g, _times(g, -1.0)),
    "multiply": lambda g, r, x, _: (_times(g, x, 2.0), Constant(0)),
    "divide": _quotient,
    "negative": lambda g, r, x: (_times(g, -1.0),),
    "absolute": lambda g, r, x: (_times(g, sign(x)),),
    "maximum": lambda g, r, a, b: (_of_greater(g, a, b), _of_greater(g, b, a)),
    "minimum": lambda g, r, a, b: (_of_greater(g, b, a), _of_greater(g, a, b)),
    "power": _power,
    "remainder": lambda g, r, a, b: (g, _times(g, a // b, -1.0)),
    "fmod": lambda g, r, a, b: (g, _times(g, trunc(a / b), -1.0)),
    "atan2": _angle,
    "hypot": lambda g, r, a, b: (_times(g, a / r), _times(g, b / r)),
    "logaddexp": lambda g, r, a, b: (_times(g, sigmoid(_difference(a, b))), _times(g, sigmoid(_difference(b, a)))),
    "exp": lambda g, r, x: (_times(g, r),),
    "expm1": lambda g, r, x: (_times(g, exp(x)),),
    "log": lambda g, r, x: (_over(g, x),),
    "log1p": lambda g, r, x: (_over(g, x + 1),),
    "log2": lambda g, r, x: (_times(_over(g, x), 1 / math.log(2)),),
    "log10": lambda g, r, x: (_times(_over(g, x), 1 / math.log(10)),),
    "sqrt": lambda g, r, x: (_times(_over(g, r), 0.5),),
    "rsqrt": lambda g, r, x: (_times(g, r, r, r, -0.5),),
    "cbrt": lambda g, r, x: (_times(_over(g, r * r), 1 / 3),),
    "sin": lambda g, r, x: (_times(g, cos(x)),),
    "cos": lambda g, r, x: (_times(g, sin(x), -1.0),),
    "tan": lambda g, r, x: (_times(g, 1 + r * r),),
    "asin": lambda g, r, x: (_over(g, sqrt((1 - x) * (1 + x))),),
    "acos": lambda g, r, x: (_times(_over(g, sqrt((1 - x) * (1 + x))), -1.0),),
    "atan": lambda g, r, x: (_over(g, 1 + x * x),),
    "sinh": lambda g, r, x: (_times(g, cosh(x)),),
    "cosh": lambda g, r, x: (_times(g, sinh(x)),),
    "tanh": lambda g, r, x: (_times(g, 1 - r * r),),
    "asinh": lambda g, r, x: (_over(g, hypot(x, 1)),),
    "acosh": lambda g, r, x: (_over(g, sqrt((x - 1) * (x + 1))),),
    "atanh": lambda g, r, x: (_over(g, (1 - x) * (1 + x)),),
    "sigmoid": lambda g, r, x: (_times(g, r, 1 - r),),
    "erf": lambda g, r, x: (_times(g, exp(-(x * x)), 2 / math.sqrt(math.pi)),),
}
"""By function, the gradients of its arguments, from the arriving gradient, the result and the arguments."""
