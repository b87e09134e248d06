"""Import training graphs from PyTorch modules, which are traced without being run, and differentiated here.

`converter` defines how a PyTorch operator unknown to this package is written in the catalog's operators: a function
from the current `Translation` and the `TracedCall` to a `Value`, which `unary`, `binary`, `reduce` and `contract` help
to build.
"""

from planner.pytorch.importing import from_torch as from_torch
from planner.pytorch.rewrite.axes import Value as Value
from planner.pytorch.translate.call import TracedCall as TracedCall
from planner.pytorch.translate.call import UnsupportedError as UnsupportedError
from planner.pytorch.translate.call import converter as converter
from planner.pytorch.translate.operations import binary as binary
from planner.pytorch.translate.operations import contract as contract
from planner.pytorch.translate.operations import reduce as reduce
from planner.pytorch.translate.operations import unary as unary
from planner.pytorch.translate.translation import Translation as Translation
from planner.pytorch.user_model import UserModel as UserModel
from planner.pytorch.user_model import graph_of as graph_of
from planner.pytorch.user_model import graph_of_model as graph_of_model
from planner.pytorch.user_model import is_single as is_single
from planner.pytorch.user_model import module_of as module_of
