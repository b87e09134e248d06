"""Kernels, and how long matrix products and convolutions compute as a function of their size and shape.

A product is computed in tiles of its result, a wave of one tile per compute unit at a time; a convolution as the
product of implicit matmul or by Winograd's algorithm (Lavin and Gray, CVPR 2016).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod
from typing import Literal

from topologies.schema import Products, Winograd

Role = Literal["batch", "m", "n", "k"]
REMEMBERED = 1 << 16
SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
TILES_PER_UNIT = 2  # a sum is split no further than into so many tiles per unit
WRITE_AND_READ = 2


@dataclass(frozen=True, slots=True)
class Window:
    """The window of a convolution: its taps and the pixels it moves over, per dimension, and which extents hold them.

    It is dense where neighbouring taps and neighbouring pixels are one element apart (stride and dilation 1).
    """

    taps: tuple[int, ...]
    pixels: tuple[int, ...]
    taps_in: Role
    pixels_in: Role
    dense: bool


@dataclass(frozen=True, slots=True)
class Product:
    """`batch` matrix products of [m, k] by [k, n]; of a convolution, those of implicit matmul."""

    batch: int
    m: int
    n: int
    k: int
    window: Window | None = None


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: its class, the dtype it computes in, its floating-point operations, the bytes it reads and writes."""

    category: str
    dtype: str
    operations: float
    nbytes: float
    product: Product | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """A device's rates in large kernels of a category, in large matrix products, and in streaming items."""

    category_flop_per_s: float
    matmul_flop_per_s: float
    bytes_per_s: float
    item_bytes: int

    @property
    def items_per_s(self) -> float:
        """Items streamed."""
        return self.bytes_per_s / self.item_bytes


@lru_cache(maxsize=REMEMBERED)
def product_s(how: Products, product: Product, rates: Rates) -> float:
    """Return the seconds of computing, and of the traffic of intermediate results, by the quickest algorithm."""
    implicit = _tiled_s(how, product, rates.category_flop_per_s, rates.items_per_s)
    return min([implicit, *(_winograd_s(how, by, product, rates) for by in _usable(how, product))])


def _usable(how: Products, product: Product) -> Iterator[Winograd]:
    window = product.window
    if window is not None and window.dense and product.batch == 1 and all(window.pixels):
        yield from (by for by in how.winograd if window.taps == (by.window, by.window))


def _winograd_s(how: Products, by: Winograd, product: Product, rates: Rates) -> float:
    """Time the products of transformed pieces and, unless it is one fused kernel, the transforms through memory."""
    pieces = transformed(by, product)
    if by.fused:
        return _tiled_s(how, pieces, rates.category_flop_per_s, rates.items_per_s)
    items = pieces.batch * (pieces.m * pieces.k + pieces.k * pieces.n + pieces.m * pieces.n)
    transforms_s = WRITE_AND_READ * items / (rates.items_per_s * how.transform)
    return transforms_s + _tiled_s(how, pieces, rates.matmul_flop_per_s, rates.items_per_s)


def transformed(by: Winograd, product: Product) -> Product:
    """Return Winograd's products F(outputs x outputs, window x window): one for each point of a piece."""
    window = product.window
    assert window is not None
    extents = {"m": product.m, "n": product.n, "k": product.k}
    extents[window.taps_in] //= prod(window.taps)
    extents[window.pixels_in] //= prod(window.pixels)
    extents[window.pixels_in] *= prod(ceil(pixels / by.outputs) for pixels in window.pixels)
    return Product((by.outputs + by.window - 1) ** 2, extents["m"], extents["n"], extents["k"])


def _tiled_s(how: Products, product: Product, flop_per_s: float, items_per_s: float) -> float:
    """Time a product in the quickest of the device's tiles, its sum split in the quickest number of parts."""
    unit_flop_per_s = flop_per_s / how.units
    result = product.batch * product.m * product.n
    largest = _reading(how, *how.tiles[0])
    quickest = float("inf")
    for rows, columns in {shape for tile in how.tiles for shape in (tile, tile[::-1])}:
        tiles = product.batch * -(-product.m // rows) * -(-product.n // columns)
        term_s = 2 * rows * columns * _reading(how, rows, columns) / largest / unit_flop_per_s
        for split in SPLITS:
            if split > 1 and tiles * split > TILES_PER_UNIT * how.units:
                break
            waves = -(-tiles * split // how.units)
            adding_s = WRITE_AND_READ * split * result / items_per_s if split > 1 else 0.0
            quickest = min(quickest, waves * (-(-product.k // split) + how.depth) * term_s + adding_s)
    return quickest


def _reading(how: Products, rows: int, columns: int) -> float:
    """Return the time per operation of a tile, relative to a tile without edges: what it reads goes with its edges."""
    return 1 + how.tile_edge * (1 / rows + 1 / columns)
