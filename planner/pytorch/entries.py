"""What a module's state dict holds, and which tensors of its graph that is."""

from __future__ import annotations

import torch
from torch import nn

from planner.graph.entries import content_digest
from planner.graph.ir import Entry, Graph
from planner.pytorch.tracing import Trace, is_known


def entries(module: nn.Module, trace: Trace, graph: Graph) -> dict[str, Entry]:
    """Return every entry of a module's state dict by its name, with the tensor of the graph that has its elements."""
    changed, names = trace.changed_buffers(), trace.names()
    found = {}
    for name, one in module.state_dict(keep_vars=True).items():
        if isinstance(one, torch.Tensor):
            own = names.get(id(one), name)
            tensor = graph.tensors.get(own)
            is_held = tensor is not None and tensor.init is not None and tensor.init.kind != "data"
            found[name] = _entry(one, own if is_held else None, name in changed)
    return found


def _entry(one: torch.Tensor, tensor: str | None, changes: bool) -> Entry:
    """Describe an entry; of one that is in no tensor, and stays as it is, by its content."""
    shape, dtype = tuple(one.shape), str(one.dtype).removeprefix("torch.")
    if tensor is None and changes:
        return Entry(None, shape, dtype, counts=not one.is_floating_point() and shape == ())
    if tensor is None and is_known(one):
        return Entry(None, shape, dtype, content_digest(one.detach().cpu().reshape(-1).view(torch.uint8).numpy()))
    return Entry(tensor, shape, dtype)
