"""Errors a user's graph or plan can cause; commands print them as one line and exit with status 2."""

from tensor_partitioner.display import printable


class InputError(ValueError):
    """Something given is wrong; what it holds of names in files cannot drive the terminal that prints it."""

    def __str__(self) -> str:
        return printable(super().__str__())


class GraphError(InputError):
    """A training graph is inconsistent: says what was found, what was expected, and at which node or tensor."""


class PlanError(InputError):
    """A plan contradicts its graph or itself: says what was expected, what was found, and where (a JSON path)."""


class DataError(InputError):
    """Data do not fit a graph, or what it makes of them: says which tensor, what was expected, and what was found."""
