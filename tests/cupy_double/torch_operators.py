"""What PyTorch's operators ask of a device: each that is no view launches at least one kernel."""

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
