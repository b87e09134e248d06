"""What a trace leaves in modules, classes and functions, as caches of constants keep it, is taken out again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

from torch import nn

from planner.pytorch.kept import attributes_of, tensors_in
from planner.pytorch.private import FakeTensor
from planner.pytorch.python_state import LruCache, places_outside


@contextmanager
def given_back(module: nn.Module, *others: object) -> Iterator[None]:
    """Within, a module may be traced; after it, nothing keeps a tensor of the trace, but what it had before.

    That is what modules keep in attributes, and what classes and functions of these, and of others, do.
    """
    before = _places(module, *others)
    contents = {id(value): _copied(value) for *_, value in before.values()}
    try:
        yield
    finally:
        for place, (owner, key, value) in _places(module, *others).items():
            if isinstance(value, LruCache):
                if value.cache_info() != contents.get(id(value)):
                    value.cache_clear()
            elif any(isinstance(tensor, FakeTensor) for tensor in tensors_in(value).values()):
                if isinstance(value, list | dict) and id(value) in contents:
                    value.clear()
                    value.extend(contents[id(value)]) if isinstance(value, list) else value.update(contents[id(value)])
                elif place in before:
                    _put(owner, key, before[place][-1])
                else:
                    _remove(owner, key)


def _places(module: nn.Module, *others: object) -> dict[tuple[int, str], tuple[Any, str, Any]]:
    """Return what modules, classes and functions keep: where, its name there, and what."""
    places = [(vars(part), name, value) for part, name, value in attributes_of(module)]
    places += ((place.owner, place.key, place.value) for place in places_outside(module, *others))
    return {(id(owner), key): (owner, key, value) for owner, key, value in places}


def _copied(value: Any) -> Any:
    """Return what a list or dict holds, or how often a function was called of which results are kept."""
    if isinstance(value, LruCache):
        return value.cache_info()
    return copy(value) if isinstance(value, list | dict) else value


def _put(owner: Any, key: str, value: Any) -> None:
    if isinstance(owner, dict):
        owner[key] = value
    else:
        setattr(owner, key, value)


def _remove(owner: Any, key: str) -> None:
    if isinstance(owner, dict):
        del owner[key]
    else:
        delattr(owner, key)
