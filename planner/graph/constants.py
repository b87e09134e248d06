"""Tensors with given values, stored in the graph itself as compressed text.

The text is base64 of the zlib-compressed elements in row-major order, least significant byte first. Graphs are files
that people read and send, so only small or regular tensors are stored this way (positions, masks, tables of relative
positions). Weights are not constants.
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
"""Largest number of characters for the values of one tensor."""


def values(array: Array) -> Init:
    """Return an Init that holds an array's values; raise GraphError for an unknown dtype or too many characters."""
    content = np.asarray(array)
    if content.dtype.name not in ITEM_BYTES:
        raise GraphError(f"values of dtype {content.dtype}: expected one of {', '.join(ITEM_BYTES)}")
    little = content.astype(content.dtype.newbyteorder("<")) if content.dtype.byteorder == ">" else content
    text = b64encode(zlib.compress(np.ascontiguousarray(little).tobytes(), 9)).decode()
    if len(text) > MOST_CHARACTERS:
        raise GraphError(
            f"values of shape {content.shape} take {len(text)} characters, more than {MOST_CHARACTERS}; "
            "compute them by operators, or make them an input or a weight"
        )
    return Init("values", values=text)


def array_of(tensor: Tensor) -> Array:
    """Return a tensor's initial values, read-only; raise GraphError if their number does not match its shape."""
    return _array(tensor.init.values if tensor.init else "", tensor.shape, tensor.dtype)


@lru_cache(maxsize=1 << 10)
def _array(text: str, shape: tuple[int, ...], dtype: str) -> Array:
    nbytes = prod(shape) * ITEM_BYTES[dtype]
    if len(text) > MOST_CHARACTERS:
        raise GraphError(f"values of {len(text)} characters, expected at most {MOST_CHARACTERS}")
    try:
        # Limit the output, so that a small file cannot fill the memory.
        raw = zlib.decompressobj().decompress(b64decode(text, validate=True), nbytes + 1)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise GraphError(f"values are not base64-encoded zlib data: {error}") from error
    if len(raw) != nbytes:
        size = f"{len(raw)}" if len(raw) < nbytes else "more"
        raise GraphError(f"values should be {nbytes} bytes for shape {shape} of {dtype}, found {size}")
    return np.frombuffer(raw, dtype).reshape(shape)
