"""Least mean error of the logarithm of seconds, over all points of a grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import log
from statistics import mean

from results.single_gpu.devices import Description, Measured, changed, device

Grid = Mapping[str, Sequence[float]]

SHARES = tuple(round(0.2 + 0.01 * step, 2) for step in range(81))
PEAK: Grid = {"matmul": SHARES}
SQUARES: Grid = {"matmul": SHARES, "depth": (0, 8, 16, 32, 64, 96, 128, 192, 256)}
CONVOLUTIONS: Grid = {
    "convolution": (0.6, 0.7, 0.8, 0.9, 1.0),
    "depth": (0, 8, 16, 32, 64),
    "tile_edge": (4, 8, 16, 32, 64),
    "transform": (0.5, 0.6, 0.7, 0.85, 1.0),
}


def fitted(start: Description, grid: Grid, loss: Callable[[Description], float]) -> dict[str, float]:
    """Return the figures of least loss."""
    points = [dict(zip(grid, figures, strict=True)) for figures in product(*grid.values())]
    return min(points, key=lambda point: loss(changed(start, **point)))


def error(description: Description, measured: Sequence[Measured]) -> float:
    """Return the mean of |log(predicted / measured)|; a launch belongs to every kernel."""
    gpu = device(description)
    launch_s, host_s = gpu.spec.launch_latency_s, gpu.spec.host_launch_s
    predicted = (max(gpu.kernel_s(kernel) + launch_s, host_s) for kernel, _ in measured)
    return mean(abs(log(predicted_s / seconds)) for predicted_s, (_, seconds) in zip(predicted, measured, strict=True))
