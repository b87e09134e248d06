"""What Python does of a module as it is traced, where PyTorch's own code would ask data what to do."""

from __future__ import annotations

import dis
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.modules import transformer
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from planner.errors import GraphError
from planner.pytorch.packed import packed
from planner.pytorch.private import FakeTensor
from planner.pytorch.refusing import users_line


@contextmanager
def idioms_traced() -> Iterator[None]:
    """Within, layers of PyTorch are traced that would ask tensors for numbers."""
    forward, detect = _BatchNorm.forward, transformer._detect_is_causal_mask
    _BatchNorm.forward = lambda self, x: (_averaging_all if _averages_all(self) else forward)(self, x)  # type: ignore[method-assign, assignment]
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: bool(is_causal)  # a mask says it, too
    try:
        yield
    finally:
        _BatchNorm.forward, transformer._detect_is_causal_mask = forward, detect  # type: ignore[method-assign]


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
        if getattr(function, "__name__", "") == "_pack_padded_sequence":
            return packed(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


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
