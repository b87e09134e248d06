"""What a trace leaves in modules, classes and functions, as caches of constants keep it, is taken out again."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from planner.pytorch.holders import content_of, is_holder, put_back, values_in
from planner.pytorch.places import LruCache, Place, modules_of, places_of
from planner.pytorch.private import FakeTensor
from planner.pytorch.refusing import OF_MODULES


@contextmanager
def given_back(module: nn.Module, *others: object) -> Iterator[None]:
    """Within, a module may be traced; after it, nothing keeps a tensor of the trace, but what it had before.

    That is what modules register and keep in attributes, what classes and functions of these, and of others, do, and
    what all that holds, however deep.
    """
    parts = [part for whole in modules_of(module, *others) for part in whole.modules()]
    registered = [(held, dict(held)) for part in parts for held in (part._modules, part._parameters, part._buffers)]
    attributes = [(vars(part), {name: vars(part)[name] for name in vars(part).keys() - OF_MODULES}) for part in parts]
    before = _places(module, *others)
    values = [place.value for place in before.values()]
    called = [(value, value.cache_info()) for value in values if isinstance(value, LruCache)]
    holders = {id(holder): (holder, content_of(holder)) for holder in values_in(values) if is_holder(holder)}
    try:
        yield
    finally:
        for held, content in registered:
            put_back(held, content)
        for own, kept in attributes:  # of containers an export leaves copies, that nothing else holds
            own.update(kept)
        for function, calls in called:
            if function.cache_info() != calls:
                function.cache_clear()
        for where, place in _places(module, *others).items():
            if _is_traced([place.value], holders):
                if where in before:
                    _put(place.owner, place.key, before[where].value)
                else:
                    _remove(place.owner, place.key)
        for holder, content in holders.values():
            now = content_of(holder)
            if _is_traced(now.values() if isinstance(now, dict) else now, holders):
                put_back(holder, content)


def _is_traced(values: Iterable[Any], apart: Container[int]) -> bool:
    """Return True if a tensor of a trace is among values, or is held by them, but for holders that are `apart`."""
    return any(isinstance(value, FakeTensor) for value in values_in(values, apart))


def _places(*parts: object) -> dict[tuple[int, Any], Place]:
    return {(id(place.owner), place.key): place for place in places_of(*parts)}


def _put(owner: Any, key: Any, value: Any) -> None:
    if isinstance(owner, dict):
        owner[key] = value
    else:
        setattr(owner, key, value)


def _remove(owner: Any, key: Any) -> None:
    if isinstance(owner, dict):
        owner.pop(key, None)
    else:
        delattr(owner, key)
