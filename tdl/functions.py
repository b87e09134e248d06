"""The elementwise functions and reducers of the language, with their NumPy meaning."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct


class Function(Struct, frozen=True):
    """An elementwise function; `result` is "bool", "int", "float", or "same" where it is that of the arguments."""

    numpy: Callable[..., Any]
    result: str = "same"
    symbol: str | None = None


class Combine(Struct, frozen=True):
    """A reducer: a commutative, associative ufunc and its identity."""

    numpy: np.ufunc
    identity: float


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def _lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):  # at its poles, and where it is more than a number holds
        return math.inf


def _each(function: Callable[[float], float]) -> Callable[..., Any]:
    """Return a function of numbers as one of arrays; importing SciPy's takes longer than loading a plan."""
    return np.vectorize(function, otypes=[np.float64])


RANDOM_BITS = 24
"""How many random bits `random_bits` gives: as many as a single-precision number holds exactly."""


def random_bits(*counters: Any) -> Any:
    """Return RANDOM_BITS pseudo-random bits for each combination of integers: a counter-based generator.

    Each counter in turn is added to the state, which then passes the finalizer of MurmurHash3, modulo 2**32.
    """
    state: Any = np.zeros((), dtype=np.uint64)
    word = np.uint64(0xFFFFFFFF)
    for counter in counters:
        state = (state + np.asarray(counter).astype(np.int64).astype(np.uint64) + np.uint64(0x9E3779B9)) & word
        state = ((state ^ (state >> np.uint64(16))) * np.uint64(0x85EBCA6B)) & word
        state = ((state ^ (state >> np.uint64(13))) * np.uint64(0xC2B2AE35)) & word
        state = state ^ (state >> np.uint64(16))
    return (state >> np.uint64(32 - RANDOM_BITS)).astype(np.int64)


FUNCTIONS: Mapping[str, Function] = {
    "add": Function(np.add, symbol="+"),
    "subtract": Function(np.subtract, symbol="-"),
    "multiply": Function(np.multiply, symbol="*"),
    "divide": Function(np.true_divide, "float", "/"),
    "floor_divide": Function(np.floor_divide, symbol="//"),
    "remainder": Function(np.remainder, symbol="%"),
    "power": Function(np.power, "float", "**"),
    "negative": Function(np.negative, symbol="-"),
    "absolute": Function(np.absolute),
    "sign": Function(lambda x: np.where(np.isnan(x), 0, np.sign(x))),
    "maximum": Function(np.maximum),
    "minimum": Function(np.minimum),
    "floor": Function(np.floor),
    "ceil": Function(np.ceil),
    "round": Function(np.rint),
    "trunc": Function(np.trunc),
    "fmod": Function(np.fmod),
    "exp": Function(np.exp, "float"),
    "log": Function(np.log, "float"),
    "sqrt": Function(np.sqrt, "float"),
    "sin": Function(np.sin, "float"),
    "cos": Function(np.cos, "float"),
    "tan": Function(np.tan, "float"),
    "asin": Function(np.arcsin, "float"),
    "acos": Function(np.arccos, "float"),
    "atan": Function(np.arctan, "float"),
    "atan2": Function(np.arctan2, "float"),
    "sinh": Function(np.sinh, "float"),
    "cosh": Function(np.cosh, "float"),
    "tanh": Function(np.tanh, "float"),
    "asinh": Function(np.arcsinh, "float"),
    "acosh": Function(np.arccosh, "float"),
    "atanh": Function(np.arctanh, "float"),
    "log1p": Function(np.log1p, "float"),
    "expm1": Function(np.expm1, "float"),
    "log2": Function(np.log2, "float"),
    "log10": Function(np.log10, "float"),
    "cbrt": Function(np.cbrt, "float"),
    "sigmoid": Function(_sigmoid, "float"),
    "erf": Function(_each(math.erf), "float"),
    "lgamma": Function(_each(_lgamma), "float"),
    "equal": Function(np.equal, "bool", "=="),
    "not_equal": Function(np.not_equal, "bool", "!="),
    "less": Function(np.less, "bool", "<"),
    "less_equal": Function(np.less_equal, "bool", "<="),
    "greater": Function(np.greater, "bool", ">"),
    "greater_equal": Function(np.greater_equal, "bool", ">="),
    "logical_and": Function(np.logical_and, "bool", "&"),
    "logical_or": Function(np.logical_or, "bool", "|"),
    "logical_xor": Function(np.logical_xor, "bool"),
    "logical_not": Function(np.logical_not, "bool", "~"),
    "isnan": Function(np.isnan, "bool"),
    "isinf": Function(np.isinf, "bool"),
    "bitwise_and": Function(np.bitwise_and, "int"),
    "bitwise_or": Function(np.bitwise_or, "int"),
    "bitwise_xor": Function(np.bitwise_xor, "int"),
    "bitwise_not": Function(np.bitwise_not, "int"),
    "random_bits": Function(random_bits, "int"),
    "where": Function(np.where),
}

REDUCERS: Mapping[str, Combine] = {
    "Sum": Combine(np.add, 0),
    "Max": Combine(np.maximum, -math.inf),
    "Min": Combine(np.minimum, math.inf),
    "Prod": Combine(np.multiply, 1),
}
