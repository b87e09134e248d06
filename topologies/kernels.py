"""The time of a rank's work: of kernels by their size and shape, and of tasks by measured ones.

A matrix product is computed in tiles of its result, in waves of one tile per compute unit. A convolution is computed as
an implicit matrix product or by Winograd's algorithm (Lavin and Gray, CVPR 2016).

The time of a task is measured, or estimated from similar measured tasks: the average of the seconds per unit of work of
the nearest calls of the same operator, weighted by closeness; the distance compares logarithms of the operands'
extents. Calls on the same dtypes take precedence, because a GPU multiplies in 16 bits many times as fast as in 32.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, prod
from operator import mul
from typing import Literal

from msgspec.structs import astuple

from topologies.schema import Measured, Products, TransferCost, Winograd

Role = Literal["batch", "m", "n", "k"]
AttentionKernel = Literal["flash-1", "flash-2", "native"]
REMEMBERED = 1 << 16
SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
TILES_PER_UNIT = 2  # limit on splitting a sum
WRITE_AND_READ = 2
ALIGNED = 8
"""Elements of 16 bits in one load, for rows that begin at multiples of this number."""


@dataclass(frozen=True, slots=True)
class Window:
    """The window of a convolution: its taps and the pixels it moves over, per dimension.

    `taps_in` and `pixels_in` name the extents of the product that contain them. The window is dense if neighbouring
    taps and neighbouring pixels are one element apart (stride and dilation 1).
    """

    taps: tuple[int, ...]
    pixels: tuple[int, ...]
    taps_in: Role
    pixels_in: Role
    dense: bool


@dataclass(frozen=True, slots=True)
class Product:
    """`batch` matrix products of [m, k] by [k, n]; for a convolution, the implicit ones.

    Rows of the operands and of the result have a multiple of `aligned` elements: 1, 2, 4 or 8. Rows shorter than that
    do not count, since no library has kernels for them.
    """

    batch: int
    m: int
    n: int
    k: int
    window: Window | None = None
    aligned: int = ALIGNED


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention that stores no score matrix: `rows` queries over all heads, `scores` in total, heads `width` wide.

    `products` is how many products of all scores by a head's width a kernel computes: two forward, one for the
    gradients of queries, four for those of keys and values, five for both together (Dao, FlashAttention-2, section
    3.1). `kernel` is FlashAttention's first or second version, or native: written for this generation of devices.
    """

    rows: int
    scores: float
    width: int
    products: int
    causal: bool
    kernel: AttentionKernel = "flash-2"

    @property
    def operations(self) -> float:
        """Floating-point operations of the products."""
        return 2.0 * self.products * self.scores * self.width


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: its category, its dtype, its floating-point operations, and the bytes it reads and writes."""

    category: str
    dtype: str
    operations: float
    nbytes: float
    product: Product | None = None
    attention: Attention | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """A device's rates: in large kernels of a category, in large matrix products, and in streaming.

    `single` is the float32 rate as a share of the dtype's rate.
    """

    category_flop_per_s: float
    matmul_flop_per_s: float
    bytes_per_s: float
    item_bytes: int
    single: float = 1.0

    @property
    def items_per_s(self) -> float:
        """Elements streamed per second."""
        return self.bytes_per_s / self.item_bytes


@lru_cache(maxsize=REMEMBERED)
def product_s(how: Products, product: Product, rates: Rates) -> float:
    """Return the seconds of a product by its quickest algorithm: computing, and traffic of intermediate results."""
    implicit = _tiled_s(how, product, rates.category_flop_per_s, rates)
    return min([implicit, *(_winograd_s(how, by, product, rates) for by in _usable(how, product))])


def _usable(how: Products, product: Product) -> Iterator[Winograd]:
    window = product.window
    if window is not None and window.dense and product.batch == 1 and all(window.pixels):
        yield from (by for by in how.winograd if window.taps == (by.window, by.window))


def _winograd_s(how: Products, by: Winograd, product: Product, rates: Rates) -> float:
    """Return the seconds of Winograd's products, plus its transforms through memory unless one kernel fuses them."""
    pieces = transformed(by, product)
    if by.fused:
        return _tiled_s(how, pieces, rates.category_flop_per_s, rates)
    items = pieces.batch * (pieces.m * pieces.k + pieces.k * pieces.n + pieces.m * pieces.n)
    transforms_s = WRITE_AND_READ * items / (rates.items_per_s * how.transform)
    return transforms_s + _tiled_s(how, pieces, rates.matmul_flop_per_s, rates)


def transformed(by: Winograd, product: Product) -> Product:
    """Return the products of Winograd's F(outputs x outputs, window x window): one for each point of a tile."""
    window = product.window
    assert window is not None
    extents = {"m": product.m, "n": product.n, "k": product.k}
    extents[window.taps_in] //= prod(window.taps)
    extents[window.pixels_in] //= prod(window.pixels)
    extents[window.pixels_in] *= prod(ceil(pixels / by.outputs) for pixels in window.pixels)
    return Product((by.outputs + by.window - 1) ** 2, extents["m"], extents["n"], extents["k"])


def _tiled_s(how: Products, product: Product, flop_per_s: float, rates: Rates) -> float:
    """Return the seconds of a product with the device's quickest tile and the quickest split of its sum."""
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
    """Return the time per operation of a tile relative to one without edges; reads grow with the edges."""
    return 1 + how.tile_edge * (1 / rows + 1 / columns)


ATTENTION_ROWS = 128
"""Queries, or keys, in a tile of attention; a causal kernel computes half a tile of scores per query in excess."""

FLASH_WIDTH, NATIVE_WIDTH = 32, 64
"""Head widths are rounded up to a multiple of this (measured on an H200, results/gpu)."""

FORWARD_PRODUCTS = 2
FIRST_VERSION = 2.0
"""Time of FlashAttention's first version relative to FlashAttention-2."""

BACKWARD_SHARE, BACKWARD_BYTES = 0.88, 18
"""The backward pass's rate of products relative to the forward pass, and the extra bytes it moves for each element of
the queries: it reads results and their gradients, and adds up the queries' gradients in float32."""


def attention_s(how: Products, attention: Attention, flop_per_s: float, bytes_per_s: float) -> float:
    """Return the seconds of attention that stores no score matrix: its products, then exponentials of all scores.

    For FlashAttention-2 on an A100, this gives 222 and 189 Tflop/s forward for heads of 128 and 64, and 201 and 178
    backward; measured were 225 and 190, 190 and 165 (Dao, 2023, Figures 5 and 6). A native kernel's products attain the
    same rate as other products. On an H100, with 48 heads of 128 and 8192 causal positions, this gives 564 Tflop/s
    forward and 496 backward; FlashAttention-3 was measured at 685 and 539 (github.com/meta-pytorch/tritonbench, pull
    request 1267). FlashAttention's first version took twice as long as its second (Dao, 2023, abstract).
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


NEAREST = 4
DIMENSIONS = 4  # compared one by one from the last; the leading ones are merged into one
OTHER_ATTRIBUTES = 1.0  # the distance of an extent twice as large
SAME = 1e-3
FIXED = 0.1  # least share of a call's time that counts as work
PRODUCTS = ("mm", "bmm", "einsum", "convolution")
BETWEEN_TASKS, REPEATED = "; ", " x "
_OPERAND = re.compile(r"([a-z]+)(\d+)\[([\d,]*)\](?:of\[[\d,]*\])?")
_CALL = re.compile(r"(?:(\d+) x )?(\w+)(\S*)")

Extents = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TransferAmounts:
    """What a rank's part of a transfer moves: messages, pieces, contiguous runs of memory, and bytes."""

    messages: int = 0
    pieces: int = 0
    runs: int = 0
    nbytes: int = 0

    def spelled(self, kind: str) -> str:
        """Return the key of a part of a transfer: "send", "post", "fetch" or "reduce"."""
        return f"{kind} {self.messages} messages {self.pieces} pieces {self.runs} runs {self.nbytes} bytes"

    @property
    def amounts(self) -> tuple[int, int, int, int, int]:
        """The factors of a `TransferCost`'s figures, in their order."""
        return (1, self.messages, self.pieces, self.runs, self.nbytes)


@dataclass(frozen=True, slots=True)
class OpCall:
    """A kernel call parsed from its key: `extents` are log2 of every operand's last dimensions."""

    op: str
    attributes: str
    dtypes: tuple[str, ...]
    extents: Extents
    work: float

    def distance(self, other: OpCall) -> float:
        """Return the distance to another call of the same operator with as many operands."""
        apart = math.dist(self.extents, other.extents)
        return apart + (OTHER_ATTRIBUTES if self.attributes != other.attributes else 0.0)


@lru_cache(1 << 14)
def read_task(text: str) -> tuple[tuple[int, OpCall], ...]:
    """Return the calls of a compute task's key, each with its number of repetitions."""
    return tuple(_read_call(part) for part in text.split(BETWEEN_TASKS))


def _read_call(text: str) -> tuple[int, OpCall]:
    head = _CALL.match(text)
    if head is None:
        raise ValueError(f"expected a kernel call, found {text!r}")
    operands = _OPERAND.findall(text, head.end())
    shapes = [(int(bits), _shape(shape)) for _, bits, shape in operands]
    extents = tuple(math.log2(1 + extent) for _, shape in shapes for extent in _last(shape))
    nbytes = sum(bits // 8 * math.prod(shape) for bits, shape in shapes)
    is_product = len(shapes) == 3 and head[2].startswith(PRODUCTS)
    work = math.sqrt(math.prod(math.prod(shape) for _, shape in shapes)) if is_product else float(nbytes)
    return int(head[1] or 1), OpCall(head[2], head[3], tuple(kind + bits for kind, bits, _ in operands), extents, work)


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(extent) for extent in text.split(",") if extent)


def _last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the last extents of a shape, with the leading ones multiplied into one."""
    filled = (1,) * (DIMENSIONS - len(shape)) + shape
    first = len(filled) - DIMENSIONS + 1
    return (math.prod(filled[:first]), *filled[first:])


class Estimates:
    """Seconds of tasks on one type of rank."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self._known: dict[str, float | None] = dict(measured.tasks)

    def compute_s(self, task: str) -> float | None:
        """Return the seconds of a compute task, or None if no call of its operators was measured."""
        if task not in self._known:
            calls = [(count, self._call_s(call)) for count, call in read_task(task)]
            total = sum(count * (seconds or 0.0) for count, seconds in calls)
            self._known[task] = None if any(seconds is None for _, seconds in calls) else total
        return self._known[task]

    def transfer_s(self, kind: str, moved: TransferAmounts) -> float:
        """Return the seconds of a rank's part of a transfer."""
        measured_s = self._known.get(moved.spelled(kind))
        if measured_s is not None:
            return measured_s
        cost: TransferCost = getattr(self.measured, kind) or TransferCost()
        seconds: float = sum(map(mul, astuple(cost), moved.amounts))
        return seconds

    @cached_property
    def _calls(self) -> dict[tuple[str, int], list[tuple[OpCall, float]]]:
        """Measured calls by operator and number of extents, with their seconds per unit of work less fixed costs."""
        calls: defaultdict[tuple[str, int], list[tuple[OpCall, float]]] = defaultdict(list)
        for text, seconds in self.measured.tasks.items():
            if " -> " in text:
                for call, share_s in _shares(text, seconds):
                    beyond_s = max(share_s - self.measured.call_s, FIXED * share_s)
                    calls[call.op, len(call.extents)].append((call, beyond_s / max(call.work, 1.0)))
        return dict(calls)

    def _call_s(self, call: OpCall) -> float | None:
        like = self._calls.get((call.op, len(call.extents)))
        if like is None:
            return None
        like = [entry for entry in like if entry[0].dtypes == call.dtypes] or like
        nearest = sorted((call.distance(other), rate) for other, rate in like)[:NEAREST]
        weights = [1.0 / (SAME + apart * apart) for apart, _ in nearest]
        mean = sum(weight * math.log(max(rate, 1e-30)) for weight, (_, rate) in zip(weights, nearest, strict=True))
        return self.measured.call_s + call.work * math.exp(mean / sum(weights))


def _shares(text: str, seconds: float) -> Iterator[tuple[OpCall, float]]:
    """Divide a task's seconds among its calls in proportion to their work."""
    calls = read_task(text)
    total = sum(count * call.work for count, call in calls)
    for _, call in calls:
        yield call, seconds * (call.work / total if total else 1.0 / len(calls))
