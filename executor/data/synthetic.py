"""Data that means nothing: images and labels from the global hash."""

from __future__ import annotations

import math
from dataclasses import replace

from executor.data.base import HeldOut, data_tensors
from executor.values import Array, ArrayModule, Tile, fill, stream
from planner.errors import DataError
from planner.graph.ir import Graph, Init, Tensor

UNIT_VARIANCE = math.sqrt(3.0)
"""Uniform values in [-sqrt(3), sqrt(3)) have variance 1."""


class Random:
    """Images from the global hash, with variance 1, and labels below the number of classes; new ones every step."""

    identity = "random"
    steps_per_epoch = 1
    held_out: HeldOut | None = None

    def __init__(self, graph: Graph, seed: int) -> None:
        self._seed = seed
        self._inits = {tensor.name: _random_init(graph, tensor) for tensor in data_tensors(graph)}

    def fill(self, xp: ArrayModule, out: Array, tile: Tile, step: int) -> None:
        """Write an input's tile into `out`; see DataSet."""
        random = replace(tile, tensor=replace(tile.tensor, init=self._inits[tile.tensor.name]))
        fill(xp, out, random, stream(self._seed, tile.tensor.name, step))


TRUTH_VALUES = 2
"""Whole numbers of which nothing is known are 0 or 1."""


def _random_init(graph: Graph, tensor: Tensor) -> Init:
    """Return how a tensor is filled."""
    init = tensor.init or Init("data")
    if tensor.dtype != "int32":
        return replace(init, kind="uniform", scale=UNIT_VARIANCE)
    logits = graph.metrics.get("logits")
    below = init.below or (TRUTH_VALUES if logits is None else graph.tensors[logits].shape[-1])
    if not init.below and logits is None and tensor.name == graph.metrics.get("labels"):
        raise DataError(f"input {tensor.name}: expected its initial value to tell the number of classes, found 0")
    return replace(init, kind="integers", below=below)
