"""Python state that a module keeps between calls, and that a trace changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from planner.errors import GraphError
from planner.pytorch.nodes import line_of, packet
from planner.pytorch.private import FakeTensor
from planner.pytorch.state.contents import is_known

HOLDERS = (dict, list, set, deque, CellType)
"""Mutable containers; objects and functions have dicts."""

MOST_VALUES = 1 << 20
"""Largest number of values to inspect."""


def reachable(*roots: object) -> list[Any]:
    """Return values and everything that they hold: in attributes, containers, methods and closures."""
    waiting, values = list(roots), dict[int, Any]()
    while waiting and len(values) < MOST_VALUES:
        value = waiting.pop()
        if id(value) not in values:
            values[id(value)] = value
            waiting += _held(value)
    return list(values.values())


def _held(value: Any) -> Iterable[Any]:
    if isinstance(value, (*HOLDERS, tuple, frozenset)):
        content = _content(value)
        return content.values() if isinstance(content, dict) else content
    if isinstance(value, MethodType):
        return value.__self__, value.__func__
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    if isinstance(value, FunctionType):
        enclosed = value.__defaults__, value.__kwdefaults__, value.__closure__, vars(value)
        return () if str(value.__module__).startswith("torch.") else enclosed
    is_plain = isinstance(value, Tensor | type) or type(value).__module__.split(".")[0] in ("torch", "builtins")
    return [vars(value)] if hasattr(value, "__dict__") and (isinstance(value, nn.Module) or not is_plain) else ()


def _content(holder: Any) -> Any:
    """Return the content of a container as a list or a dict, bypassing its class's own methods."""
    if isinstance(holder, dict):
        return dict.copy(holder)
    if isinstance(holder, CellType):
        return [] if holder == CellType() else [holder.cell_contents]
    kind = next(kind for kind in (list, tuple, set, frozenset, deque) if isinstance(holder, kind))
    return [*kind.__iter__(holder)]


class PythonState:
    """What a module and its loss reach in attributes, containers and closures, to be restored after a trace.

    `later` is the state that a traced call leaves for the next one, without tensors; None if it is unchanged.
    """

    def __init__(self, *parts: object) -> None:
        values = reachable(*parts)
        holders = [value for value in values if isinstance(value, HOLDERS)]
        modules = (value for value in values if isinstance(value, nn.Module))
        registered = {id(held) for module in modules for held in (module._parameters, module._buffers)}
        self._parts = parts
        self.later: PythonState | None = None
        self._contents = [(holder, _content(holder)) for holder in holders if id(holder) not in registered]
        self._registered = [(holder, _content(holder)) for holder in holders if id(holder) in registered]

    def note_call(self) -> None:
        """Record the state that a finished traced call has left."""
        changed = [pair for pair in self._contents if not _is_alike(*pair)]
        for holder, before in changed:
            _put_back(holder, _untraced(_content(holder), before))
        if all(_is_alike(*pair) for pair in changed):
            self.later = None
        else:
            self.later = PythonState(*self._parts)
            known = {id(holder): before for holder, before in self._registered}
            for holder, now in self.later._registered:  # tensors that are other objects in a trace
                own = {name: tensor for name, tensor in known.get(id(holder), {}).items() if tensor is not None}
                now.update({name: own[name] for name in own.keys() & now.keys()})

    def put_back(self) -> None:
        """Restore all contents."""
        for holder, before in (*self._contents, *self._registered):
            if not _is_alike(holder, before):
                _put_back(holder, before)


def _put_back(holder: Any, before: Any) -> None:
    if isinstance(holder, CellType):
        (holder.cell_contents,) = before
        return
    holder.clear()
    holder.extend(before) if isinstance(holder, list | deque) else holder.update(before)


def _untraced(content: Any, before: Any) -> Any:
    """Return a content in which tensors of a trace, and values that hold any, are replaced by the earlier values."""
    if not isinstance(content, dict):
        known = set(map(id, before))
        return before if any(_is_traced(value) for value in content if id(value) not in known) else content
    traced = {key for key, value in content.items() if value is not before.get(key) and _is_traced(value)}
    others = {key: value for key, value in content.items() if key not in traced}
    return others | {key: before[key] for key in traced & before.keys()}


def _is_traced(value: Any) -> bool:
    return any(isinstance(held, FakeTensor) for held in reachable(value))


def _is_alike(holder: Any, before: Any) -> bool:
    """Return True if a container holds the same values in the same order, or equal numbers and strings."""
    now = _content(holder)
    if len(now) != len(before) or (isinstance(now, dict) and [*now] != [*before]):
        return False
    pairs = zip(now.values(), before.values(), strict=True) if isinstance(now, dict) else zip(now, before, strict=True)
    return all(a is b or (type(a) is type(b) and isinstance(a, int | float | str) and a == b) for a, b in pairs)


@contextmanager
def assigned_in_place(*parts: object) -> Iterator[None]:
    """Call modules within this context; afterwards, parameters and buffers that forward assigned are written in place.

    A non-persistent buffer may change its shape, such as a table of as many positions as there are.
    """
    modules = [part for part in reachable(*parts) if isinstance(part, nn.Module)]
    owned: list[tuple[nn.Module, dict[str, Any]]]
    owned = [(part, held) for part in modules for held in (part._parameters, part._buffers)]
    registered = [(part, held, *entry) for part, held in owned for entry in held.items()]
    yield
    written = []
    for part, held, name, before in registered:
        after = held.get(name)
        if isinstance(before, Tensor) and isinstance(after, Tensor) and after is not before:
            if sum(other is before for *_, other in registered) > 1:
                raise GraphError(f"forward assigns {name}, which is shared under other names: change it in place")
            if after.shape == before.shape:
                written.append((held, name, before, after.detach().clone()))
            elif name not in part._non_persistent_buffers_set:
                raise GraphError(f"forward changes the shape of {name}, {tuple(before.shape)}: keep its shape")
    for held, name, before, content in written:  # an assigned tensor may be another of these
        with torch.no_grad():
            held[name] = before.copy_(content)


def refuse_other(program: ExportedProgram, again: ExportedProgram) -> None:
    """Raise GraphError, with the line, if two traces of a module differ in an operator or a constant."""
    for node, other in zip_longest(_calls(program), _calls(again)):
        first, second = map(_text, (node, other))
        if first != second:
            lines = [line for line in map(line_of, filter(None, (node, other))) if line]
            raise GraphError(
                f"{(*lines, 'the module')[0]}: forward computes {first} in its first call but {second} in the next: "
                "count outside of the module, keep random numbers in a buffer, or call the module before the import"
            )
    for name, constant in program.constants.items():
        if is_known(constant) and not _is_equal(constant, again.constants[name]):
            raise GraphError(
                f"forward creates a new constant ({name}) in every call: create it in __init__ and keep it in a buffer"
            )


def _calls(program: ExportedProgram) -> Iterator[Node]:
    """Yield the operators of a trace, with those of its regions after the others."""
    parts = (part for part in program.graph_module.modules() if isinstance(part, GraphModule))
    return (node for part in parts for node in part.graph.nodes if node.op == "call_function")


def _text(node: Node | None) -> str:
    """Return an operator and its arguments as text."""
    if node is None:
        return "nothing"
    return f"{packet(node) or getattr(node.target, '__name__', node.target)}{node.args}{node.kwargs or ''}"


def _is_equal(constant: Tensor, other: Tensor) -> bool:
    """Return True for equal elements, where NaN equals NaN."""
    if constant is other:
        return True
    a, b = constant.to_dense(), other.to_dense()
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | (a.isnan() & b.isnan())).all())
