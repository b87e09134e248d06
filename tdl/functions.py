"""The elementwise functions and reducers of the language, with their NumPy meaning."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Function:
    """An elementwise function; `result` is "bool", "float", or "same" where it is that of the arguments."""

    numpy: Callable[..., Any]
    result: str = "same"
    symbol: str | None = None


@dataclass(frozen=True, slots=True)
class Combine:
    """A reducer: a commutative, associative ufunc and its identity."""

    numpy: np.ufunc
    identity: float


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


FUNCTIONS: Mapping[str, Function] = {
    "add": Function(np.add, symbol="+"),
    "subtract": Function(np.subtract, symbol="-"),
    "multiply": Function(np.multiply, symbol="*"),
    "divide": Function(np.true_divide, "float", "/"),
    "floor_divide": Function(np.floor_divide, symbol="//"),
    "remainder": Function(np.remainder, symbol="%"),
    "power": Function(np.power, symbol="**"),
    "negative": Function(np.negative, symbol="-"),
    "absolute": Function(np.absolute),
    "sign": Function(np.sign),
    "maximum": Function(np.maximum),
    "minimum": Function(np.minimum),
    "floor": Function(np.floor),
    "ceil": Function(np.ceil),
    "exp": Function(np.exp, "float"),
    "log": Function(np.log, "float"),
    "sqrt": Function(np.sqrt, "float"),
    "sin": Function(np.sin, "float"),
    "cos": Function(np.cos, "float"),
    "tanh": Function(np.tanh, "float"),
    "sigmoid": Function(_sigmoid, "float"),
    "erf": Function(np.vectorize(math.erf, otypes=[np.float64]), "float"),
    "equal": Function(np.equal, "bool", "=="),
    "not_equal": Function(np.not_equal, "bool", "!="),
    "less": Function(np.less, "bool", "<"),
    "less_equal": Function(np.less_equal, "bool", "<="),
    "greater": Function(np.greater, "bool", ">"),
    "greater_equal": Function(np.greater_equal, "bool", ">="),
    "logical_and": Function(np.logical_and, "bool", "&"),
    "logical_or": Function(np.logical_or, "bool", "|"),
    "logical_not": Function(np.logical_not, "bool", "~"),
    "where": Function(np.where),
}

REDUCERS: Mapping[str, Combine] = {
    "Sum": Combine(np.add, 0),
    "Max": Combine(np.maximum, -math.inf),
    "Min": Combine(np.minimum, math.inf),
    "Prod": Combine(np.multiply, 1),
}
