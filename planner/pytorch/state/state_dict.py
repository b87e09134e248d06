"""Entries of a module's state dict, the graph tensors that hold them, and checks for shared memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import nn

from planner.errors import GraphError
from planner.graph.ir import Entry, Graph, content_digest
from planner.pytorch.capture.trace import TracedModule, is_data, is_parameter
from planner.pytorch.state.contents import is_known


def entries(module: nn.Module, trace: TracedModule, graph: Graph) -> dict[str, Entry]:
    """Return every entry of a module's state dict, by name, with the graph tensor that has its elements."""
    changed, names = trace.changed_buffers(), dict(trace.names())
    for name, buffer in module.named_buffers(remove_duplicate=False):
        if name in changed or name in graph.tensors:
            names[id(buffer)] = name
    described = {}
    for name, state in module.state_dict(keep_vars=True).items():
        if isinstance(state, torch.Tensor):
            first_name = names.get(id(state), name)
            tensor = graph.tensors.get(first_name)
            is_held = tensor is not None and tensor.init is not None and tensor.init.kind != "data"
            described[name] = _entry(state, first_name if is_held else None, changed.get(first_name, 0))
    return described


def _entry(state: torch.Tensor, tensor: str | None, changes: int) -> Entry:
    """Describe an entry; one without a tensor by its content, or by its increment if it counts."""
    shape, dtype = tuple(state.shape), str(state.dtype).removeprefix("torch.")
    if tensor is None and changes:
        return Entry(None, shape, dtype, counts=changes if not state.is_floating_point() and shape == () else 0)
    if tensor is None and is_known(state):
        return Entry(None, shape, dtype, content_digest(state.detach().cpu().reshape(-1).view(torch.uint8).numpy()))
    return Entry(tensor, shape, dtype)


UNNAMED = "lifted_tensor"
"""Part of the names that an export gives to tensors that are not attributes of the module."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A tensor of a module: its name, whether training changes it, and its range of memory in bytes."""

    name: str
    changes: bool
    start: int
    stop: int


def refuse_shared_memory(trace: TracedModule) -> None:
    """Raise GraphError if a tensor that training changes shares memory with another one, which PyTorch changes too.

    Several names of one tensor, such as a parameter assigned to several modules, are one tensor.
    """
    seen, memories = set[int](), defaultdict[int, list[_Held]](list)
    for source, spec in trace.sources.items():
        name = str(spec.target)
        tensor: torch.Tensor | None = trace.parameters.get(name)
        if id(tensor) in seen:
            continue
        seen |= set() if tensor is None else {id(tensor)}
        tensor = trace.constant(name) if tensor is None and not is_data(spec) else tensor
        if tensor is None or not tensor.numel():
            continue
        changes = source in trace.states or (is_parameter(spec) and tensor.requires_grad)
        held = _Held(name.removeprefix("module."), changes, *_place(tensor))
        memories[tensor.untyped_storage()._cdata].append(held)
    for tensors in memories.values():
        for first, second in combinations(tensors, 2):
            if (first.changes or second.changes) and first.start < second.stop and second.start < first.stop:
                raise GraphError(_said(first.name, second.name))


def refuse_shared_data(written: Set[str], data: Mapping[str, torch.Tensor]) -> None:
    """Raise GraphError if forward writes data that share memory with other data, which then change too."""
    for name in written & data.keys():
        for other in data.keys() - {name}:
            if _lie_together(data[name], data[other]):
                raise GraphError(
                    f"forward changes {name} in place, but it shares memory with {other}: change a copy, as "
                    f"{name}.clone(), or give {other} its own memory"
                )


def _lie_together(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    if tensor.untyped_storage()._cdata != other.untyped_storage()._cdata:
        return False
    (start, stop), (others_start, others_stop) = _place(tensor), _place(other)
    return start < others_stop and others_start < stop


def _said(first: str, second: str) -> str:
    if UNNAMED in first or UNNAMED in second:
        name = first if UNNAMED in second else second
        return f"{name} is trained but also read outside of its name, for example from a list: use nn.ParameterList"
    return (
        f"{first} and {second} share memory, so changing one changes the other: clone() one, or make them one "
        "parameter, for example b.weight = a.weight"
    )


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the range of memory, in bytes, in which a tensor lies."""
    last = sum((extent - 1) * step for extent, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset())
    return start * tensor.element_size(), (start + int(last) + 1) * tensor.element_size()
