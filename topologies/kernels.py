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
AttentionKernel = Literal["flash-1", "flash-2", "native"]
REMEMBERED = 1 << 16
SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
TILES_PER_UNIT = 2  # a sum is split no further than into so many tiles per unit
WRITE_AND_READ = 2
ALIGNED = 8
"""Elements of 16 bits that are loaded at once where rows begin at multiples of so many."""


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
    """`batch` matrix products of [m, k] by [k, n]; of a convolution, those of implicit matmul.

    Rows of the operands and of the result have a multiple of `aligned` elements, 1, 2, 4 or 8; shorter ones do not
    count, as no library's kernel has them.
    """

    batch: int
    m: int
    n: int
    k: int
    window: Window | None = None
    aligned: int = ALIGNED


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention that stores no matrix: `rows` queries of every head, so many `scores` in all, heads `width` wide.

    `products` is how many products of all scores by a head's width a kernel has: two forward, of the gradients of
    queries one, of those of keys and values four, for both together five (Dao, FlashAttention-2, section 3.1).
    A kernel is FlashAttention's first or second, or native: written for the very generation of devices.
    """

    rows: int
    scores: float
    width: int
    products: int
    causal: bool
    kernel: AttentionKernel = "flash-2"

    @property
    def operations(self) -> float:
        """Floating-point operations of its products."""
        return 2.0 * self.products * self.scores * self.width


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: its class, the dtype it computes in, its floating-point operations, the bytes it reads and writes."""

    category: str
    dtype: str
    operations: float
    nbytes: float
    product: Product | None = None
    attention: Attention | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """A device's rates in large kernels of a category, in large matrix products, and in streaming items.

    In float32 it computes at the `single` share of the rate of the dtype.
    """

    category_flop_per_s: float
    matmul_flop_per_s: float
    bytes_per_s: float
    item_bytes: int
    single: float = 1.0

    @property
    def items_per_s(self) -> float:
        """Items streamed."""
        return self.bytes_per_s / self.item_bytes


@lru_cache(maxsize=REMEMBERED)
def product_s(how: Products, product: Product, rates: Rates) -> float:
    """Return the seconds of computing, and of the traffic of intermediate results, by the quickest algorithm."""
    implicit = _tiled_s(how, product, rates.category_flop_per_s, rates)
    return min([implicit, *(_winograd_s(how, by, product, rates) for by in _usable(how, product))])


def _usable(how: Products, product: Product) -> Iterator[Winograd]:
    window = product.window
    if window is not None and window.dense and product.batch == 1 and all(window.pixels):
        yield from (by for by in how.winograd if window.taps == (by.window, by.window))


def _winograd_s(how: Products, by: Winograd, product: Product, rates: Rates) -> float:
    """Time the products of transformed pieces and, unless it is one fused kernel, the transforms through memory."""
    pieces = transformed(by, product)
    if by.fused:
        return _tiled_s(how, pieces, rates.category_flop_per_s, rates)
    items = pieces.batch * (pieces.m * pieces.k + pieces.k * pieces.n + pieces.m * pieces.n)
    transforms_s = WRITE_AND_READ * items / (rates.items_per_s * how.transform)
    return transforms_s + _tiled_s(how, pieces, rates.matmul_flop_per_s, rates)


def transformed(by: Winograd, product: Product) -> Product:
    """Return Winograd's products F(outputs x outputs, window x window): one for each point of a piece."""
    window = product.window
    assert window is not None
    extents = {"m": product.m, "n": product.n, "k": product.k}
    extents[window.taps_in] //= prod(window.taps)
    extents[window.pixels_in] //= prod(window.pixels)
    extents[window.pixels_in] *= prod(ceil(pixels / by.outputs) for pixels in window.pixels)
    return Product((by.outputs + by.window - 1) ** 2, extents["m"], extents["n"], extents["k"])


def _tiled_s(how: Products, product: Product, flop_per_s: float, rates: Rates) -> float:
    """Time a product in the quickest of the device's tiles, its sum split in the quickest number of parts."""
    unit_flop_per_s = flop_per_s / how.units
    result = product.batch * product.m * product.n
    largest = _reading(how, *how.tiles[0])
    quickest = float("inf")
    for rows, columns in {shape for tile in how.tiles for shape in (tile, tile[::-1])}:
        tiles = product.batch * -(-product.m // rows) * -(-product.n // columns)
        reading = 2 * rows * columns * _reading(how, rows, columns) / largest
        term_s = reading / unit_flop_per_s
        beginning_s = how.depth * term_s / rates.single
        for split in SPLITS:
            if split > 1 and tiles * split > TILES_PER_UNIT * how.units:
                break
            waves = -(-tiles * split // how.units)
            adding_s = WRITE_AND_READ * split * result / rates.items_per_s if split > 1 else 0.0
            quickest = min(quickest, waves * (-(-product.k // split) * term_s + beginning_s) + adding_s)
    return quickest


def _reading(how: Products, rows: int, columns: int) -> float:
    """Return the time per operation of a tile, relative to a tile without edges: what it reads goes with its edges."""
    return 1 + how.tile_edge * (1 / rows + 1 / columns)


ATTENTION_ROWS = 128
"""Queries, or keys, of a tile of attention; so many scores of a query beyond those that it sees are computed half."""

FLASH_WIDTH, NATIVE_WIDTH = 32, 64
"""Heads are computed with as if their width were the next multiple (measured on an H200, results/gpu)."""

FORWARD_PRODUCTS = 2
FIRST_VERSION = 2.0
"""How many times as long as by FlashAttention-2 attention takes by the first version."""

BACKWARD_SHARE, BACKWARD_BYTES = 0.88, 18
"""Of the forward pass's rate of products, what the backward pass attains; and the bytes that it moves besides for an
element of the queries: results and their gradients are read, the queries' gradients added up in float32."""


def attention_s(how: Products, attention: Attention, flop_per_s: float, bytes_per_s: float) -> float:
    """Return the seconds of attention that stores no matrix: its products, then exponentials of all scores.

    FlashAttention-2 on an A100 attains so 222 and 189 Tflop/s forward for heads of 128 and 64, 201 and 178 backward;
    measured were 225 and 190, 190 and 165 (Dao, 2023, Figures 5 and 6). A native kernel, whose products attain what
    others do, so attains 564 Tflop/s forward and 496 backward on an H100 for 48 heads of 128 and 8192 causal positions;
    FlashAttention-3 was measured to attain 685 and 539 (github.com/meta-pytorch/tritonbench, pull request 1267).
    FlashAttention took twice as long as its second version (Dao, 2023, abstract).
    """
    assert how.exponentials_per_s is not None
    native = attention.kernel == "native"
    rate, passes, added_s = flop_per_s * (1.0 if native else how.attention), 1.0, 0.0
    multiple = NATIVE_WIDTH if native else FLASH_WIDTH
    padded = -(-attention.width // multiple) * multiple / attention.width
    if attention.products != FORWARD_PRODUCTS:
        rate *= BACKWARD_SHARE
        passes = 2.0 * attention.products / 5
        added_s = attention.products / 5 * BACKWARD_BYTES * attention.rows * attention.width / bytes_per_s
    computed = 1.0
    if attention.causal:
        computed += attention.rows * ATTENTION_ROWS / 2 / attention.scores
    tiles = attention.rows / ATTENTION_ROWS / how.units
    waves = max(1.0, tiles + 0.5 if attention.causal else float(ceil(tiles)))
    seconds = padded * attention.operations / rate + passes * attention.scores / how.exponentials_per_s
    first = FIRST_VERSION if attention.kernel == "flash-1" else 1.0
    return computed * seconds * waves / tiles * first + added_s
