"""NCCL's operations on nodes of A100, H200 and B200, predicted from what machines say, beside published times."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from results.collectives import simulated
from results.collectives.fitting import Fit, Row, fitted_entries, fitted_share, halves, predicted
from results.experiment import Pages, publish, read_published, table
from topologies import load_topology, reading
from topologies.schema import Algorithm

HERE = Path(__file__).parent
MIB = 1 << 20
A100 = "8x A100 of vTrain"
MACHINES: Mapping[tuple[str, int], str] = {
    ("8x H200 HGX", 1): "hgx-h200",
    ("8x B200", 1): "p6-b200.48xlarge",
    ("P6-B200", 1): "p6-b200.48xlarge",
    ("P6-B200", 4): "p6-b200-nodes-4",
    ("8x A100 NVLink3", 1): "p4d.24xlarge",
    (A100, 1): "p4d.24xlarge",
}
"""The machine that stands for a published one of so many nodes."""

ALGORITHMS: Mapping[str, Algorithm | None] = {"NVLS": "in-switch", "Ring": "ring", "NCCL choice": None}
BUS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}
"""nccl-tests' bus bandwidth: so many times (n - 1) / n of the payload by time."""

FITS = (
    Fit("p4d.24xlarge", "ring", ("all-reduce",), hops=True),
    Fit("hgx-h200", "in-switch", ("all-reduce",)),
    Fit("p6-b200.48xlarge", "in-switch", ("all-reduce",)),
    Fit("p6-b200-nodes-4", "hierarchical", ("all-reduce",), nodes="several"),
)
SHARES = ("hgx-h200", "p6-b200.48xlarge")
"""Machines of whose rings only large payloads were published."""

PAIRS_FITTED_GPUS, PAIRS_FITTED_MIB = (2, 8), 64
CANDIDATES = range(0, 4_000_001, 20_000)
RANGES = {"below 1 MiB": (0, MIB - 1), "1 to 7 MiB": (MIB, 8 * MIB - 1), "from 8 MiB on": (8 * MIB, 1 << 40)}


def rows() -> list[Row]:
    """Return everything published, in seconds."""
    published = read_published(HERE)
    measurements = []
    for operation, name, nodes, devices, algorithm, nbytes, rate in published["rows"]:
        seconds = nbytes * BUS[operation] * (devices - 1) / devices / (rate * 1e9)
        machine = MACHINES[name, nodes]
        measurements.append(Row(machine, nodes, operation, devices, ALGORITHMS[algorithm], nbytes, seconds, name))
    for gpus, curve in published["a100"]["microseconds"].items():
        for mib, microseconds in zip(published["a100"]["mib"], curve, strict=True):
            machine = MACHINES[A100, 1]
            measurements.append(Row(machine, 1, "all-reduce", int(gpus), None, mib * MIB, microseconds * 1e-6, A100))
    return measurements


def fits() -> dict[str, list[dict[str, Any]]]:
    """Fit what machines say, each on its half of the rows."""
    fitted, _ = halves(rows())
    entries: dict[str, list[dict[str, Any]]] = {}
    for fit in FITS:
        chosen = [row for row in fitted if row.machine == fit.machine and row.algorithm in (None, fit.algorithm)]
        entries.setdefault(fit.machine, []).extend(msgspec.to_builtins(fitted_entries(fit, chosen)))
    for machine in SHARES:
        chosen = [row for row in fitted if row.machine == machine and row.algorithm == "ring"]
        entries[machine].append({"algorithm": "ring", "bandwidth_share": fitted_share(chosen)})
    return entries


def pairs_loss(half_bandwidth_bytes: float, measured: Mapping[int, float]) -> float:
    """Return the sum of squared relative errors of messages between pairs, given microseconds by GPUs."""
    on = simulated.machine(half_bandwidth_bytes)
    microseconds = {gpus: simulated.seconds(on, gpus, [PAIRS_FITTED_MIB * MIB])[0] * 1e6 for gpus in measured}
    return sum((microseconds[gpus] / measured[gpus] - 1) ** 2 for gpus in measured)


def pairs_points() -> dict[int, float]:
    """Return the microseconds on which the cost of a message between a pair is fitted, by GPUs."""
    published = read_published(HERE)["a100"]
    at = published["mib"].index(PAIRS_FITTED_MIB)
    return {gpus: published["microseconds"][str(gpus)][at] for gpus in PAIRS_FITTED_GPUS}


def measured_data() -> dict[str, Any]:
    """Fit on half of the rows; predict all of them by what the package's machines say."""
    everything = rows()
    _, judged = halves(everything)
    machines = {name: load_topology(name) for name in MACHINES.values()}
    points, on = pairs_points(), simulated.machine()
    published = read_published(HERE)["a100"]
    sizes = [mib * MIB for mib in published["mib"]]
    return {
        "fits": fits(),
        "predicted_s": [predicted(machines[row.machine], row) for row in everything],
        "judged": [row in judged for row in everything],
        "pairs": {
            "machine": simulated.MACHINE,
            "link": simulated.LINK,
            "fitted_half_bandwidth_bytes": min(CANDIDATES, key=lambda candidate: pairs_loss(candidate, points)),
            "half_bandwidth_bytes": reading.link_types()[simulated.LINK].half_bandwidth_bytes,
            "seconds": {gpus: simulated.seconds(on, int(gpus), sizes) for gpus in published["microseconds"]},
        },
    }


def errors(data: Any, *, judged: bool) -> Iterator[tuple[Row, float]]:
    """Yield predicted over measured less one of the rows that judge, or of those that were fitted on."""
    for row, seconds, judges in zip(rows(), data["predicted_s"], data["judged"], strict=True):
        if judges == judged:
            yield row, seconds / row.seconds - 1


def pairs_errors(data: Any) -> Iterator[tuple[Row, float]]:
    """Yield the same of messages between pairs, but for the points that these were fitted on."""
    a100 = iter([row for row in rows() if row.name == A100])
    for curve in data["pairs"]["seconds"].values():
        for seconds in curve:
            row = next(a100)
            if (row.devices, row.nbytes) not in [(gpus, PAIRS_FITTED_MIB * MIB) for gpus in PAIRS_FITTED_GPUS]:
                yield row, seconds / row.seconds - 1


def scores_table(points: Sequence[tuple[Row, float]]) -> str:
    """Render errors by machine and size."""
    lines = []
    for name, nodes in MACHINES:
        of_machine = [(row, error) for row, error in points if (row.name, row.nodes) == (name, nodes)]
        for label, (least, most) in RANGES.items():
            if chosen := [(row, error) for row, error in of_machine if least <= row.nbytes <= most]:
                lines.append([f"{name}, {_nodes(nodes)}", label, *_scores(chosen)])
    return table(["measured on", "sizes", "points", "mean error", "largest", "near enough"], lines)


def _scores(points: Sequence[tuple[Row, float]]) -> list[object]:
    worst, error = max(points, key=lambda pair: abs(pair[1]))
    near = sum(abs(error) <= row.tolerance for row, error in points)
    where = f"{error:+.1%} ({worst.operation}, {worst.devices} GPUs, {_size(worst.nbytes)})"
    mean = statistics.mean(abs(error) for _, error in points)
    return [len(points), f"{mean:.1%}", where, f"{near} of {len(points)}"]


def missed_table(data: Any) -> str:
    """Render judged rows that are not near enough, beside the nearest sizes that were fitted on of as many GPUs."""
    fitted, by_size = [row for row, _ in errors(data, judged=False)], attrgetter("nbytes")
    lines = []
    for row, error in errors(data, judged=True):
        if abs(error) > row.tolerance:
            alike = [other for other in fitted if (other.curve, other.devices) == (row.curve, row.devices)]
            less = max((other for other in alike if other.nbytes < row.nbytes), key=by_size, default=None)
            more = min((other for other in alike if other.nbytes > row.nbytes), key=by_size, default=None)
            where = f"{row.name}, {_nodes(row.nodes)}, {row.devices} GPUs"
            lines.append([where, _size(row.nbytes), _microseconds(row), f"{error:+.1%}", _point(less), _point(more)])
    return table(["missed", "size", "measured, us", "error", "fitted on below", "fitted on above"], lines)


def _microseconds(row: Row) -> str:
    return f"{row.seconds * 1e6:,.0f}"


def _point(row: Row | None) -> str:
    return "-" if row is None else f"{_size(row.nbytes)}: {_microseconds(row)}"


def entries_table(data: Any) -> str:
    """Render what was fitted."""
    lines = [
        [
            f"`{machine}`",
            entry["algorithm"],
            "-" if "latency_s" not in entry else f"{entry['latency_s'] * 1e6:.3g}",
            "-" if entry.get("hop_s") is None else f"{entry['hop_s'] * 1e6:.3g}",
            f"{entry['bandwidth_share']:.1%}",
        ]
        for machine, entries in data["fits"].items()
        for entry in entries
    ]
    return table(["machine", "algorithm", "latency, us", "each message in a row, us", "of the links' bandwidth"], lines)


def pairs_says(data: Any) -> str:
    """Say what was fitted of messages between pairs, and how near they come."""
    pairs, points = data["pairs"], list(pairs_errors(data))
    large = [abs(error) for row, error in points if row.nbytes >= 8 * MIB]
    small = [abs(error) for row, error in points if row.nbytes < 8 * MIB]
    fitted, stated = pairs["fitted_half_bandwidth_bytes"] / 1e6, pairs["half_bandwidth_bytes"] / 1e6
    return (
        f"Fitted on {PAIRS_FITTED_MIB} MiB on 2 and on 8 GPUs: {fitted:.2f} MB; `{pairs['link']}` has {stated:.2f} MB. "
        f"Mean error {statistics.mean(small):.1%} below 8 MiB and {statistics.mean(large):.1%} from there on; "
        f"at most {max(small):.1%} and {max(large):.1%}."
    )


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _size(nbytes: int) -> str:
    return f"{nbytes >> 10} KiB" if nbytes < MIB else f"{nbytes >> 20} MiB"


def pages(data: Any) -> Pages:
    """Return the README's tables."""
    return {
        "entries": entries_table(data),
        "judged": scores_table(list(errors(data, judged=True))),
        "missed": missed_table(data),
        "fitted": scores_table(list(errors(data, judged=False))),
        "pairs": pairs_says(data),
    }


if __name__ == "__main__":
    publish(HERE, measured_data(), pages)
