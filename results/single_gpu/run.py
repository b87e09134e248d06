"""TensorFlow's published throughputs on one GPU of 2017, predicted from tables of single kernels."""

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
from results.experiment import Pages, publish, read_published, table
from results.single_gpu import devices, fitting, models
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

PEAKS = ("matmul", "convolution")
SQUARES = "gk210, depth by squares"
SHAPES = ("depth", "tile_edge", "transform")


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


def loss(rates: Rates, without: str | None = None) -> float:
    """Return the mean square of the logarithm of predicted over measured; every model but one counts once."""
    squares: dict[str, list[float]] = {}
    for run, figure in measured("gk210").items():
        squares.setdefault(run.split(",")[0], []).append(log(rates[run] / figure) ** 2)
    return mean(mean(errors) for model, errors in squares.items() if model != without)


def error_of_squares(k40: Description) -> float:
    """Return the mean error on the K40's products, which are of squares."""
    squares = [(devices.product(n, n, n), 2e-9 * n**3 / rate) for n, rate in PUBLISHED["k40_products"]["rows"]]
    return fitting.error(k40, squares)


def kernel_fits() -> dict[str, dict[str, float]]:
    """Fit the P100 on its products and convolutions; with its functions of shape, a peak on the K40's products.

    The other choice is the GK210 with the cost of a tile, too, fitted on the K40's.
    """
    single = list(devices.products(PUBLISHED["p100_products"]["rows"]))
    windows = list(devices.convolutions(PUBLISHED["p100_convolutions"]["rows"]))
    pcie = changed(described("p100-sxm2-16gb"), **P100_PCIE)
    peak = fitting.fitted(pcie, fitting.PEAK, partial(fitting.error, measured=single))
    p100 = fitting.fitted(changed(pcie, **peak), fitting.CONVOLUTIONS, partial(fitting.error, measured=windows))
    shape = {name: p100[name] for name in SHAPES}
    of_k40 = partial(fitting.fitted, changed(described("gk210"), **K40, **shape), loss=error_of_squares)
    return {"p100": peak | p100, "gk210": shape | of_k40(fitting.PEAK), SQUARES: shape | of_k40(fitting.SQUARES)}


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
    """All that the tables show."""
    fits = kernel_fits()
    k40 = changed(described("gk210"), **K40)
    of_squares = {name: error_of_squares(changed(k40, **fits[name])) for name in ("gk210", SQUARES)}
    gk210, squares = (changed(described("gk210"), **fits[name]) for name in ("gk210", SQUARES))
    rates, shares = held_out(gk210)
    by_squares, shares_by_squares = held_out(squares)
    peaks = {name: fits["p100"][name] for name in PEAKS}
    p100 = changed(described("p100-sxm2-16gb"), **fits["p100"])
    shared = {"convolution": shares[""]}
    fits["gk210"] |= shared
    fits[SQUARES] |= {"convolution": shares_by_squares[""]}
    return {
        "fits": fits,
        "error of the K40's products": of_squares,
        "shares": shares,
        "gk210": {
            "measured": measured("gk210"),
            "held out": rates,
            "fitted on all": predicted(changed(gk210, **shared), "gk210"),
            "held out, depth by squares": by_squares,
        },
        "p100": {
            "measured": measured("p100"),
            "own peaks": predicted(p100, "p100"),
            "the GK210's shares of peak": predicted(changed(p100, **fits["gk210"]), "p100"),
            "own peaks, depth by squares": predicted(changed(p100, **fits[SQUARES] | peaks), "p100"),
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


def fit_table(fits: Mapping[str, Any]) -> str:
    """Render what was fitted."""
    names = ["matmul", *fitting.CONVOLUTIONS]
    return table(["device", *names], ([name, *(f"{fit[key]:g}" for key in names)] for name, fit in fits.items()))


def verdict(record: Mapping[str, Any]) -> str:
    """Say how far off the predictions are."""
    lines = []
    for name, limit in (("gk210", 0.15), ("p100", 0.2)):
        for kind, rates in record[name].items():
            if kind != "measured":
                errors = [rates[run] / figure - 1 for run, figure in record[name]["measured"].items()]
                within = sum(abs(error) <= limit for error in errors)
                size = f"mean {mean(map(abs, errors)):.1%}, worst {max(errors, key=abs):+.1%}"
                lines.append(f"- {name}, {kind}: {within} of {len(errors)} within {limit:.0%}; {size}")
    shared, own = record["error of the K40's products"].values()
    lines.append(f"- the K40's products: mean error {shared:.1%} with the shared `depth`, {own:.1%} with their own")
    shares = ", ".join(f"{share:g} without {model}" for model, share in record["shares"].items() if model)
    lines.append(f"- `convolution` of the GK210: {shares}, {record['shares']['']:g} on all four models")
    return "\n".join(lines)


def pages(record: Any) -> Pages:
    """Return the README's tables."""
    tables = {name: throughput_table(record[name]) for name in ("gk210", "p100")}
    return {
        **tables,
        "fits": fit_table(record["fits"]),
        "verdict": verdict(record),
    }


if __name__ == "__main__":
    publish(HERE, data(), pages)
