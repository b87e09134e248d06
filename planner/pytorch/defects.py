"""The boundary of the import: whatever fails in it reaches the user as one line that says where, and what to do."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from torch.fx import Node

from planner.errors import GraphError
from planner.pytorch.nodes import where
from tdl import TDLError

LOGGER = logging.getLogger(__name__)
"""Hears of every defect, with its traceback, also of one that does no harm since an operator is written otherwise."""

OTHERWISE = "write it with other operators, and report this defect (PARTITIONER_TRACEBACK=1 shows more)"


class DefectError(GraphError):
    """A defect of the import, or of what runs its graph, that a user's module shows; the cause has the traceback."""


@contextmanager
def contained(doing: str) -> Iterator[None]:
    """Within, what is no error of the user's is raised as a DefectError that names the operator and the line."""
    try:
        yield
    except (GraphError, TDLError):
        raise
    except MemoryError as error:
        raise DefectError(f"{doing}: memory ran out ({_line(error)}): give fewer or smaller examples") from error
    except Exception as error:
        node = _node_of(error)
        place = f"{where(node)}: {node.target}: " if node is not None else ""
        raise noted(error, f"{place}{doing} failed ({_line(error)}): {OTHERWISE}") from error


def noted(error: Exception, message: str) -> DefectError:
    """Return what is said of an error, and log it with its traceback."""
    LOGGER.debug(message, exc_info=error)
    return DefectError(message)


def conversion_failed(node: Node, error: Exception) -> DefectError:
    """Return what is said of an operator whose conversion failed."""
    return noted(error, f"{node.target} failed to be converted ({_line(error)}): {OTHERWISE}")


def _line(error: Exception) -> str:
    """Return an error's kind and the first line that it says."""
    said = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _node_of(error: Exception) -> Node | None:
    """Return the node that the innermost function that works on one had at hand."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        if isinstance(node := frame.f_locals.get("node"), Node):
            return node
    return None
