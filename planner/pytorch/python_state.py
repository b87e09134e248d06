"""What Python keeps from one call of a module to the next beside tensors: numbers, texts, containers, generators."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextvars import ContextVar
from io import BytesIO
from types import GeneratorType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from planner.pytorch.holders import ALIKE, values_in
from planner.pytorch.places import modules_of, places_in, places_of, places_outside

State = dict[tuple[int, Any], tuple[object, str, object]]
"""By the identity of an object, and by a name there: the object, what that is called, and what it stands for."""

ABSENT = None, "", None
"""What is not there."""


def python_state(*parts: object) -> State:
    """Return what Python keeps that calls of modules, and of other objects and functions, may change.

    A number is itself.
    """
    written: dict[int, tuple[object, object]] = {}  # with the values, so that no other gets the identity of one
    state: State = {}
    for place in places_of(*parts):
        if id(place.value) not in written:
            written[id(place.value)] = place.value, _written(place.value)
        state[id(place.owner), place.key] = place.owner, place.name, written[id(place.value)][-1]
    return state


class Outside(dict[int, tuple[str, torch.Tensor]]):
    """Tensors that classes and functions keep, by identity, with names; no container to an export."""


def tensors_outside(*parts: object) -> Outside:
    """Return the tensors that classes and functions keep, and that modules do deeper than in objects of their own."""
    walked = dict[int, tuple[object, list[torch.Tensor]]]()

    def tensors_of(value: object) -> list[torch.Tensor]:
        if id(value) not in walked:
            walked[id(value)] = value, [held for held in values_in([value]) if isinstance(held, torch.Tensor)]
        return walked[id(value)][-1]

    kept = [(place.name, tensor) for place in places_outside(*parts) for tensor in tensors_of(place.value)]
    for module in modules_of(*parts):
        for _, key, name, value in places_in(module):
            if key and (tensors := tensors_of(value)):
                own = (value, *getattr(value, "__dict__", {}).values())
                near = {id(leaf) for held in own for leaf in tree_leaves(held)}
                kept += [(name, tensor) for tensor in tensors if id(tensor) not in near]
    return Outside({id(tensor): (name, tensor) for name, tensor in kept})


def _written(value: Any) -> object:
    """Return a number itself, of a container how much is in it and what, of anything else what it consists of."""
    if isinstance(value, ALIKE):
        return None
    if value is None or isinstance(value, int | float | str):
        return value
    written = _bytes(value, fast=True) or _bytes(value, fast=False)
    return Contents(len(value), written) if isinstance(value, list | dict | set) else written


class Contents(tuple[int, bytes]):
    """How much is in a container, and what."""

    __slots__ = ()

    def __new__(cls, *contents: Any) -> Contents:
        """Take a length and contents."""
        return super().__new__(cls, contents)


class _Writer(pickle.Pickler):
    """Writes what a value consists of, but for what is all alike; so is what cannot be written."""

    def persistent_id(self, value: Any) -> str | None:
        """Return the same for all that is alike."""
        return "" if isinstance(value, ALIKE) else None

    def reducer_override(self, value: Any) -> Any:
        """Write what can be in the usual way, of a generator its variables, of anything else its attributes."""
        if isinstance(value, GeneratorType):
            return dict, (list(value.gi_frame.f_locals.items()) if value.gi_frame else [],)
        if isinstance(value, ContextVar):
            return list, ([value.get(None)],)
        own = getattr(value, "__dict__", {})  # which some get when they are first asked for it
        try:
            value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        except Exception:
            return dict, (list(own.items()),)
        return NotImplemented


def _bytes(value: Any, *, fast: bool) -> bytes:
    """Return what a value consists of; nothing for one that consists of itself and is written fast."""
    file = BytesIO()
    writer = _Writer(file, pickle.HIGHEST_PROTOCOL)
    writer.fast = fast  # equal parts need not be the same, then
    try:
        writer.dump(value)
    except Exception:
        return b""
    return file.getvalue()


def changes(before: State, after: State) -> Iterator[str]:
    """Yield the names of what stands for something else, with numbers or lengths.

    What objects keep that nothing reached before, as those of a file that is imported by then, is no change.
    """
    reached = {owner for owner, _ in before}
    for place in before.keys() | {place for place in after if place[0] in reached}:
        (_, _, then), (_, _, now) = before.get(place, ABSENT), after.get(place, ABSENT)
        if then != now or type(then) is not type(now):
            name = (before.get(place) or after[place])[1]
            lengths = [kept[0] if isinstance(kept, Contents) else kept for kept in (then, now)]
            are_told = all(isinstance(kept, int | float | str | None) for kept in lengths) and lengths[0] != lengths[1]
            yield f"{name} from {lengths[0]} to {lengths[1]}" if are_told else name
