"""Call functions under `torch.vmap` slice by slice."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from planner.errors import GraphError
from planner.pytorch.capture.export_errors import users_line
from planner.pytorch.private import vmap


@contextmanager
def mapped_one_by_one() -> Iterator[None]:
    """Within this context, call the functions that `torch.vmap` maps slice by slice."""
    flat_vmap = vmap._flat_vmap
    vmap._flat_vmap = partial(_one_by_one, flat_vmap)
    try:
        yield
    finally:
        vmap._flat_vmap = flat_vmap


def _one_by_one(
    otherwise: Callable[..., Any], function: Callable[..., Any], size: int, *mapped: Any, **named: Any
) -> Any:
    """Call a mapped function for every slice of its arguments, unless there are many."""
    dims, arguments, spec, out_dims, randomness = mapped
    in_all = size * CALLS.get()
    if in_all > max(size, MOST_CALLS):
        raise GraphError(
            f"{users_line(traceback.extract_stack())}torch.vmap: nested calls run a function {in_all} times or "
            f"more, at most {MOST_CALLS} are supported: use broadcasting over whole tensors"
        )
    if size > MOST_SLICES or randomness == "same":
        return otherwise(function, size, *mapped, **named)

    def slices(value: Any, dim: int | None, place: int) -> Any:
        return value if dim is None or not isinstance(value, Tensor) else value.select(dim, place)

    results, around = [], CALLS.set(in_all)
    for place in range(size):
        given = [slices(value, dim, place) for value, dim in zip(arguments, dims, strict=True)]
        by_name = {name: slices(value, 0, place) for name, value in named.items()}
        results.append(function(*tree_unflatten(given, spec), **by_name))
    CALLS.reset(around)
    leaves, form = tree_flatten(results[0])
    places = [out_dims] * len(leaves) if isinstance(out_dims, int) else tree_flatten(out_dims)[0]
    columns = zip(*(tree_flatten(result)[0] for result in results), strict=True)
    return tree_unflatten([torch.stack(column, dim) for column, dim in zip(columns, places, strict=True)], form)


MOST_SLICES, MOST_CALLS = 64, 256
"""Most slices of one `torch.vmap`, and most calls of nested ones, that are run one by one."""


CALLS: ContextVar[int] = ContextVar("calls of the function that is mapped around", default=1)
