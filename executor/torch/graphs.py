"""A step as a CUDA graph: all that its kernels queue is captured once, and then launched with one call."""

from __future__ import annotations

from functools import partial

import torch

from executor.kernels.call import Action
from executor.values import ArrayModule
from planner.errors import InputError


def captured(xp: ArrayModule, queue: Action) -> Action:
    """Capture what an action queues on CuPy's current stream, where PyTorch's is the same; return what launches it.

    What the action allocates, in pools of its own, lives as long as what is returned. Nothing runs yet. It must have
    run before, as kernels are compiled, and libraries make their workspaces, when they first run. Raises InputError for
    an action that cannot be captured, such as one that waits for the device.
    """
    graph, pool, here = torch.cuda.CUDAGraph(), xp.cuda.MemoryPool(), torch.cuda.current_stream()
    try:
        with xp.cuda.using_allocator(pool.malloc), torch.cuda.graph(graph, stream=here, capture_error_mode="relaxed"):
            queue()
    except (RuntimeError, NotImplementedError) as error:
        raise InputError(f"--graphs: a step cannot be captured: {str(error).splitlines()[0]}") from error
    return partial(_launched, graph, pool)


def _launched(graph: torch.cuda.CUDAGraph, _memory: object) -> None:
    graph.replay()
