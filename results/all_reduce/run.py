"""An all-reduce on 2 to 8 A100s, predicted from point-to-point links, beside published measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from results.all_reduce import picture, simulated
from results.experiment import Pages, publish, read_published, table
from topologies import library

HERE = Path(__file__).parent
MIB = 1 << 20
FITTED_GPUS, FITTED_MIB = (2, 8), 64
CANDIDATES = range(0, 4_000_001, 20_000)
SHOWN = (1, 2, 4, 8, 16, 32, 64, 256, 1024)
RANGES = {"1 MiB": (1, 1), "2 to 7 MiB": (2, 7), "8 to 63 MiB": (8, 63), "64 MiB to 1 GiB": (64, 1024)}


def loss(half_bandwidth_bytes: float, measured: Mapping[int, float]) -> float:
    """Return the sum of squared relative errors at the fitted size, given microseconds by GPUs."""
    on = simulated.machine(half_bandwidth_bytes)
    found = {gpus: simulated.seconds(on, gpus, [FITTED_MIB * MIB])[0] * 1e6 for gpus in measured}
    return sum((found[gpus] / measured[gpus] - 1) ** 2 for gpus in measured)


def measured_data() -> dict[str, Any]:
    """Fit the cost of a message on two points, and predict all of them by what the link's description says."""
    published = read_published(HERE)
    at = published["mib"].index(FITTED_MIB)
    points = {gpus: published["microseconds"][str(gpus)][at] for gpus in FITTED_GPUS}
    fitted = min(CANDIDATES, key=lambda candidate: loss(candidate, points))
    sizes = [mib * MIB for mib in published["mib"]]
    on = simulated.machine()
    return {
        "machine": simulated.MACHINE,
        "link": simulated.LINK,
        "fitted_on_gpus": FITTED_GPUS,
        "fitted_on_mib": FITTED_MIB,
        "fitted_half_bandwidth_bytes": fitted,
        "half_bandwidth_bytes": library.link_types()[simulated.LINK].half_bandwidth_bytes,
        "microseconds": {
            gpus: [round(one * 1e6, 2) for one in simulated.seconds(on, int(gpus), sizes)]
            for gpus in published["microseconds"]
        },
    }


def ratios(data: Any, least: int, most: int) -> dict[str, list[float]]:
    """Return predicted over measured by GPUs, at sizes from `least` to `most` MiB, without the points fitted on."""
    published = read_published(HERE)

    def of(gpus: str) -> Iterator[float]:
        curves = zip(published["mib"], data["microseconds"][gpus], published["microseconds"][gpus], strict=True)
        fitted = data["fitted_on_mib"] if int(gpus) in data["fitted_on_gpus"] else None
        return (found / one for mib, found, one in curves if least <= mib <= most and mib != fitted)

    return {gpus: list(of(gpus)) for gpus in published["microseconds"]}


def shown_table(data: Any) -> str:
    """Render predicted over measured at a few sizes."""
    rows = []
    for size in SHOWN:
        cells = ratios(data, size, size).values()
        rows.append([f"{size} MiB", *(f"{one[0]:.2f}" if one else "fitted on" for one in cells)])
    return table(["size", *(f"{gpus} GPUs" for gpus in data["microseconds"])], rows)


def scores_table(data: Any) -> str:
    """Render mean and largest errors by ranges of sizes."""
    rows = []
    for name, (least, most) in RANGES.items():
        found = ratios(data, least, most)
        errors = [one - 1 for curve in found.values() for one in curve]
        worst = {gpus: max((one - 1 for one in curve), key=abs) for gpus, curve in found.items() if curve}
        where = max(worst, key=lambda gpus: abs(worst[gpus]))
        rows.append([name, len(errors), f"{mean(map(abs, errors)):.1%}", f"{worst[where]:+.1%} ({where} GPUs)"])
    return table(["sizes", "points", "mean error", "largest"], rows)


def says(data: Any) -> str:
    """Say what was fitted, and whether the machine's description has it."""
    bytes_per_s = simulated.machine().bandwidth_bytes_per_s(0, 1)
    fitted, stated = data["fitted_half_bandwidth_bytes"], data["half_bandwidth_bytes"]
    return (
        f"Fitted: {fitted / 1e6:.2f} MB on the two points marked; `{data['link']}` has {stated / 1e6:.2f} MB. "
        f"With {bytes_per_s / 1e9:g} GB/s from a GPU to the switch that is {stated / bytes_per_s * 1e6:.1f} "
        "microseconds a message."
    )


def pages(data: Any) -> Pages:
    """Return the README's tables, and the picture."""
    return {
        "fitted": says(data),
        "scores": scores_table(data),
        "ratios": shown_table(data),
        "curves.svg": picture.draw(data, read_published(HERE)),
    }


if __name__ == "__main__":
    publish(HERE, measured_data(), pages)
