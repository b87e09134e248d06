"""Errors and warnings about machine descriptions; commands print them as one line, and an error exits with status 2."""


class TopologyError(ValueError):
    """A machine description is wrong: the message gives the file, the place, what was expected and what was found."""


class TopologyWarning(UserWarning):
    """A machine description contains an implausible figure."""
