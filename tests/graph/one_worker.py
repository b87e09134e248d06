"""Runs a graph on one worker with the executor's kernels, on values drawn from a NumPy generator."""

import numpy as np

import tdl
from executor.kernels import KERNELS, KernelCall, run as run_kernel
from planner.graph.ir import array_of


def draw(graph, seed=0):
    """Values for every tensor that no node produces; weights that start at zeros or ones are moved off them."""
    rng = np.random.default_rng(seed)
    return {tensor.name: _values(tensor, rng) for tensor in graph.tensors.values() if tensor.init is not None}


def _values(tensor, rng):
    if tensor.init.kind == "values":
        return array_of(tensor)
    if tensor.dtype == "int32":
        return rng.integers(0, tensor.init.below, tensor.shape, dtype=np.int32)
    if tensor.role == "state":
        values = np.zeros(tensor.shape)
    elif tensor.init.kind in ("zeros", "ones"):
        values = (tensor.init.kind == "ones") + (tensor.role == "weight") * rng.uniform(-0.5, 0.5, tensor.shape)
    else:
        scale = tensor.init.scale if tensor.init.kind == "uniform" else 1.0
        values = rng.uniform(-scale, scale, tensor.shape)
    return np.asarray(values, dtype=tensor.dtype)


def run(graph, values):
    """The values of all tensors after one iteration."""
    values = dict(values)
    for node in graph.nodes:
        operands = tuple(values[name] for name in node.inputs)
        shapes = [operand.shape for operand in operands]
        description = tdl.catalog[node.op].describe(tuple(map(len, shapes)), node.attrs)
        extents = description.extents(shapes, node.attrs)
        tensors = [graph.tensors[name] for name in node.outputs]
        outputs = tuple(np.full(tensor.shape, -77, dtype=tensor.dtype) for tensor in tensors)
        ranges = {variable: (0, extent) for variable, extent in extents.items()}
        origins = tuple((0,) * len(shape) for shape in shapes)
        run_kernel(KERNELS[node.op], KernelCall(np, operands, outputs, node.attrs, ranges, origins))
        values.update(zip(node.outputs, outputs, strict=True))
    return values


def weight_gradients(graph):
    """From each trained weight to its gradient, read off the update nodes."""
    producers = {output: node for node in graph.nodes for output in node.outputs}
    return {
        source: producers[target].inputs[1]
        for source, target in graph.updates.items()
        if graph.tensors[source].role == "weight"
    }


def difference(values, expected, floor=1e-300):
    """Largest difference relative to the largest expected value, or to `floor` where that is larger."""
    values, expected = np.asarray(values, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    assert values.shape == expected.shape
    return np.max(np.abs(values - expected)) / max(np.max(np.abs(expected)), floor)
