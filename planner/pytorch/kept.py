"""Tensors that forward assigns: registered ones are written in place, others must not reach the next step."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node, map_arg
from torch.utils._pytree import tree_leaves, tree_map

from planner.errors import GraphError
from planner.pytorch.functional import FOLLOWING, changes_first, memory_of
from planner.pytorch.graphs import example, is_random, packet
from planner.pytorch.holders import ALIKE
from planner.pytorch.refusing import OF_MODULES

FLAT = "_flat_weights"
"""The attribute in which PyTorch's recurrent layers list their parameters, which are others in a trace."""


@contextmanager
def kept_in(modules: Sequence[nn.Module], *, marks: bool) -> Iterator[set[str]]:
    """Within, modules are called; after it, the set says which attributes have other tensors, as Kept.assigned does."""
    kept, assigned = [Kept(module) for module in modules], set[str]()
    yield assigned
    for module in kept:
        assigned |= module.assigned(marks=marks)


class Kept:
    """What a module registers, and what it keeps in other attributes, as they are before a call of it."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._registered = _registered(module)
        self._others = {(id(part), name): tensors_in(value) for part, name, value in attributes_of(module)}

    def assigned(self, *, marks: bool) -> set[str]:
        """Write parameters and buffers that were assigned in place; return the other attributes with other tensors.

        Of these are buffers that no file has and whose shape is another now, as that of angles for as many positions,
        and what was registered without a tensor, or not at all. With `marks` they are marked as kept, for the call that
        follows.
        """
        names = {id(part): path for path, part in self._module.named_modules()}
        changed, written = self._registered_anew(names, marks=marks), list[tuple[dict[str, Any], str, Tensor, Tensor]]()
        for part, held, name, before in self._registered:
            after = held.get(name)
            if isinstance(before, Tensor) and isinstance(after, Tensor) and after is not before:
                if after.shape != before.shape and name in part._non_persistent_buffers_set:
                    changed.add(path := f"{names[id(part)]}.{name}".removeprefix("."))
                    held[name] = _marked(after, path) if marks else after
                    continue
                if after.shape != before.shape:
                    raise GraphError(
                        f"forward gives {name} of shape {tuple(before.shape)} another, {tuple(after.shape)}: let its "
                        "shape stay"
                    )
                if sum(other is before for *_, other in self._registered) > 1:
                    raise GraphError(f"forward gives {name}, which has other names, another tensor: write it in place")
                with torch.no_grad():
                    written.append((held, name, before, after.clone()))
        for held, name, before, after in written:  # what is assigned may be another of these
            with torch.no_grad():
                held[name] = before.copy_(after)
        for part, name, value in list(attributes_of(self._module)):
            known = self._others.get((id(part), name), {})
            if name != FLAT and not _are_among(tensors_in(value), known):
                changed.add(path := f"{names.get(id(part), '')}.{name}".removeprefix("."))
                if marks:
                    setattr(part, name, _marked(value, path))
        return changed

    def _registered_anew(self, names: Mapping[int, str], *, marks: bool) -> set[str]:
        """Return which buffers were not there before, marked if need be; a GraphError for parameters."""
        known = {(id(held), name) for _, held, name, value in self._registered if isinstance(value, Tensor)}
        anew = set()
        for part, held, name, value in _registered(self._module):
            if isinstance(value, Tensor) and (id(held), name) not in known:
                anew.add(path := f"{names[id(part)]}.{name}".removeprefix("."))
                if held is part._parameters:
                    raise GraphError(f"forward makes a parameter, {path}: call the module once before it is planned")
                held[name] = _marked(value, path) if marks else value
        return anew


def _registered(module: nn.Module) -> list[tuple[nn.Module, dict[str, Any], str, Any]]:
    """Return parameters and buffers: whose, where they are registered, their names there, and them."""
    registered: list[tuple[nn.Module, dict[str, Any]]] = [
        (part, held) for part in module.modules() for held in (part._parameters, part._buffers)
    ]
    return [(part, held, name, value) for part, held in registered for name, value in held.items()]


def attributes_of(module: nn.Module) -> Iterator[tuple[Any, str, Any]]:
    """Yield what modules, and objects that they hold, keep in attributes of their own: whose, its name, and what."""
    for part in module.modules():
        for name in vars(part).keys() - OF_MODULES:
            value = vars(part)[name]
            yield part, name, value
            if hasattr(value, "__dict__") and not isinstance(value, ALIKE):
                yield from ((value, *pair) for pair in vars(value).items())


def tensors_in(value: Any) -> dict[int, Tensor]:
    """Return the tensors in a value, or in containers of it, by identity."""
    if not isinstance(value, Tensor | list | tuple | dict):
        return {}
    return {id(leaf): leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)}


def _are_among(tensors: Iterable[int], known: Iterable[int]) -> bool:
    """Return True for identities that are among others in the same order."""
    others = iter(known)
    return all(identity in others for identity in tensors)


def _marked(value: Any, path: str) -> Any:
    """Return a value with its tensors marked, those of lists and dicts in them, as others may hold these, too."""
    if isinstance(value, Tensor):
        return torch.ops.planner.kept(value, path)
    if isinstance(value, list | dict):
        for key, entry in enumerate(value) if isinstance(value, list) else list(value.items()):
            value[key] = _marked(entry, path)
        return value
    if isinstance(value, tuple):
        return tree_map(partial(_marked, path=path), value, is_leaf=lambda entry: entry is not value)
    return value


def refuse_kept(program: ExportedProgram, again: set[str]) -> None:
    """Raise a GraphError if the loss of a second call depends on tensors that the first one kept.

    It may where these are made of constants, as masks are, and of buffers that stay as they are, as angles are of
    frequencies, and of no random numbers, and the second call keeps no others there.
    """
    graph = program.graph
    constants = _constants(program)
    read = {node: str(node.args[1]) for node in _ancestors(graph.output_node()) if packet(node) == "planner::kept"}
    made_of = {node: _ancestors(node) for node in read}
    varying = {node for node, those in made_of.items() if any(_varies(n, program, constants) for n in those)}
    if refused := {path for node, path in read.items() if path in again or node in varying}:
        raise GraphError(
            f"forward keeps tensors from one step to the next in {', '.join(sorted(refused))}: register_buffer it in "
            "__init__, and write it in place"
        )


def _draws(node: Node, module: GraphModule) -> bool:
    """Return True for an operator that draws random numbers, and for a region that has one."""
    return is_random(node) or any(_draws(n, region) for region in _regions(node, module) for n in region.graph.nodes)


def _varies(node: Node, program: ExportedProgram, constants: Container[Node]) -> bool:
    """Return True for a placeholder that is not constant, and for what draws random numbers."""
    return (node.op == "placeholder" and node not in constants) or _draws(node, program.graph_module)


def _constants(program: ExportedProgram) -> set[Node]:
    """Return the placeholders of constants, and of buffers that nothing changes."""
    kinds = {str(spec.arg.name): spec.kind for spec in program.graph_signature.input_specs}
    changed = set[int]()
    for node in program.graph.nodes:
        for operand in _changed_by(node, program.graph_module):
            changed |= memory_of(operand)
    fixed = (
        node for node in program.graph.nodes if kinds.get(node.name) in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    )
    return {node for node in fixed if not memory_of(node) & changed}


def _changed_by(node: Node, module: GraphModule) -> Sequence[Node]:
    """Return which operands a node may change, one of a region any."""
    if packet(node) in FOLLOWING:
        return node.all_input_nodes
    if changes_first(node) or "out" in node.kwargs:
        return [operand for operand in (*node.args[:1], node.kwargs.get("out")) if isinstance(operand, Node)]
    regions = [region for region in _regions(node, module) if any(_changed_by(n, region) for n in region.graph.nodes)]
    return node.all_input_nodes if regions else []


def _regions(node: Node, module: GraphModule) -> Iterator[GraphModule]:
    operands = (operand for operand in node.all_input_nodes if operand.op == "get_attr")
    values = (getattr(module, str(operand.target), None) for operand in operands)
    return (value for value in values if isinstance(value, GraphModule))


def refuse_first_call(once: ExportedProgram, twice: ExportedProgram, changed: set[str]) -> None:
    """Raise a GraphError if the second of two calls, which end in `twice`, does not do what the first does: `once`."""
    first, both = (list(_operators(program.graph_module, _constants(program))) for program in (once, twice))
    if both[-len(first) :] != first:
        raise GraphError(
            f"forward does something else in its first call than later, as it changes {min(changed)}: call the module "
            "once before it is planned"
        )


def _operators(module: GraphModule, constants: Container[Node] = ()) -> Iterator[object]:
    """Yield the operators of a trace, and of its regions, that make tensors which are not constant."""
    varying = set[Node]()
    for node in module.graph.nodes:
        if (node.op == "placeholder" and node not in constants) or not varying.isdisjoint(node.all_input_nodes):
            varying.add(node)
            for region in _regions(node, module):
                yield from _operators(region)
            if node.op == "call_function" and packet(node) != "planner::kept" and tensors_in(example(node)):
                yield node.target, str(map_arg((node.args, node.kwargs), lambda _: None))


def _ancestors(node: Node) -> set[Node]:
    waiting, seen = [node], {node}
    while waiting:
        more = set(waiting.pop().all_input_nodes) - seen
        seen |= more
        waiting += more
    return seen
