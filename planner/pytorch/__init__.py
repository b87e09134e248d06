"""Import training graphs from PyTorch modules, which are traced without being run, and differentiated here.

`converter` defines how a PyTorch operator unknown to this package is written in the catalog's operators: a function
from the current `Translation` and the `TracedCall` to a `Value`, which `unary`, `binary`, `reduce` and `contract` help
to build.
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
