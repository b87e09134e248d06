"""Errors that a user's graph or plan can cause. Commands print them as one line and exit with status 2."""

from tensor_partitioner.display import printable


class InputError(ValueError):
    """Invalid input. Its text has control characters escaped, because names from files may contain terminal codes."""

    def __str__(self) -> str:
        return printable(super().__str__())


class GraphError(InputError):
    """The training graph is inconsistent; says what was expected, what was found, and at which node or tensor."""


class PlanError(InputError):
    """The plan contradicts its graph or itself; says what was expected, what was found, and where (a JSON path)."""


class DataError(InputError):
    """The data do not fit the graph, or training on them fails; says which tensor, what was expected and found."""
