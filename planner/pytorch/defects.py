"""The boundary of the import: every failure reaches the user as one line with its place and advice."""

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
