"""Import training graphs from PyTorch modules, which are traced without being run, and differentiated here.

`converter` defines how a PyTorch operator unknown to this package is written in the catalog's operators: a function
from the current `Translation` and the `TracedCall` to a `Value`, which `unary`, `binary`, `reduce` and `contract` help
to build.
"""

from planner.pytorch.importing import from_torch as from_torch
from planner.pytorch.rewrite.axes import Value as Value
from planner.pytorch.translate.call import (
    TracedCall as TracedCall,
    UnsupportedError as UnsupportedError,
    converter as converter,
)
from planner.pytorch.translate.operations import (
    binary as binary,
    contract as contract,
    reduce as reduce,
    unary as unary,
)
from planner.pytorch.translate.translation import Translation as Translation
from planner.pytorch.user_model import (
    UserModel as UserModel,
    graph_of as graph_of,
    graph_of_model as graph_of_model,
    is_single as is_single,
    module_of as module_of,
)
