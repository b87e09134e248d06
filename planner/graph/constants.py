"""Tensors whose first values are given, not made: their elements stand in the graph itself, as compressed text.

The text is base64 of what zlib makes of the elements in row-major order, least significant byte first. A graph is a
text that people read and mail, so it holds what is small or regular (positions, masks, tables of relative positions);
weights are no constants.
"""

from __future__ import annotations

import binascii
import zlib
from base64 import b64decode, b64encode
from functools import lru_cache
from math import prod
from typing import Any

import ml_dtypes  # noqa: F401 (makes bfloat16 a dtype of NumPy)
import numpy as np
from numpy.typing import NDArray

from planner.errors import GraphError
from planner.graph.ir import ITEM_BYTES, Init, Tensor

Array = NDArray[Any]

MOST_CHARACTERS = 1 << 20
"""Characters that the values of one tensor may take."""


def values(array: Array) -> Init:
    """Return the initial values that an array holds, of a dtype of tensors; GraphError where they take too much."""
    content = np.asarray(array)
    if content.dtype.name not in ITEM_BYTES:
        raise GraphError(f"values of dtype {content.dtype}: expected one of {', '.join(ITEM_BYTES)}")
    little = content.astype(content.dtype.newbyteorder("<")) if content.dtype.byteorder == ">" else content
    text = b64encode(zlib.compress(np.ascontiguousarray(little).tobytes(), 9)).decode()
    if len(text) > MOST_CHARACTERS:
        raise GraphError(
            f"values of shape {content.shape} take {len(text)} characters, more than {MOST_CHARACTERS}; "
            "make them by operators, or give them as an input or a weight"
        )
    return Init("values", values=text)


def array_of(tensor: Tensor) -> Array:
    """Return the values that a tensor begins with, read-only; GraphError unless they are as many as it has elements."""
    return _array(tensor.init.values if tensor.init else "", tensor.shape, tensor.dtype)


@lru_cache(maxsize=1 << 10)
def _array(text: str, shape: tuple[int, ...], dtype: str) -> Array:
    nbytes = prod(shape) * ITEM_BYTES[dtype]
    if len(text) > MOST_CHARACTERS:
        raise GraphError(f"values of {len(text)} characters, expected at most {MOST_CHARACTERS}")
    try:
        # No text makes more than is expected, so that a small file cannot fill the memory.
        raw = zlib.decompressobj().decompress(b64decode(text, validate=True), nbytes + 1)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise GraphError(f"values are no base64 text of zlib's: {error}") from error
    if len(raw) != nbytes:
        size = f"{len(raw)}" if len(raw) < nbytes else "more"
        raise GraphError(f"values should be {nbytes} bytes for shape {shape} of {dtype}, found {size}")
    return np.frombuffer(raw, dtype).reshape(shape)
