"""Arguments of a module and its loss, treated as one list of tensors, and defects that an import reports."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.fx import Node
from torch.utils._pytree import TreeSpec, tree_flatten, tree_flatten_with_path, tree_unflatten

from planner.errors import GraphError
from planner.pytorch.nodes import where
from tdl import TDLError

Inputs = Sequence[Any] | Mapping[str, Any]
"""Inputs of a module: in order, or by name."""


@dataclass(frozen=True)
class Arguments:
    """A module's inputs and the targets of its loss; both may contain tensors in lists, tuples and dicts."""

    inputs: Inputs
    targets: Sequence[Any] = ()

    @cached_property
    def values(self) -> list[Any]:
        """All leaf values: those of inputs, then those of targets."""
        return tree_flatten(self._tree)[0]

    @property
    def of_inputs(self) -> int:
        """Number of values that belong to inputs."""
        return len(tree_flatten(self._tree[:2])[0])

    @cached_property
    def structure(self) -> TreeSpec:
        """Structure of the values: a list of inputs, a dict of named inputs, and a list of targets."""
        return tree_flatten(self._tree)[1]

    @property
    def _tree(self) -> tuple[list[Any], dict[str, Any], list[Any]]:
        if isinstance(self.inputs, Mapping):
            return [], dict(self.inputs), [*self.targets]
        return [*self.inputs], {}, [*self.targets]

    def of(self, values: Sequence[Any]) -> Arguments:
        """Return arguments of the same structure with other values."""
        in_order, by_name, targets = tree_unflatten(values, self.structure)
        return Arguments(by_name if isinstance(self.inputs, Mapping) else in_order, targets)

    def mapped(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Arguments:
        """Return the arguments with a function applied to every tensor."""
        return self.of([function(value) if isinstance(value, torch.Tensor) else value for value in self.values])

    def names(self, module: nn.Module) -> list[str]:
        """Return unique names of the values: the module's names of inputs, and names of targets.

        No name is a weight's. Inside containers the path is appended: `batch_images`, `states_0`.
        """
        parameters = [p.name for p in signature(module.forward).parameters.values() if p.kind is not p.VAR_KEYWORD]
        in_order = [*parameters, *(f"input{number}" for number in range(len(parameters), len(self.inputs)))]
        in_loss = ["target"] if len(self.targets) == 1 else [f"target{number}" for number in range(len(self.targets))]
        inputs = self.inputs.items() if isinstance(self.inputs, Mapping) else zip(in_order, self.inputs, strict=False)
        names = list[str]()
        for begin, value in (*inputs, *zip(in_loss, self.targets, strict=True)):
            for path, _ in tree_flatten_with_path(value)[0]:
                name = "_".join(map(str, (begin, *map(_step, path))))
                while name in names or isinstance(getattr(module, name, None), torch.Tensor):
                    name += "_"
                names.append(name)
        return names


def _step(key: Any) -> Any:
    """Return the entry that a PyTorch tree key stands for: an index, a key or an attribute."""
    return next(getattr(key, kind) for kind in ("idx", "key", "name") if hasattr(key, kind))


# The boundary of the import: every failure reaches the user as one line with its place and advice.


LOGGER = logging.getLogger(__name__)
"""Receives every defect with its traceback, including harmless ones where another form of an operator is used."""

OTHERWISE = "use other operators, and report this defect (PARTITIONER_TRACEBACK=1 shows more)"


class DefectError(GraphError):
    """A defect of the import, or of what runs its graph, triggered by a user's module; its cause has the traceback."""


@contextmanager
def contained(doing: str) -> Iterator[None]:
    """Within this context, errors that are not the user's are raised as DefectError with the operator and the line."""
    try:
        yield
    except (GraphError, TDLError):
        raise
    except MemoryError as error:
        raise DefectError(f"{doing}: out of memory ({_line(error)}): pass fewer or smaller examples") from error
    except Exception as error:
        node = _node_of(error)
        place = f"{where(node)}: {node.target}: " if node is not None else ""
        raise noted(error, f"{place}{doing} failed ({_line(error)}): {OTHERWISE}") from error


def noted(error: Exception, message: str) -> DefectError:
    """Return a DefectError with this message, and log the error with its traceback."""
    LOGGER.debug(message, exc_info=error)
    return DefectError(message)


def conversion_failed(node: Node, error: Exception) -> DefectError:
    """Return the message about an operator whose conversion failed, and log it."""
    return noted(error, f"{node.target} could not be converted ({_line(error)}): {OTHERWISE}")


def _line(error: Exception) -> str:
    """Return an error's type and the first line of its message."""
    said = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _node_of(error: Exception) -> Node | None:
    """Return the node that the innermost function working on one was processing."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        if isinstance(node := frame.f_locals.get("node"), Node):
            return node
    return None
