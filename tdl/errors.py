"""The one error of the description language."""


class TDLError(ValueError):
    """A description, or its use, is wrong: names the operator and, where known, tensor, dimension and expression."""
