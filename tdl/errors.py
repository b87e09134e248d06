"""The error of the description language."""


class TDLError(ValueError):
    """A description, or its use, is invalid. Names the operator and, if known, the tensor, dimension and expression."""
