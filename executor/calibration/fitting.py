"""From what was measured to figures that also hold for what was not."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from scipy.optimize import nnls

from executor.calibration.timing import Timed
from topologies import TransferAmounts
from topologies.schema import TransferCost

KINDS = ("send", "post", "fetch", "reduce")


def merged(timings: Iterable[Timed]) -> tuple[dict[str, float], dict[str, tuple[str, TransferAmounts]]]:
    """Return the mean over ranks of every task's seconds, and what the parts of transfers move."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    moved: dict[str, tuple[str, TransferAmounts]] = {}
    for timing in timings:
        moved.update(timing.moved)
        for name, value in timing.seconds.items():
            seconds[name].append(value)
    return {name: statistics.fmean(values) for name, values in seconds.items()}, moved


def transfer_costs(
    seconds: Mapping[str, float], moved: Mapping[str, tuple[str, TransferAmounts]]
) -> dict[str, TransferCost]:
    """Fit the costs of every kind of part of a transfer."""
    return {
        kind: _fitted([(amounts, seconds[name]) for name, (part, amounts) in moved.items() if part == kind])
        for kind in KINDS
    }


def _fitted(samples: Sequence[tuple[TransferAmounts, float]]) -> TransferCost:
    """Minimise the sum of squares of relative errors, without negative figures."""
    if not samples:
        return TransferCost()
    times = np.array([max(value, 1e-9) for _, value in samples])
    amounts = np.array([moved.amounts for moved, _ in samples], dtype=np.float64)
    scale = np.maximum(amounts.max(axis=0), 1.0)
    figures, _ = nnls(amounts / scale / times[:, None], np.ones(len(times)))
    return TransferCost(**dict(zip(TransferCost.__struct_fields__, (figures / scale).tolist(), strict=True)))


def message_line(seconds: Mapping[int, float]) -> tuple[float, float, float]:
    """Return latency, bytes per second and n-half of messages from the seconds of several sizes."""
    sizes = sorted(seconds)
    latency_s = seconds[sizes[0]]
    largest = sizes[-1]
    bandwidth = (largest - sizes[0]) / max(seconds[largest] - latency_s, 1e-9)
    beyond = [seconds[size] - latency_s - size / bandwidth for size in sizes[1:-1]]
    return latency_s, bandwidth, max(0.0, statistics.median(beyond)) * bandwidth
