"""Where Python keeps what a call of a module may change: attributes, classes, files, closures and defaults."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, lru_cache, partial
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from torch import nn

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


class Place(NamedTuple):
    """Where a value is kept: an object and the value's name there, what it is called, and the value.

    Every object that may keep something has a place of its own with an empty key, too.
    """

    owner: Any
    key: Any
    name: str
    value: Any


def places_of(*parts: object) -> Iterator[Place]:
    """Yield what modules, and other objects and functions, keep, and what places_outside does."""
    yield from places_outside(*parts)
    for module in modules_of(*parts):
        yield from places_in(module)


def modules_of(*parts: object) -> list[nn.Module]:
    """Return those that are modules, or methods of modules, and what modules they, other objects and functions hold."""
    modules = list[nn.Module]()
    for part in _opened(parts):
        owner, registered = getattr(part, "__self__", part), set[int]()
        if isinstance(owner, nn.Module):
            modules.append(owner)
            registered = {id(vars(module)) for module in owner.modules()}
        places = places_in(owner) if isinstance(owner, nn.Module) else places_outside(part)
        held = (value for value in values_in(place.value for place in places) if isinstance(value, nn.Module))
        modules += (module for module in held if id(vars(module)) not in registered)
    return modules


def _opened(parts: Iterable[object]) -> Iterator[object]:
    """Yield the parts, of those that are partial functions what these call, and with what."""
    for part in parts:
        if isinstance(part, partial):
            yield from _opened((part.func, *part.args, *part.keywords.values()))
        else:
            yield part


def places_in(module: nn.Module) -> Iterator[Place]:
    """Yield what a module, and those in it, keep in attributes that are not PyTorch's, and what they consist of."""
    for path, part in module.named_modules():
        prefix, own = f"{path}.".removeprefix("."), vars(part)
        yield Place(own, "", path, None)
        yield Place(own, "training", f"{prefix}training", part.training)
        yield from (Place(own, name, f"{prefix}{name}", own[name]) for name in own.keys() - OF_MODULES)
        hooks = {**part._forward_pre_hooks, **part._forward_hooks}
        yield from (Place(own, f"hook {key}", f"{prefix}hook", hook) for key, hook in hooks.items())
        parts = [id(vars(held)) for held in part._modules.values() if held is not None]  # an export may wrap them
        yield Place(own, "parts", f"the parts of {path or 'the module'}", [*parts, *[0] * len(hooks)])


def places_outside(*parts: object) -> Iterator[Place]:
    """Yield what classes keep of modules, other objects and functions, and what functions name and keep."""
    for part in _opened(parts):
        owner = getattr(part, "__self__", part)  # of a method
        if isinstance(owner, nn.Module):
            yield from _outside(owner)
        else:
            yield Place(owner, "", type(owner).__name__, owner)
            yield from _named_by([part, *_methods(owner, ())])


def _outside(module: nn.Module) -> Iterator[Place]:
    classes = {kind for part in module.modules() for kind in type(part).__mro__ if _is_the_users(kind)}
    held = {id(place.value): place.value for place in places_in(module) if place.key != ""}.values()
    functions = [value for kind in classes for value in vars(kind).values() if isinstance(value, FunctionType)]
    names = {name for function in functions for name in function.__code__.co_names}
    for kind in dict.fromkeys(kind for value in held if not isinstance(value, ALIKE) for kind in _kinds(value)):
        yield from _of_class(kind)
    for kind in sorted(classes, key=lambda kind: kind.__qualname__):
        yield from _of_class(kind)
    methods = (method for value in held for method in _methods(value, names))
    yield from _named_by([*held, *methods, *(value for kind in classes for value in vars(kind).values())])


def _of_class(kind: type) -> Iterator[Place]:
    yield Place(kind, "", kind.__name__, kind)
    held = [(name, value) for name, value in vars(kind).items() if name[:2] != "__"]
    yield from (Place(kind, name, f"{kind.__name__}.{name}", value) for name, value in held)


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
    waiting, functions, kinds = [*values], set[FunctionType](), set[type]()
    while waiting:
        function, places = waiting.pop(), list[Place]()
        if isinstance(function, MethodType):
            places.append(Place(function, "__self__", type(function.__self__).__name__, function.__self__))
        if type(function) in OF_FUNCTIONS:
            function = getattr(function, OF_FUNCTIONS[type(function)])
        if not isinstance(function, FunctionType) or not _is_the_users(function):
            yield from places
            continue
        if function not in functions:
            functions.add(function)
            places += _variables(function)
        for place in places:
            yield place
            waiting += (place.value, *_methods(place.value, function.__code__.co_names))
            for kind in _kinds(place.value):
                if kind not in kinds:
                    kinds.add(kind)
                    yield from _of_class(kind)


def _variables(function: FunctionType) -> Iterator[Place]:
    """Yield what a function names of its file, what it encloses, its defaults and its attributes."""
    own, names = function.__name__, function.__code__.co_names
    files = [function.__globals__]
    imported = [sys.modules[name] for name in names if name in sys.modules]  # forward may import a file itself
    for named in files:  # a file's too, that another names
        yield Place(named, "", own, None)
        values = [*imported, *(named[name] for name in names if name in named)]
        others = [vars(value) for value in values if isinstance(value, ModuleType) and _is_a_users_file(value)]
        files += [other for other in others if not any(other is file for file in files)]
    yield from (Place(named, name, name, named[name]) for named in files for name in names if name in named)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield Place(cell, "", name, None)
        with suppress(ValueError):  # it may be empty
            yield Place(cell, "cell_contents", name, cell.cell_contents)
    by_place, by_name = function.__defaults__ or (), function.__kwdefaults__ or {}
    yield from (Place(by_place, index, f"{own}.{index}", value) for index, value in enumerate(by_place))
    yield from (Place(by_name, name, f"{own}.{name}", value) for name, value in by_name.items())
    yield Place(function, "", own, function)
    yield from (Place(function, name, f"{own}.{name}", value) for name, value in list(vars(function).items()))
