"""Errors and warnings of machine descriptions; commands print either as a line; an error is exit status 2."""


class TopologyError(ValueError):
    """A machine description is wrong: says in which file and where in it, what was expected, and what was found."""


class TopologyWarning(UserWarning):
    """A machine description says something that can hardly be meant."""
