"""What a machine description can cause; commands print either as one line, and exit with status 2 after an error."""


class TopologyError(ValueError):
    """A machine description is wrong: says in which file and where in it, what was expected, and what was found."""


class TopologyWarning(UserWarning):
    """A machine description says something that can hardly be meant."""
