"""What Python does of a module as it is traced, where PyTorch's own code would ask data what to do."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from math import inf, log, pi
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from planner.errors import GraphError
from planner.pytorch.capture.autograd_functions import packed
from planner.pytorch.capture.checkpoints import batch_norm, plain_batch_norm
from planner.pytorch.capture.export_errors import OF_MODULES, users_line
from planner.pytorch.nodes import leaves
from planner.pytorch.private import content_of, vmap
from planner.pytorch.state.contents import is_known


@contextmanager
def idioms_traced() -> Iterator[None]:
    """Within, functions that `torch.vmap` maps are called slice by slice, and distributions check no arguments."""
    flat_vmap, validates = vmap._flat_vmap, Distribution._validate_args
    vmap._flat_vmap = partial(_one_by_one, flat_vmap)
    Distribution.set_default_validate_args(False)  # a check asks data
    try:
        yield
    finally:
        vmap._flat_vmap = flat_vmap
        Distribution.set_default_validate_args(validates)


def _one_by_one(
    otherwise: Callable[..., Any], function: Callable[..., Any], size: int, *mapped: Any, **named: Any
) -> Any:
    """Call a function that `torch.vmap` maps for every slice of its arguments, unless there are many."""
    dims, arguments, spec, out_dims, randomness = mapped
    in_all = size * CALLS.get()
    if in_all > max(size, MOST_CALLS):
        raise GraphError(
            f"{users_line(traceback.extract_stack())}torch.vmap: one within another calls a function {in_all} times or "
            f"more, {MOST_CALLS} are taken: write it for whole tensors, by broadcasting"
        )
    if size > MOST_SLICES or randomness == "same":
        return otherwise(function, size, *mapped, **named)

    def slices(value: Any, dim: int | None, place: int) -> Any:
        return value if dim is None or not isinstance(value, Tensor) else value.select(dim, place)

    results, around = [], CALLS.set(in_all)
    for place in range(size):
        given = [slices(value, dim, place) for value, dim in zip(arguments, dims, strict=True)]
        by_name = {name: slices(value, 0, place) for name, value in named.items()}
        results.append(function(*tree_unflatten(given, spec), **by_name))
    CALLS.reset(around)
    leaves, form = tree_flatten(results[0])
    places = [out_dims] * len(leaves) if isinstance(out_dims, int) else tree_flatten(out_dims)[0]
    columns = zip(*(tree_flatten(result)[0] for result in results), strict=True)
    return tree_unflatten([torch.stack(column, dim) for column, dim in zip(columns, places, strict=True)], form)


MOST_SLICES, MOST_CALLS = 64, 256
"""For how many slices a function is called one by one, and how often in all where one maps another."""
CALLS: ContextVar[int] = ContextVar("calls of the function that is mapped around", default=1)


class OverriddenFunctions(TorchFunctionMode):
    """Within, what an export would leave out, or cannot take, of functions of PyTorch is refused or done otherwise.

    A hook of a tensor raises a GraphError with the user's line; `data` of a tensor is what `detach` returns; sequences
    are packed as rows that a mask shows; masks that are computed alike select as one. A parameter that a container of
    the `module` holds, too, is the module's, which is another in a trace. What an export really changes, as it does
    tensors that are no buffers, holds afterwards what it held before.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.masks, self.module, self.before = Masks(), module, dict[Tensor, Tensor]()
        self.names = {id(parameter): name for name, parameter in module.named_parameters()}
        held = (vars(part)[name] for part in module.modules() for name in vars(part).keys() - OF_MODULES)
        containers = (value for value in held if isinstance(value, list | tuple | dict))
        self.finds = any(id(leaf) in self.names for value in containers for leaf in tree_leaves(value))

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch, or what stands for it."""
        name = getattr(function, "__name__", "")
        if why := REFUSED.get(function) or REFUSED.get(name):
            raise GraphError(f"{users_line(traceback.extract_stack())}{why}")
        if function == GET_DATA:
            return args[0].detach()
        if function == SET_DATA:
            return args[0].detach().copy_(args[1])
        if self.finds:
            args, kwargs = tree_map(self._own, (args, kwargs))
        if name == "_pack_padded_sequence":
            return packed(*args, **(kwargs or {}))
        if name.startswith("_foreach_"):
            self._note(*args[0])
            return _for_each(name.removeprefix("_foreach_"), *args, **(kwargs or {}))
        if (name[-1:] == "_" and name[-2:] != "__") or name == "__setitem__" or name[:3] == "__i":
            self._note(*args[:1])
        self._note(*leaves((kwargs or {}).get("out")))
        if name == "__getitem__":
            args = (args[0], self.masks.first_alike(args[1]))
        result = STANDING_IN.get(function, function)(*args, **(kwargs or {}))
        if name in Masks.MADE_BY and not kwargs:
            self.masks.note(name, args, result)
        return result

    def __exit__(self, *failure: Any) -> None:
        """Put back what was changed."""
        super().__exit__(*failure)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for tensor, content in self.before.items():
                tensor.copy_(content)

    def _note(self, *changed: Any) -> None:
        """Note what tensors that are changed next hold, so that they may hold it again."""
        self.before.update((x, content_of(x)) for x in changed if is_known(x) and x not in self.before)

    def _own(self, value: Any) -> Any:
        """Return the module's parameter in place of one that a container holds."""
        return self.module.get_parameter(self.names[id(value)]) if id(value) in self.names else value


class Masks:
    """Masks of a trace by what they are computed from, of which the first of each kind stands for all.

    What different masks select has lengths that an export cannot compare, as a loss of `x[~m]` and `y[~m]` does.
    """

    MADE_BY = frozenset(
        f"{before}{name}{after}"
        for name in ("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "invert", "bool", "isnan", "isfinite")
        for before, after in (("", ""), ("__", "__"), ("bitwise_", ""), ("logical_", ""))
    ) | {"logical_not", "bitwise_not"}
    """Names of functions that make masks."""

    def __init__(self) -> None:
        self._first: dict[Any, tuple[Tensor, int]] = {}
        self._noted: dict[int, tuple[Any, Tensor, Sequence[Any]]] = {}
        """By identity: what tells a mask, and what must stay for identities to."""

    def note(self, name: str, arguments: Sequence[Any], result: Any) -> None:
        """Note what a mask is computed from, where that is tensors and numbers."""
        is_mask = isinstance(result, Tensor) and result.dtype == torch.bool
        if is_mask and all(isinstance(argument, Tensor | bool | int | float) for argument in arguments):
            key = (name, *map(self._key, arguments))
            self._noted[id(result)] = key, result, arguments
            self._first.setdefault(key, (result, result._version))

    def _key(self, value: Any) -> Any:
        """Return what tells a tensor, as it is now, from others; a number tells itself."""
        if not isinstance(value, Tensor):
            return value
        key, *_ = self._noted.get(id(value), (id(value),))
        return key, value._version

    def first_alike(self, index: Any) -> Any:
        """Return an index, or several, with the first masks that were computed alike, where nothing changed them."""
        if isinstance(index, tuple):
            return tuple(map(self.first_alike, index))
        if not isinstance(index, Tensor) or id(index) not in self._noted:
            return index
        mask, version = self._first[self._noted[id(index)][0]]
        return mask if mask._version == version == index._version else index


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
    """Return the loss of connectionist temporal classification, which an export, that asks lengths, cannot take."""
    lengths = map(torch.as_tensor, (input_lengths, target_lengths))
    result: Tensor = torch.ops.planner.ctc_loss(log_probs, targets, *lengths, blank, reduction, zero_infinity)
    return result


def _dense(indices: Tensor, values: Tensor, size: Sequence[int] | None = None, **settings: Any) -> Tensor:
    """Return a sparse tensor as a dense one."""
    if size is None or not isinstance(indices, Tensor) or not isinstance(values, Tensor):
        return torch.sparse_coo_tensor(indices, values, size, **settings)
    dense = torch.zeros(*size, *values.shape[1:], dtype=settings.get("dtype") or values.dtype, device=values.device)
    return dense.index_put(tuple(indices.unbind()), values.to(dense.dtype), accumulate=True)


def _covariance(x: Tensor, *, correction: int = 1, **weights: Any) -> Tensor:
    """Return how rows vary with one another."""
    if any(weight is not None for weight in weights.values()) or x.is_complex():
        return torch.cov(x, correction=correction, **weights)
    rows = x[None] if x.ndim < 2 else x
    deviations = rows - rows.mean(1, keepdim=True)
    return (deviations @ deviations.T / max(rows.shape[1] - correction, 0)).squeeze()


def _correlation(x: Tensor) -> Tensor:
    """Return how rows vary with one another, as parts of how they vary themselves."""
    products = _covariance(x)
    if not products.ndim:
        return products / products
    sizes = products.diag().sqrt()
    return (products / sizes[:, None] / sizes).clip(-1, 1)


def _instance_norm(x: Tensor, running_mean: Any = None, running_var: Any = None, **settings: Any) -> Tensor:
    """Normalize by the samples; running statistics follow the mean of theirs."""
    if running_mean is None or not settings.get("use_input_stats", True):
        return F.instance_norm(x, running_mean, running_var, **settings)
    result = F.instance_norm(x, **settings)
    momentum, dims, x = settings.get("momentum", 0.1), list(range(2, x.ndim)), x.detach()
    for kept, now in ((running_mean, x.mean(dims)), (running_var, x.var(dims))):
        kept.mul_(1 - momentum).add_(now.mean(0), alpha=momentum)
    return result


def _gaussian_loss(  # noqa: PLR0913, PLR0917 -- as PyTorch's
    x: Tensor, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """Return the negative logarithm of a normal distribution; PyTorch asks data whether a variance is negative."""
    var = torch.as_tensor(var, dtype=x.dtype, device=x.device)
    var = var[..., None] if var.shape == x.shape[:-1] else var
    var = var + (var.detach().clamp(min=eps) - var.detach())
    loss: Tensor = (var.log() + (x - target).square() / var) / 2 + (log(2 * pi) / 2 if full else 0)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def _bags(x: Tensor, weight: Tensor, offsets: Tensor | None = None, *settings: Any, **named: Any) -> Tensor:
    """Add up, average or take the greatest of the rows of bags of one length; other bags are PyTorch's."""
    given = {**dict(zip(BAG_SETTINGS, settings, strict=False)), **named}
    if x.ndim != PAIR or any(given.get(name) for name in ("max_norm", "scale_grad_by_freq")):
        return F.embedding_bag(x, weight, offsets, **given)
    mode, shares, left_out = given.get("mode", "mean"), given.get("per_sample_weights"), given.get("padding_idx")
    rows = F.embedding(x, weight)
    rows = rows if shares is None else rows * shares[..., None]
    counts: Any = x.shape[1]
    if left_out is not None:
        inside = (x != left_out % len(weight))[..., None]
        rows, counts = rows.where(inside, -inf if mode == "max" else 0), inside.sum(1)
    if mode == "max":
        greatest = rows.gather(1, rows.detach().argmax(1, keepdim=True)).squeeze(1)
        return greatest if left_out is None else greatest.masked_fill(counts == 0, 0)
    result = rows.sum(1)
    return result if mode == "sum" else result / (counts if left_out is None else counts.clamp(min=1))


PAIR = 2
BAG_SETTINGS = (
    "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights", "include_last_offset",
    "padding_idx",
)  # fmt: skip
"""What functions of bags take besides, in order."""

STANDING_IN: Mapping[Callable[..., Any], Callable[..., Any]] = {
    F.batch_norm: batch_norm,
    torch.batch_norm: plain_batch_norm,
    F.instance_norm: _instance_norm,
    torch.bincount: _counted,
    torch.Tensor.bincount: _counted,
    F.ctc_loss: _ctc_loss,
    F.embedding_bag: _bags,
    F.gaussian_nll_loss: _gaussian_loss,
    **dict.fromkeys((torch.cov, torch.Tensor.cov), _covariance),
    **dict.fromkeys((torch.corrcoef, torch.Tensor.corrcoef), _correlation),
    torch.sparse_coo_tensor: _dense,
    torch.sparse.mm: torch.mm,
    torch.Tensor.coalesce: lambda x: x if x.layout is torch.strided else x.coalesce(),
}
"""By a function whose result has an extent that an export does not know, or is sparse, what is traced instead."""


GRADIENTS = (
    "torch.autograd.grad, or torch.func's, in forward: gradients of gradients are not taken; leave the penalty out, or "
    "write the derivative as operators"
)
BACKWARD = (
    "backward() in forward: the gradients of what is returned are taken here: return the loss, or the sum of several"
)
REFUSED: Mapping[Any, str] = {
    torch.Tensor.register_hook: "register_hook: a hook of a tensor would not run: remove it",
    torch.autograd.grad: GRADIENTS,
    "_make_dual": GRADIENTS,
    **dict.fromkeys((torch.Tensor.backward, torch.autograd.backward), BACKWARD),
}
"""By a function, or by the name of one that is not public, why it is refused."""

GET_DATA, SET_DATA = torch.Tensor.data.__get__, torch.Tensor.data.__set__  # type: ignore[attr-defined]
