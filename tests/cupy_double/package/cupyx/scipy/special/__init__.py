"""The double of `cupyx.scipy.special`: SciPy's element-wise functions."""

import scipy.special
from cupy import _array


def __getattr__(name):
    return _array.elementwise(name, "cupyx.scipy.special", scipy.special)
