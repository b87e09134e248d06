"""The element-wise functions and reducers of the language, with their NumPy meaning."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct


class Function(Struct, frozen=True):
    """An element-wise function.

    `result` is the kind of its result: "bool", "int", "float", or "same" as its arguments.
    """

    numpy: Callable[..., Any]
    result: str = "same"
    symbol: str | None = None


class Combine(Struct, frozen=True):
    """A reducer: a commutative and associative ufunc, and its identity."""

    numpy: np.ufunc
    identity: float


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def _lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):  # at its poles, and on overflow
        return math.inf


def _each(function: Callable[[float], float]) -> Callable[..., Any]:
    """Return a function of numbers as one of arrays. Importing SciPy's version takes longer than loading a plan."""
    return np.vectorize(function, otypes=[np.float64])


RANDOM_BITS = 24
"""The number of bits that `random_bits` returns: the most that a single-precision number represents exactly."""


def random_bits(*counters: Any) -> Any:
    """Return RANDOM_BITS pseudo-random bits for each combination of integers, from a counter-based generator.

    Each counter in turn is added to the state. The state then passes through the finalizer of MurmurHash3, modulo
    2**32.
    """
    state: Any = np.zeros((), dtype=np.uint64)
    word = np.uint64(0xFFFFFFFF)
    for counter in counters:
        state = (state + np.asarray(counter).astype(np.int64).astype(np.uint64) + np.uint64(0x9E3779B9)) & word
        state = ((state ^ (state >> np.uint64(16))) * np.uint64(0x85EBCA6B)) & word
        state = ((state ^ (state >> np.uint64(13))) * np.uint64(0xC2B2AE35)) & word
        state = state ^ (state >> np.uint64(16))
    return (state >> np.uint64(32 - RANDOM_BITS)).astype(np.int64)


SYMBOLS = {"add": "+", "subtract": "-", "multiply": "*", "floor_divide": "//", "remainder": "%", "negative": "-"}
COMPARISONS = {
    "equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
    "logical_and": "&", "logical_or": "|", "logical_xor": None, "logical_not": "~", "isnan": None, "isinf": None,
}  # fmt: skip

FUNCTIONS: Mapping[str, Function] = {
    **{name: Function(getattr(np, name), symbol=symbol) for name, symbol in SYMBOLS.items()},
    "divide": Function(np.true_divide, "float", "/"),
    "power": Function(np.power, "float", "**"),
    "sign": Function(lambda x: np.where(np.isnan(x), 0, np.sign(x))),
    "round": Function(np.rint),
    **{name: Function(getattr(np, name)) for name in (
        "absolute", "maximum", "minimum", "floor", "ceil", "trunc", "fmod", "where",
    )},
    **{name: Function(getattr(np, name), "float") for name in (
        "exp", "log", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "hypot", "logaddexp", "sinh",
        "cosh", "tanh", "asinh", "acosh", "atanh", "log1p", "expm1", "log2", "log10", "cbrt",
    )},
    "rsqrt": Function(lambda x: 1 / np.sqrt(x), "float"),
    "sigmoid": Function(_sigmoid, "float"),
    "erf": Function(_each(math.erf), "float"),
    "lgamma": Function(_each(_lgamma), "float"),
    **{name: Function(getattr(np, name), "bool", symbol) for name, symbol in COMPARISONS.items()},
    **{f"bitwise_{name}": Function(getattr(np, f"bitwise_{name}"), "int") for name in ("and", "or", "xor", "not")},
    "random_bits": Function(random_bits, "int"),
}  # fmt: skip

REDUCERS: Mapping[str, Combine] = {
    "Sum": Combine(np.add, 0),
    "Max": Combine(np.maximum, -math.inf),
    "Min": Combine(np.minimum, math.inf),
    "Prod": Combine(np.multiply, 1),
}
