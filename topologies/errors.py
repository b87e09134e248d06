"""The error that a machine description can cause; commands print it as one line and exit with status 2."""


class TopologyError(ValueError):
    """A machine description is wrong: says in which file and where in it, what was expected, and what was found."""
