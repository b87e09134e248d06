"""What PyTorch's operators ask of a device, where each that is no view launches a kernel, and what a GPU's refuse."""

import weakref
from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "item", "is_nonzero", "equal")
"""Operators whose result the host reads, or has a shape that the device tells."""

FREE = (
    "promote_types",
    "_unsafe_view",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "detach",
    "lift_fresh",
    "alias",
)
"""Operators that launch nothing."""


class Operators(TorchDispatchMode):
    """Counts operators that launch, those that wait, and bytes of the results that live at once."""

    def __init__(self):
        super().__init__()
        self.launches, self.waits, self.peak_bytes, self._bytes = Counter(), Counter(), 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        is_view = bool(func._schema.returns) and all(
            returned.alias_info is not None and not returned.alias_info.is_write for returned in func._schema.returns
        )
        if not is_view and name not in FREE:
            self.launches[name] += 1
        if name in WAITING or (name in ("index", "index_put", "index_put_") and _has_mask(args)):
            self.waits[name] += 1
        if not is_view:
            for tensor in tree_leaves(result):
                self._note(tensor, args, kwargs)
        return result

    def _note(self, tensor, args, kwargs):
        if not isinstance(tensor, torch.Tensor):
            return
        storage = tensor.untyped_storage()
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        if storage.data_ptr() in given or not storage.nbytes():
            return
        self._bytes += storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self._bytes)
        weakref.finalize(tensor, self._returned, storage.nbytes())

    def _returned(self, nbytes):
        self._bytes -= nbytes


def _has_mask(args):
    return any(isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in args[1])


class Strict(TorchDispatchMode):
    """Fails on operands that PyTorch's kernels for GPUs refuse and those for processors take.

    These are the checks of `native/cuda/Normalization.cu`, `native/ForeachUtils.h` and `native/cuda/FusedSgdKernel.cu`,
    and what `native/cuda/DilatedMaxPool2d.cu` takes for granted.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        if name in STRICT:
            given = zip((argument.name for argument in func._schema.arguments), args, strict=False)
            STRICT[name](**dict(given), **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _batch_norm(input, save_mean=None, save_invstd=None, out=None, **_):
    wide = torch.promote_types(input.dtype, torch.float32)
    assert all(saved is None or saved.dtype == wide for saved in (save_mean, save_invstd))
    assert out is None or out.is_contiguous()


def _batch_norm_backward(input, weight, save_mean, output_mask, **_):
    assert weight is not None or not any(output_mask[1:]), "expected a weight, whose gradient is wanted"
    assert save_mean.dtype == torch.promote_types(input.dtype, torch.float32)
    assert input.itemsize > 2, "every product is rounded to 16 bits (`Float2` of `native/cuda/Normalization.cuh`)"


def _convolution(input, **_):
    assert all(input.shape[2:]), f"Only zero batch or zero channel inputs are supported, but got {input.shape}"


def _max_pool_backward(grad_input=None, **_):
    assert grad_input is None or grad_input.is_contiguous()


def _fused_update(momentum=None, **lists):
    tensors = [
        value for value in lists.values() if isinstance(value, list) and value and value is not lists.get("state_steps")
    ]
    for each in zip(*tensors, strict=True):
        assert {(x.dtype, x.shape, x.stride()) for x in each} == {
            (tensors[0][0].dtype, each[0].shape, each[0].stride())
        }
    assert all(step.dtype == torch.float32 for step in lists.get("state_steps", ()))
    assert momentum is None or (momentum > 0) == (len(tensors) == len(("self", "grads", "momentum_buffer_list")))


STRICT = {
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "convolution": _convolution,
    "max_pool2d_with_indices_backward": _max_pool_backward,
    **dict.fromkeys(("_fused_sgd_", "_fused_adam_", "_fused_adamw_"), _fused_update),
}
