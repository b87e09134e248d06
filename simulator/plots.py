"""Pictures of a simulation that recorded its messages: what happens when, and what goes where (Matplotlib)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from simulator.history import COMBINE, COMPUTE, PACK, UNPACK, WAIT, link_rates, memory_use, spans
from simulator.simulation import Simulation
from tensor_partitioner.display import exact_bytes, quantity

KINDS = {
    COMPUTE: ("computing", "#4c78a8"),
    PACK: ("packing", "#f2a541"),
    UNPACK: ("unpacking", "#b279a2"),
    COMBINE: ("combining", "#e45756"),
    WAIT: ("waiting for messages", "#d9d9d9"),
}
RECEIVING = ("receiving", "#54a24b")
LINKS_DRAWN, WORKERS_NAMED = 16, 16
RESOLUTION = 150  # dots per inch of what is drawn as dots, since there is much of it
WIDTH, ROW = 11.0, 0.34  # inches of a picture, and of one row of bars
BINS = 400  # of a link's use over the step
SECONDS, BYTES = EngFormatter(unit="s"), EngFormatter(unit="B")


def write_plots(simulation: Simulation, folder: Path, title: str) -> tuple[Path, ...]:
    """Write every picture of a simulation as SVG into a folder, which is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in PLOTS.items():
        figure = draw(simulation)
        axes = figure.axes[0]
        axes.set_title(f"{title}: {axes.get_title()}", fontsize="medium")
        path = folder / f"{name}.svg"
        figure.savefig(path)
        written.append(path)
    return tuple(written)


def timeline(simulation: Simulation) -> Figure:
    """Draw what every device does when, and below it in a thinner bar when it receives."""
    workers = range(len(simulation.program.workers))
    figure = _figure(len(workers) * 1.4)
    axes = figure.add_subplot(title="what each device does")
    drawn: set[str] = set()
    for worker in workers:
        bars: dict[str, list[tuple[float, float]]] = {}
        for span in spans(simulation, worker):
            bars.setdefault(span.kind, []).append((span.start_s, span.stop_s - span.start_s))
        for kind, found in bars.items():
            axes.broken_barh(found, (worker - 0.4, 0.55), color=KINDS[kind][1], linewidth=0, rasterized=True)
        drawn |= bars.keys()
        received = [(one.start_s, one.stop_s) for one in simulation.timeline.messages if one.target == worker]
        axes.broken_barh(_union(received), (worker + 0.19, 0.18), color=RECEIVING[1], linewidth=0, rasterized=True)
    axes.set_yticks(workers, [simulation.machine.devices[worker].name for worker in workers])
    axes.set_ylim(len(workers) - 0.4, -0.6)
    axes.set_ylabel("device")
    _over_time(axes, simulation)
    shown = [KINDS[kind] for kind in KINDS if kind in drawn] + [RECEIVING]
    _legend(figure, [Patch(color=color, label=label) for label, color in shown])
    return figure


def memory(simulation: Simulation) -> Figure:
    """Draw the bytes alive on every device over the step, those that use their memory alike by one line.

    Workers that have no buffers, such as a host that nothing is swapped to, have no line.
    """
    end_s = simulation.seconds or 1.0
    alike: dict[object, list[int]] = {}
    for worker in range(len(simulation.program.workers)):
        looks = tuple((round(BINS * at_s / end_s), nbytes) for at_s, nbytes in memory_use(simulation, worker))
        if looks:
            alike.setdefault(looks, []).append(worker)
    figure = _figure(10)
    axes = figure.add_subplot(title="memory in use", ylabel="bytes alive on a device")
    for workers in alike.values():
        at_s, nbytes = zip(*memory_use(simulation, workers[0]), strict=True)
        first = simulation.machine.devices[workers[0]].name
        label = first if len(workers) == 1 else f"{first} and {len(workers) - 1} like it"
        axes.step([*at_s, end_s], [*nbytes, nbytes[-1]], where="post", label=label, linewidth=1)
    axes.yaxis.set_major_formatter(BYTES)
    axes.set_ylim(bottom=0)
    _over_time(axes, simulation)
    if len(alike) <= WORKERS_NAMED:
        _legend(figure, axes.get_legend_handles_labels()[0])
    return figure


def links(simulation: Simulation) -> Figure:
    """Draw how much of each of the busiest links is in use over the step, each message at its mean rate."""
    busiest = sorted(simulation.links, key=lambda link: (-link.utilisation, link.name))[:LINKS_DRAWN]
    capacities = {one.name: one.capacity for one in simulation.machine.resources}
    rates, edges = link_rates(simulation), np.linspace(0.0, simulation.seconds or 1.0, BINS + 1)
    shares = [_binned(rates[link.name], edges) / capacities[link.name] for link in busiest]
    figure = _figure(len(busiest) + 3)
    axes = figure.add_subplot(title=f"use of the busiest {len(busiest)} of {len(simulation.links)} link directions")
    image = axes.imshow(
        100 * np.array(shares).reshape(len(busiest), BINS),
        aspect="auto", interpolation="nearest", cmap="viridis", vmin=0, vmax=100,
        extent=(0.0, edges[-1], len(busiest) - 0.5, -0.5),
    )  # fmt: skip
    axes.set_yticks(range(len(busiest)), [link.name for link in busiest])
    axes.set_ylabel("link")
    _over_time(axes, simulation)
    figure.colorbar(image, ax=axes, label="in use (% of the bandwidth)")
    return figure


def byte_matrix(simulation: Simulation) -> Figure:
    """Draw the bytes from each worker (row) to each (column)."""
    counted = simulation.timeline.bytes
    workers = range(len(counted))
    figure = _figure(max(10.0, len(workers) * 1.5), WIDTH * 0.66)
    title = f"bytes per step: {exact_bytes(int(counted.sum()))}"
    axes = figure.add_subplot(title=title, xlabel="to worker", ylabel="from worker")
    image = axes.imshow(counted, cmap="Blues", vmin=0)
    if len(workers) <= WORKERS_NAMED:
        axes.set_xticks(workers)
        axes.set_yticks(workers)
        for sender, receiver in np.argwhere(counted):
            nbytes = int(counted[sender, receiver])
            color = "white" if nbytes > counted.max() / 2 else "black"
            text = quantity(nbytes, "B")
            axes.text(receiver, sender, text, ha="center", va="center", color=color, fontsize="x-small")
    figure.colorbar(image, ax=axes, label="bytes", format=BYTES)
    return figure


def _figure(rows: float, width: float = WIDTH) -> Figure:
    return Figure(figsize=(width, 1.6 + rows * ROW), layout="constrained", dpi=RESOLUTION)


def _over_time(axes: Axes, simulation: Simulation) -> None:
    axes.set_xlim(0.0, simulation.seconds or 1.0)
    axes.set_xlabel("time from the start of the step")
    axes.xaxis.set_major_formatter(SECONDS)


def _legend(figure: Figure, handles: Sequence[Artist]) -> None:
    figure.legend(handles=handles, loc="outside right upper", fontsize="small", frameon=False)


def _union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Unite intervals (begin, end): beginnings and lengths that do not overlap."""
    union: list[list[float]] = []
    for begin, end in sorted(intervals):
        if union and begin <= union[-1][1]:
            union[-1][1] = max(union[-1][1], end)
        else:
            union.append([begin, end])
    return [(begin, end - begin) for begin, end in union]


def _binned(rates: Sequence[tuple[float, float]], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of a rate, given from each moment on, between every two edges."""
    since, rate = (np.array(column) for column in zip(*rates, strict=True))
    carried = np.concatenate([[0.0], np.cumsum(rate[:-1] * np.diff(since))])
    return np.asarray(np.diff(np.interp(edges, since, carried)) / np.diff(edges))


PLOTS: Mapping[str, Callable[[Simulation], Figure]] = {
    "timeline": timeline,
    "memory": memory,
    "links": links,
    "bytes": byte_matrix,
}
