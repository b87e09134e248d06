"""TensorFlow's published throughputs on one GPU of 2017, predicted from tables of single kernels.

    python -m results single_gpu

writes data.json, throughput.svg and the tables in README.md, all beside this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from itertools import chain
from math import log
from pathlib import Path
from statistics import mean
from typing import Any

import planner
from planner.program.tasks import Program
from results.experiment import Pages, filled, publish, read_published, table
from results.single_gpu import devices, fitting, models, picture
from results.single_gpu.devices import Description, changed, described
from simulator.interpreter import interpret

HERE = Path(__file__).parent
PUBLISHED = read_published(HERE)
Rates = dict[str, float]
"""Images per second by "model, batch"."""

K40 = {"units": 15, "peak_flop_per_s": 5.04e12, "memory_bandwidth_bytes_per_s": 288.0e9}
"""A K40 at 875 MHz, the clock of its table: 15 of a GK210's multiprocessors instead of 13, and faster memory."""

P100_PCIE = {"peak_flop_per_s": 9.34e12}
"""The P100 of the table of kernels, the one with PCIe, at 1303 MHz."""

OWN_PEAKS = ("matmul", "convolution")
SHAPES = ("tile_edge", "transform")


@lru_cache
def program_of(model: str, batch: int) -> Program:
    """Return what one worker does in a training step."""
    return planner.lower(planner.plan(models.build(model, batch), workers=1))


def predicted(device: Description, name: str) -> Rates:
    """Return the simulator's images per second of every run that was measured on the device of this name."""
    machine = devices.machine(device)
    runs = [(model, batch) for model, batch, _ in PUBLISHED["throughput"][name]]
    return {f"{run[0]}, {run[1]}": run[1] / interpret(program_of(*run), machine).seconds for run in runs}


def measured(name: str) -> Rates:
    """Return the published images per second."""
    return {f"{model}, {batch}": figure for model, batch, figure in PUBLISHED["throughput"][name]}


def loss(found: Rates, without: str | None = None) -> float:
    """Return the mean square of the logarithm of predicted over measured; every model but one counts once."""
    squares: dict[str, list[float]] = {}
    for run, figure in measured("gk210").items():
        squares.setdefault(run.split(",")[0], []).append(log(found[run] / figure) ** 2)
    return mean(mean(errors) for model, errors in squares.items() if model != without)


def kernel_fits() -> dict[str, dict[str, float]]:
    """Fit the P100's peak of products on its products and the rest on its convolutions; peak and depth on the K40's."""
    single = list(devices.products(PUBLISHED["p100_products"]["rows"]))
    windows = list(devices.convolutions(PUBLISHED["p100_convolutions"]["rows"]))
    cubes = [(devices.product(n, n, n), 2e-9 * n**3 / rate) for n, rate in PUBLISHED["k40_products"]["rows"]]
    pcie = changed(described("p100-sxm2-16gb"), **P100_PCIE)
    peak = fitting.fitted(pcie, fitting.PEAK, partial(fitting.error, measured=single))
    p100 = fitting.fitted(changed(pcie, **peak), fitting.CONVOLUTIONS, partial(fitting.error, measured=windows))
    shape = {name: p100[name] for name in SHAPES}
    k40 = changed(described("gk210"), **K40, **shape)
    return {
        "p100": peak | p100,
        "gk210": fitting.fitted(k40, fitting.PRODUCTS, partial(fitting.error, measured=cubes)) | shape,
    }


def held_out(device: Description) -> tuple[Rates, dict[str, float]]:
    """Predict every model with `convolution` fitted on the others; return that and what each fit found, "" by all."""
    tried = {share: predicted(changed(device, convolution=share), "gk210") for share in fitting.SHARES}
    runs = measured("gk210")
    shares = {
        without: min(tried, key=lambda share: loss(tried[share], without))
        for without in sorted({run.split(",")[0] for run in runs} | {""})
    }
    return {run: tried[shares[run.split(",")[0]]][run] for run in runs}, shares


def data() -> dict[str, Any]:
    """All that the tables and the picture show."""
    fits = kernel_fits()
    gk210 = changed(described("gk210"), **fits["gk210"])
    rates, shares = held_out(gk210)
    gk210 = changed(gk210, convolution=shares[""])
    p100 = changed(described("p100-sxm2-16gb"), **fits["p100"])
    own = {name: fits["p100"][name] for name in OWN_PEAKS}
    carried = changed(p100, **fits["gk210"], convolution=shares[""])
    return {
        "fits": {**fits, "gk210": {**fits["gk210"], "convolution": shares[""]}},
        "shares": shares,
        "gk210": {"measured": measured("gk210"), "held out": rates, "fitted on all": predicted(gk210, "gk210")},
        "p100": {
            "measured": measured("p100"),
            "own kernels": predicted(p100, "p100"),
            "GK210's, own peaks of kernels": predicted(changed(carried, **own), "p100"),
            "GK210's, data sheet's peak": predicted(carried, "p100"),
        },
    }


def throughput_table(rates: Mapping[str, Rates]) -> str:
    """Render images per second, measured and predicted, with the error."""
    first, *others = rates
    columns = ["model, batch", first, *chain.from_iterable((name, "error") for name in others)]
    rows = []
    for run, figure in rates[first].items():
        row = [run, f"{figure:g}"]
        for name in others:
            row += [f"{rates[name][run]:.4g}", f"{rates[name][run] / figure - 1:+.1%}"]
        rows.append(row)
    return table(columns, rows)


def fit_table(found: Mapping[str, Any]) -> str:
    """Render what was fitted."""
    names = ["matmul", *fitting.CONVOLUTIONS]
    return table(["device", *names], ([name, *(f"{fit[key]:g}" for key in names)] for name, fit in found.items()))


def verdict(found: Mapping[str, Any]) -> str:
    """Say how far off the predictions are."""
    lines = []
    for name, limit in (("gk210", 0.15), ("p100", 0.2)):
        for kind, rates in found[name].items():
            if kind != "measured":
                errors = [rates[run] / figure - 1 for run, figure in found[name]["measured"].items()]
                within = sum(abs(error) <= limit for error in errors)
                size = f"mean {mean(map(abs, errors)):.1%}, worst {max(errors, key=abs):+.1%}"
                lines.append(f"- {name}, {kind}: {within} of {len(errors)} within {limit:.0%}; {size}")
    shares = ", ".join(f"{share:g} without {model}" for model, share in found["shares"].items() if model)
    lines.append(f"- `convolution` of the GK210: {shares}, {found['shares']['']:g} on all four models")
    return "\n".join(lines)


def pages(found: Any) -> Pages:
    """Return the README with its tables, and the picture."""
    tables = {name: throughput_table(found[name]) for name in ("gk210", "p100")}
    readme = filled(HERE / "README.md", **tables, fits=fit_table(found["fits"]), verdict=verdict(found))
    return {"README.md": readme, "throughput.svg": picture.draw(found)}


if __name__ == "__main__":
    publish(HERE, data(), pages)
