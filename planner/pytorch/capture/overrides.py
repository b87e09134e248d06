"""Overrides of Python behaviour during tracing, where PyTorch's own code would depend on data."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from planner.errors import GraphError
from planner.pytorch.capture.checkpoints import batch_norm, plain_batch_norm
from planner.pytorch.capture.export_errors import OF_MODULES, users_line
from planner.pytorch.extensions import extension
from planner.pytorch.nodes import leaves
from planner.pytorch.private import content_of, vmap
from planner.pytorch.state.contents import is_known
from planner.pytorch.translate.bags import bags


@contextmanager
def idioms_traced() -> Iterator[None]:
    """Within this context, distributions skip validation, torch.vmap is refused, and extensions apply."""
    flat_vmap, validates = vmap._flat_vmap, Distribution._validate_args
    vmap._flat_vmap = _refuse_mapped
    Distribution.set_default_validate_args(False)  # a check depends on data
    try:
        with ExitStack() as stack:
            for around in extension().around.values():
                stack.enter_context(around())
            yield
    finally:
        vmap._flat_vmap = flat_vmap
        Distribution.set_default_validate_args(validates)


def _refuse_mapped(*_: object, **__: object) -> NoReturn:
    raise GraphError(
        f"{users_line(traceback.extract_stack())}torch.vmap is not supported (pip install extras/rare_operators "
        "supports up to 64 slices): write it for whole tensors, with broadcasting"
    )


class OverriddenFunctions(TorchFunctionMode):
    """Within this mode, functions of PyTorch that an export drops or does not support are refused or replaced.

    A hook of a tensor raises GraphError with the user's line; `data` of a tensor is what `detach` returns. A parameter
    that a container of the `module` also holds is replaced by the module's, which is another object in a trace. An
    export writes into some real tensors, such as those that are not buffers; their content is restored afterwards.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.before = module, dict[Tensor, Tensor]()
        self.instead = {**STANDING_IN, **extension().functions}
        self.names = {id(parameter): name for name, parameter in module.named_parameters()}
        held = (vars(part)[name] for part in module.modules() for name in vars(part).keys() - OF_MODULES)
        containers = (value for value in held if isinstance(value, list | tuple | dict))
        self.finds = any(id(leaf) in self.names for value in containers for leaf in tree_leaves(value))

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch, or its replacement."""
        name = getattr(function, "__name__", "")
        if why := REFUSED.get(function) or REFUSED.get(name):
            raise GraphError(f"{users_line(traceback.extract_stack())}{why}")
        if function == GET_DATA:
            return args[0].detach()
        if function == SET_DATA:
            return args[0].detach().copy_(args[1])
        if self.finds:
            args, kwargs = tree_map(self._own, (args, kwargs))
        if name.startswith("_foreach_"):
            self._note(*args[0])
            return _for_each(name.removeprefix("_foreach_"), *args, **(kwargs or {}))
        if (name[-1:] == "_" and name[-2:] != "__") or name == "__setitem__" or name[:3] == "__i":
            self._note(*args[:1])
        self._note(*leaves((kwargs or {}).get("out")))
        return self.instead.get(function, self.instead.get(name, function))(*args, **(kwargs or {}))

    def __exit__(self, *failure: Any) -> None:
        """Restore what was changed."""
        super().__exit__(*failure)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for tensor, content in self.before.items():
                tensor.copy_(content)

    def _note(self, *changed: Any) -> None:
        """Record the content of tensors about to be changed, to restore it later."""
        self.before.update((x, content_of(x)) for x in changed if is_known(x) and x not in self.before)

    def _own(self, value: Any) -> Any:
        """Return the module's parameter in place of one that a container holds."""
        return self.module.get_parameter(self.names[id(value)]) if id(value) in self.names else value


def _for_each(name: str, tensors: Sequence[Tensor], *others: Any, **named: Any) -> list[Tensor]:
    """Call a function for each of several tensors, with the corresponding further arguments."""
    columns = (other if isinstance(other, list | tuple) else [other] * len(tensors) for other in others)
    return [getattr(tensor, name)(*rest, **named) for tensor, *rest in zip(tensors, *columns, strict=True)]


def _instance_norm(x: Tensor, running_mean: Any = None, running_var: Any = None, **settings: Any) -> Tensor:
    """Normalize by sample; running statistics track the mean over samples."""
    if running_mean is None or not settings.get("use_input_stats", True):
        return F.instance_norm(x, running_mean, running_var, **settings)
    result = F.instance_norm(x, **settings)
    momentum, dims, x = settings.get("momentum", 0.1), list(range(2, x.ndim)), x.detach()
    for kept, now in ((running_mean, x.mean(dims)), (running_var, x.var(dims))):
        kept.mul_(1 - momentum).add_(now.mean(0), alpha=momentum)
    return result


STANDING_IN: Mapping[Callable[..., Any], Callable[..., Any]] = {
    F.batch_norm: batch_norm,
    torch.batch_norm: plain_batch_norm,
    F.instance_norm: _instance_norm,
    F.embedding_bag: bags,
}
"""Replacements of functions that change running statistics, or read bags of rows."""


GRADIENTS = (
    "torch.autograd.grad or torch.func in forward: higher-order gradients are not supported; remove the penalty, or "
    "write the derivative as operators"
)
BACKWARD = "backward() in forward: gradients are computed outside of the module: return the loss, or a sum of losses"
REFUSED: Mapping[Any, str] = {
    torch.Tensor.register_hook: "register_hook: hooks of tensors would not run: remove it",
    torch.autograd.grad: GRADIENTS,
    "_make_dual": GRADIENTS,
    **dict.fromkeys((torch.Tensor.backward, torch.autograd.backward), BACKWARD),
}
"""Reasons why functions are refused, by the function, or by name for functions that are not public."""

GET_DATA, SET_DATA = torch.Tensor.data.__get__, torch.Tensor.data.__set__  # type: ignore[attr-defined]
