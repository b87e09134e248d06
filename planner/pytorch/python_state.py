"""What Python keeps from one call of a module to the next beside tensors: numbers, texts, containers, generators."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import cached_property, lru_cache, partial
from io import BytesIO
from itertools import zip_longest
from types import FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from planner.pytorch.holders import ALIKE, values_in
from planner.pytorch.refusing import OF_MODULES

LruCache = type(lru_cache(len))

OF_FUNCTIONS: Mapping[type, str] = {
    MethodType: "__func__",
    staticmethod: "__func__",
    classmethod: "__func__",
    property: "fget",
    cached_property: "func",
    partial: "func",
    LruCache: "__wrapped__",
}
"""By what is made of a function, the attribute that is the function."""

State = dict[str, tuple[object, ...]]
"""What each name stands for, by as many who call something so."""


def python_state(*parts: object) -> State:
    """Return what modules, and other objects, keep in attributes, by name, so that a change can be told.

    A number is itself. With modules it is what their classes keep, and what functions name and keep, too.
    """
    kept: State = {}
    written: dict[int, tuple[object, object]] = {}  # with the values, so that no other gets the identity of one
    for part in parts:
        for name, value in _held(part):
            if id(value) not in written:
                written[id(value)] = value, _written(value)
            kept[name] = (*kept.get(name, ()), written[id(value)][-1])
    return kept


def _held(part: object) -> Iterator[tuple[str, Any]]:
    part = getattr(part, "__self__", part)  # of a method
    if isinstance(part, nn.Module):
        yield from _attributes(part)
        yield from _parts(part)
    else:
        yield type(part).__name__, part
    yield from ((place.name, place.value) for place in _places(part))


def _attributes(part: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, module in part.named_modules():
        held = [(name, vars(module)[name]) for name in vars(module).keys() - OF_MODULES]
        held += [("hook", hook) for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values())]
        yield from ((f"{path}.{name}".removeprefix("."), value) for name, value in held)


def _parts(part: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield whether modules are in training, which modules are theirs, and how many hooks they have."""
    for path, module in part.named_modules():
        hooks = len(module._forward_pre_hooks) + len(module._forward_hooks)
        parts = [id(vars(part)) for part in module._modules.values() if part is not None]  # an export may wrap them
        yield f"{path}.training".removeprefix("."), module.training
        yield f"the parts of {path or 'the module'}", [*parts, *[0] * hooks]


class Place(NamedTuple):
    """Where a value is kept: an object and the value's name there, what it is called, and the value."""

    owner: Any
    key: str
    name: str
    value: Any


def places_outside(*parts: object) -> Iterator[Place]:
    """Yield what classes of modules keep, and what functions name and keep."""
    for part in parts:
        yield from _places(getattr(part, "__self__", part))


def _places(part: object) -> Iterator[Place]:
    if not isinstance(part, nn.Module):
        yield from _named_by([part])
        return
    classes = {kind for module in part.modules() for kind in type(module).__mro__ if _is_the_users(kind)}
    held = {id(value): value for _, value in _attributes(part)}.values()
    functions = [value for kind in classes for value in vars(kind).values() if isinstance(value, FunctionType)]
    names = {name for function in functions for name in function.__code__.co_names}
    for kind in dict.fromkeys(kind for value in held if not isinstance(value, ALIKE) for kind in _kinds(value)):
        yield from _of_class(kind)
    yield from _named_by([*held, *(method for value in held for method in _methods(value, names))])
    for kind in sorted(classes, key=lambda kind: kind.__qualname__):
        yield from _of_class(kind)
        yield from _named_by(vars(kind).values())


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
    for part in parts:
        for name, value in _attributes(part) if isinstance(part, nn.Module) else ():
            if tensors := tensors_of(value):
                own = (value, *getattr(value, "__dict__", {}).values())
                near = {id(leaf) for held in own for leaf in tree_leaves(held)}
                kept += [(name, tensor) for tensor in tensors if id(tensor) not in near]
    return Outside({id(tensor): (name, tensor) for name, tensor in kept})


def _of_class(kind: type) -> Iterator[Place]:
    held = [(name, value) for name, value in vars(kind).items() if name[:2] != "__"]
    return (Place(kind, name, f"{kind.__name__}.{name}", value) for name, value in held)


def _is_the_users(value: type | FunctionType) -> bool:
    return not str(value.__module__).startswith(("torch.", "builtins"))


def _kinds(value: object) -> list[type]:
    """Return the classes of the user's that a value is, or is of."""
    kinds = value.__mro__ if isinstance(value, type) else () if isinstance(value, ALIKE) else type(value).__mro__
    return [kind for kind in kinds if kind.__module__.split(".")[0] not in ("torch", *sys.stdlib_module_names)]


def _methods(value: object, names: Iterable[str]) -> list[object]:
    """Return the methods of some names that a value has of its classes, and of those that Python calls itself."""
    called = (*names, "__call__", "__getitem__")
    return [vars(kind)[name] for kind in _kinds(value) for name in called if name in vars(kind)]


def _is_a_users_file(value: ModuleType) -> bool:
    return value.__name__.split(".")[0] not in ("torch", *sys.stdlib_module_names)


def _named_by(values: Iterable[object]) -> Iterator[Place]:
    """Yield what those of the values that are functions, and those that they call by name, name and keep."""
    waiting, seen = [*values], set[FunctionType]()
    while waiting:
        function = waiting.pop()
        if isinstance(function, MethodType):
            yield Place(function, "__self__", type(function.__self__).__name__, function.__self__)
        if type(function) in OF_FUNCTIONS:
            function = getattr(function, OF_FUNCTIONS[type(function)])
        if not isinstance(function, FunctionType) or function in seen or not _is_the_users(function):
            continue
        seen.add(function)
        for place in _variables(function):
            for kind in _kinds(place.value):
                yield from _of_class(kind)
            yield place
            waiting += (place.value, *_methods(place.value, function.__code__.co_names))


def _variables(function: FunctionType) -> Iterator[Place]:
    """Yield what a function names of its file, what it encloses, its defaults and its attributes."""
    own, names = function.__name__, function.__code__.co_names
    files = [function.__globals__]
    imported = [sys.modules[name] for name in names if name in sys.modules]  # forward may import a file itself
    for named in files:  # a file's too, that another names
        values = [*imported, *(named[name] for name in names if name in named)]
        others = [vars(value) for value in values if isinstance(value, ModuleType) and _is_a_users_file(value)]
        files += [other for other in others if not any(other is file for file in files)]
    yield from (
        Place(named, name, name, named[name]) for named in files for name in names if name in named and name[:2] != "__"
    )
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it may be empty
            yield Place(cell, "cell_contents", name, cell.cell_contents)
    defaults = [*enumerate(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
    yield from (Place(defaults, str(key), f"{own}.{key}", value) for key, value in defaults)
    yield from (Place(function, name, f"{own}.{name}", value) for name, value in list(vars(function).items()))


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
    """Yield which names stand for other things, with numbers or lengths."""
    for name in sorted(before.keys() | after.keys()):
        for then, now in zip_longest(before.get(name, ()), after.get(name, ())):
            if then != now or type(then) is not type(now):
                lengths = [kept[0] if isinstance(kept, Contents) else kept for kept in (then, now)]
                are_told = (
                    all(isinstance(kept, int | float | str | None) for kept in lengths) and lengths[0] != lengths[1]
                )
                yield f"{name} from {lengths[0]} to {lengths[1]}" if are_told else name
