"""What a trace leaves in modules, classes and functions, as caches of constants keep it, is taken out again."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from planner.pytorch.holders import content_of, is_holder, put_back, values_in
from planner.pytorch.kept import attributes_of, registered
from planner.pytorch.private import FakeTensor
from planner.pytorch.python_state import LruCache, places_outside


@contextmanager
def given_back(module: nn.Module, *others: object) -> Iterator[None]:
    """Within, a module may be traced; after it, nothing keeps a tensor of the trace, but what it had before.

    That is what modules keep in attributes, what classes and functions of these, and of others, do, and what all that
    holds, however deep.
    """
    before = _places(module, *others)
    values = [value for *_, value in before.values()]
    called = [(value, value.cache_info()) for value in values if isinstance(value, LruCache)]
    holders = {id(holder): (holder, content_of(holder)) for holder in values_in(values) if is_holder(holder)}
    try:
        yield
    finally:
        for function, calls in called:
            if function.cache_info() != calls:
                function.cache_clear()
        for place, (owner, key, value) in _places(module, *others).items():
            if _is_traced([value], holders):
                if place in before:
                    _put(owner, key, before[place][-1])
                else:
                    _remove(owner, key)
        for holder, content in holders.values():
            now = content_of(holder)
            if _is_traced(now.values() if isinstance(now, dict) else now, holders):
                put_back(holder, content)


def _is_traced(values: Iterable[Any], apart: Container[int]) -> bool:
    """Return True if a tensor of a trace is among values, or is held by them, but for holders that are `apart`."""
    return any(isinstance(value, FakeTensor) for value in values_in(values, apart))


def _places(module: nn.Module, *others: object) -> dict[tuple[int, str], tuple[Any, str, Any]]:
    """Return what modules, classes and functions keep: where, its name there, and what."""
    places = [(vars(part), name, value) for part, name, value in attributes_of(module)]
    places += ((held, name, value) for _, held, name, value in registered(module))
    places += ((place.owner, place.key, place.value) for place in places_outside(module, *others))
    return {(id(owner), key): (owner, key, value) for owner, key, value in places}


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
