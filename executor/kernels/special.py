"""Functions that the array module lacks, or that overflow where written plainly."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from executor.kernels.call import Array


def special(xp: ModuleType) -> Any:
    """Return SciPy's special functions for the array module."""
    return import_module("scipy.special" if xp is np else "cupyx.scipy.special")


def sign(xp: ModuleType, x: Array) -> Array:
    """1, -1 or 0, which is also that of what is no number."""
    return xp.where(x == x, xp.sign(x), 0)  # noqa: PLR0124 -- of no number that is false


def logistic(xp: ModuleType, x: Array) -> Array:
    """1 / (1 + exp(-x)), in which nothing overflows."""
    return 0.5 * (xp.tanh(0.5 * x) + 1)
