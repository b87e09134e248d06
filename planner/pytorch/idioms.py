"""What Python does of a module as it is traced, where PyTorch's own code would ask data what to do."""

from __future__ import annotations

import dis
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import CodeType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.modules import transformer
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from planner.errors import GraphError
from planner.pytorch.packed import packed
from planner.pytorch.private import FakeTensor, vmap
from planner.pytorch.refusing import users_line


@contextmanager
def idioms_traced() -> Iterator[None]:
    """Within, layers of PyTorch are traced that would ask tensors for numbers."""
    forward, detect = _BatchNorm.forward, transformer._detect_is_causal_mask
    grad, flat_vmap = torch.autograd.grad, vmap._flat_vmap
    _BatchNorm.forward = lambda self, x: (_averaging_all if _averages_all(self) else forward)(self, x)  # type: ignore[method-assign, assignment]
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: bool(is_causal)  # a mask says it, too
    torch.autograd.grad, vmap._flat_vmap = _refuse_gradients, partial(_one_by_one, flat_vmap)
    try:
        yield
    finally:
        torch.autograd.grad, vmap._flat_vmap = grad, flat_vmap
        _BatchNorm.forward, transformer._detect_is_causal_mask = forward, detect  # type: ignore[method-assign]


def _refuse_gradients(*_: Any, **__: Any) -> Any:
    raise GraphError(
        f"{users_line(traceback.extract_stack())}torch.autograd.grad in forward: gradients of gradients are not taken; "
        "leave the penalty out, or write the derivative as operators"
    )


def _one_by_one(
    otherwise: Callable[..., Any], function: Callable[..., Any], size: int, *mapped: Any, **named: Any
) -> Any:
    """Call a function that `torch.vmap` maps for every slice of its arguments, unless there are many."""
    dims, arguments, spec, out_dims, randomness = mapped
    if size > MOST_SLICES or randomness == "same":
        return otherwise(function, size, *mapped, **named)

    def slices(value: Any, dim: int | None, place: int) -> Any:
        return value if dim is None or not isinstance(value, Tensor) else value.select(dim, place)

    results = []
    for place in range(size):
        given = [slices(value, dim, place) for value, dim in zip(arguments, dims, strict=True)]
        by_name = {name: slices(value, 0, place) for name, value in named.items()}
        results.append(function(*tree_unflatten(given, spec), **by_name))
    leaves, form = tree_flatten(results[0])
    places = [out_dims] * len(leaves) if isinstance(out_dims, int) else tree_flatten(out_dims)[0]
    columns = zip(*(tree_flatten(result)[0] for result in results), strict=True)
    return tree_unflatten([torch.stack(column, dim) for column, dim in zip(columns, places, strict=True)], form)


MOST_SLICES = 64
"""How many slices a function is called for, one by one."""


def _averages_all(layer: _BatchNorm) -> bool:
    return layer.training and layer.momentum is None and layer.running_mean is not None


def _averaging_all(layer: _BatchNorm, x: Tensor) -> Tensor:
    """Normalize by the batch; the running statistics become the means of all batches so far."""
    layer._check_input_dim(x)  # type: ignore[no-untyped-call]
    result = F.batch_norm(x, None, None, layer.weight, layer.bias, training=True, eps=layer.eps)
    dims = [dim for dim in range(x.ndim) if dim != 1]
    with torch.no_grad():
        layer.num_batches_tracked.add_(1)  # type: ignore[union-attr]
        share = 1.0 / layer.num_batches_tracked.to(x.dtype)  # type: ignore[union-attr]
        for kept, now in ((layer.running_mean, x.mean(dims)), (layer.running_var, x.var(dims))):
            kept.mul_(1 - share).add_(now * share)  # type: ignore[union-attr]
    return result


class Taken(TorchFunctionMode):
    """Within, what an export would leave out, or cannot take, of functions of PyTorch is refused or done otherwise.

    A hook of a tensor raises a GraphError with the user's line; `data` of a tensor is what `detach` returns; sequences
    are packed as rows that a mask shows.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch, or what stands for it."""
        if function is torch.Tensor.register_hook:
            where = users_line(traceback.extract_stack())
            raise GraphError(f"{where}register_hook: a hook of a tensor would not run: remove it")
        if function == GET_DATA:
            return args[0].detach()
        if function == SET_DATA:
            return args[0].detach().copy_(args[1])
        name = getattr(function, "__name__", "")
        if name == "_pack_padded_sequence":
            return packed(*args, **(kwargs or {}))
        if name.startswith("_foreach_"):
            return _for_each(name.removeprefix("_foreach_"), *args, **(kwargs or {}))
        return STANDING_IN.get(function, function)(*args, **(kwargs or {}))


def _for_each(name: str, tensors: Sequence[Tensor], *others: Any, **named: Any) -> list[Tensor]:
    """Call a function for each of several tensors, with what it is given of each."""
    columns = (other if isinstance(other, list | tuple) else [other] * len(tensors) for other in others)
    return [getattr(tensor, name)(*rest, **named) for tensor, *rest in zip(tensors, *columns, strict=True)]


def _counted(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Count whole numbers below a least length, or add their weights up; a greater number fails as the graph runs."""
    if not minlength or not x.numel():
        return torch.bincount(x, weights, minlength)
    amounts = torch.ones_like(x) if weights is None else weights
    length = torch.repeat_interleave((x.max() + 1).clamp(min=minlength)[None], output_size=minlength)
    return length.to(amounts.dtype).index_add(0, x, amounts)


def _ctc_loss(  # noqa: PLR0913, PLR0917 -- as PyTorch's
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Return the loss of connectionist temporal classification of each sample, their mean or sum."""
    lengths = [torch.as_tensor(one) for one in (input_lengths, target_lengths)]
    losses: Tensor = torch.ops.planner.ctc_loss(log_probs, targets, *lengths, blank, 0, zero_infinity)
    if reduction == "mean":
        return (losses / lengths[1].clamp(min=1)).mean()
    return losses.sum() if reduction == "sum" else losses


def _dense(indices: Tensor, values: Tensor, size: Sequence[int] | None = None, **settings: Any) -> Tensor:
    """Return a sparse tensor as a dense one."""
    if size is None or not isinstance(indices, Tensor) or not isinstance(values, Tensor):
        return torch.sparse_coo_tensor(indices, values, size, **settings)
    dense = torch.zeros(*size, *values.shape[1:], dtype=settings.get("dtype") or values.dtype, device=values.device)
    return dense.index_put(tuple(indices.unbind()), values.to(dense.dtype), accumulate=True)


STANDING_IN: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch.bincount: _counted,
    torch.Tensor.bincount: _counted,
    F.ctc_loss: _ctc_loss,
    torch.sparse_coo_tensor: _dense,
    torch.sparse.mm: torch.mm,
    torch.Tensor.coalesce: lambda x: x if x.layout is torch.strided else x.coalesce(),
}
"""By a function whose result has an extent that an export does not know, or is sparse, what is traced instead."""


GET_DATA, SET_DATA = torch.Tensor.data.__get__, torch.Tensor.data.__set__  # type: ignore[attr-defined]


class Undecided(Exception):  # noqa: N818 -- no error: the trace begins anew with one answer and the other
    """A tensor was asked for a truth value that no answer is there for."""


class Asked:
    """Within, a tensor of a trace that is asked for a truth value gives the answers in order, then raises an Undecided.

    `asking` is the code that asked, in order.
    """

    def __init__(self, answers: tuple[bool, ...]) -> None:
        self.answers, self.asking = answers, list[CodeType]()

    def __enter__(self) -> Asked:
        """Let tensors give the answers."""
        FakeTensor.__bool__ = self._answered  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        """Let tensors be as they were."""
        del FakeTensor.__bool__

    @property
    def _answered(self) -> Callable[[FakeTensor], bool]:
        def answered(tensor: FakeTensor) -> bool:
            if tensor.constant is not None:
                return bool(tensor.constant)
            self.asking.append(sys._getframe(1).f_code)
            if len(self.asking) > len(self.answers):
                raise Undecided
            return self.answers[len(self.asking) - 1]

        return answered


def raises_for(error: BaseException, asking: CodeType) -> bool:
    """Return True if the code that asked for a truth value raised an error by itself, as an assertion does."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code is not asking:
        return False
    opcode = trace.tb_frame.f_code.co_code[trace.tb_lasti]
    return dis.opname[opcode] == "RAISE_VARARGS"
