"""Devices with figures that may be changed, machines of one of them, and the kernels that were measured alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import msgspec
import yaml

from topologies import Device, Kernel, Machine, Product, parse_topology
from topologies.kernels import Window
from topologies.reading import DEVICES
from topologies.schema import DeviceSpec

Description = dict[str, Any]
"""What a file in topologies/devices holds."""

ITEM_BYTES = 4
Measured = tuple[Kernel, float]
"""A kernel and its seconds."""

float32 = partial(Kernel, dtype="float32")


def described(name: str) -> Description:
    """Read a device of the library."""
    data = yaml.safe_load((DEVICES / f"{name}.yaml").read_text())
    description: Description = msgspec.to_builtins(msgspec.convert(data, DeviceSpec, strict=False))
    return description


def changed(device: Description, **figures: float) -> Description:
    """Return the same device with other figures: peaks, efficiencies, and the parameters of products."""
    new = deepcopy(device)
    for name, figure in figures.items():
        where = next(part for part in (new["efficiency"], new["products"], new) if name in part)
        where[name] = {"float32": figure} if name == "peak_flop_per_s" else figure
    return new


def machine(device: Description) -> Machine:
    """Return a machine of one such device."""
    header = {"format": "topology/1", "name": device["name"], "description": "one device"}
    return parse_topology(
        json.dumps({**header, "device_types": [device], "devices": [{"name": "gpu0", "type": device["name"]}]})
    )


def device(description: Description) -> Device:
    """Return the device itself."""
    return machine(description).devices[0]


def products(rows: list[list[float]]) -> Iterator[Measured]:
    """Yield matrix products of m, n, k, milliseconds."""
    for m, n, k, milliseconds in rows:
        yield product(int(m), int(n), int(k)), milliseconds / 1e3


def product(m: int, n: int, k: int) -> Kernel:
    """Return a matrix product."""
    touched = ITEM_BYTES * (m * k + k * n + m * n)
    return float32("matmul", operations=2.0 * m * n * k, nbytes=touched, product=Product(1, m, n, k))


def convolutions(rows: list[list[Any]]) -> Iterator[Measured]:
    """Yield convolutions and their two gradients, where they were measured."""
    for *sizes, forward, of_input, of_weight in rows:
        for kernel, milliseconds in zip(_convolution(*sizes), (forward, of_input, of_weight), strict=True):
            if milliseconds is not None:
                yield kernel, milliseconds / 1e3


def _convolution(*sizes: int) -> Iterator[Kernel]:
    batch, channels, height, width, filters, ky, kx, py, px, sy, sx = sizes
    pixels = (height + 2 * py - ky) // sy + 1, (width + 2 * px - kx) // sx + 1
    inside, outside, taps = batch * height * width, batch * pixels[0] * pixels[1], ky * kx
    touched = ITEM_BYTES * (inside * channels + outside * filters + channels * filters * taps)
    dense = sy == sx == 1
    terms = -(-filters * taps // (sy * sx))
    for shape in (
        Product(1, outside, filters, channels * taps, Window((ky, kx), pixels, "k", "m", dense)),
        Product(1, inside, channels, terms, Window((ky, kx), (height, width), "k", "m", dense)),
        Product(1, filters, channels * taps, outside, Window((ky, kx), pixels, "n", "k", dense)),
    ):
        operations = 2.0 * shape.m * shape.n * shape.k
        yield float32("convolution", operations=operations, nbytes=touched, product=shape)
