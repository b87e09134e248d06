"""Graphs from PyTorch's modules: traced without being run, and differentiated here.

`converter` says how an operator of PyTorch that is not known here is written in the catalog's: a function from the
`Translation` under way and the `TracedCall` to a `Value`, with `unary`, `binary`, `reduce` and `contract` to build it.
"""

from planner.pytorch.importing import from_torch
from planner.pytorch.rewrite.axes import Value
from planner.pytorch.translate.call import TracedCall, UnsupportedError, converter
from planner.pytorch.translate.operations import binary, contract, reduce, unary
from planner.pytorch.translate.translation import Translation
from planner.pytorch.user_model import UserModel, graph_of, graph_of_model, is_single, module_of

__all__ = [
    "TracedCall", "Translation", "UnsupportedError", "UserModel", "Value", "binary", "contract", "converter",
    "from_torch", "graph_of", "graph_of_model", "is_single", "module_of", "reduce", "unary",
]  # fmt: skip
