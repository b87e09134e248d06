"""What a module's state dict holds, and which tensors of its graph that is."""

from __future__ import annotations

import torch
from torch import nn

from planner.graph.entries import content_digest
from planner.graph.ir import Entry, Graph
from planner.pytorch.capture.trace import TracedModule
from planner.pytorch.state.contents import is_known


def entries(module: nn.Module, trace: TracedModule, graph: Graph) -> dict[str, Entry]:
    """Return every entry of a module's state dict by its name, with the tensor of the graph that has its elements."""
    changed, names = trace.changed_buffers(), dict(trace.names())
    for name, buffer in module.named_buffers(remove_duplicate=False):
        if name in changed or name in graph.tensors:
            names[id(buffer)] = name
    described = {}
    for name, state in module.state_dict(keep_vars=True).items():
        if isinstance(state, torch.Tensor):
            first_name = names.get(id(state), name)
            tensor = graph.tensors.get(first_name)
            is_held = tensor is not None and tensor.init is not None and tensor.init.kind != "data"
            described[name] = _entry(state, first_name if is_held else None, changed.get(first_name, 0))
    return described


def _entry(state: torch.Tensor, tensor: str | None, changes: int) -> Entry:
    """Describe an entry; of one that is in no tensor by its content, or by how much it changes if it counts."""
    shape, dtype = tuple(state.shape), str(state.dtype).removeprefix("torch.")
    if tensor is None and changes:
        return Entry(None, shape, dtype, counts=changes if not state.is_floating_point() and shape == () else 0)
    if tensor is None and is_known(state):
        return Entry(None, shape, dtype, content_digest(state.detach().cpu().reshape(-1).view(torch.uint8).numpy()))
    return Entry(tensor, shape, dtype)
