"""The arguments of a kernel: local arrays, attributes, and their position in the whole tensors; and work in blocks.

The temporaries of a block of element-wise work fit in a host's cache, and bound a GPU's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType
from typing import Any, Concatenate, NoReturn, ParamSpec, SupportsFloat, SupportsInt, TypeVar, cast

import ml_dtypes
import numpy as np

from planner.errors import DataError
from planner.graph.ir import Value

Array = Any  # numpy.ndarray or cupy.ndarray; the two share no base class
Range = tuple[int, int]
T = TypeVar("T")
P = ParamSpec("P")


class OutputError(TypeError):
    """A kernel does not write an output: it replaces the array, or leaves elements unwritten."""


class Outputs(tuple[Array, ...]):
    """The arrays that a kernel writes. They cannot be replaced."""

    __slots__ = ()

    def __setitem__(self, number: object, value: object) -> NoReturn:
        raise OutputError(
            f"call.outputs[{number}] cannot be another array: write into it, call.outputs[{number}][...] = values"
        )


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One run of an operator on local arrays. The kernel must write every element of `outputs`.

    `attributes` are those of the node, with `extents` completed: the extent of every index variable in the whole
    tensors. `ranges` has the half-open range of every index variable that this run covers, in global indices. For a
    variable that the operator only uses in plain indices, only the length is meaningful, because local arrays are
    concatenations of the worker's runs. `origins` has the global index of the first element of each input, by
    dimension. A windowed dimension of an input holds the hull of what the ranges read, clipped to the tensor; what is
    missing at either end is padding. `faults`, [1] on a GPU, is set if data break a rule, and read after the step.
    """

    xp: ModuleType
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    attributes: Mapping[str, Value]
    ranges: Mapping[str, Range]
    origins: tuple[tuple[int, ...], ...]
    faults: Array | None = None
    _known: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Protect the outputs against assignment."""
        object.__setattr__(self, "outputs", Outputs(self.outputs))

    def on(self, inputs: tuple[Array, ...], outputs: tuple[Array, ...]) -> KernelCall:
        """Return the call with other arrays, such as parts of its own."""
        return replace(self, inputs=inputs, outputs=outputs)

    def once(self, function: Callable[Concatenate[KernelCall, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a function of the call, computed on first use. It must not change between runs."""
        key = function, *args
        if key not in self._known:
            self._known[key] = function(self, *args, **kwargs)
        return cast(T, self._known[key])

    def integer(self, name: str) -> int:
        """Return an attribute as an integer."""
        return int(cast(SupportsInt, self.attributes[name]))

    def number(self, name: str, default: float | None = None) -> float:
        """Return an attribute as a Python number, which adopts the dtype of an array that it is combined with."""
        value = self.attributes[name] if default is None else self.attributes.get(name, default)
        return value if type(value) is int else float(cast(SupportsFloat, value))

    def flag(self, name: str) -> bool:
        """Return an attribute as a boolean; False if it is not set."""
        return bool(self.attributes.get(name, False))

    def integers(self, name: str) -> tuple[int, ...]:
        """Return an attribute as a tuple of integers."""
        return tuple(int(entry) for entry in cast("tuple[SupportsInt, ...]", self.attributes[name]))

    def pair(self, name: str) -> tuple[int, int]:
        """Return an attribute as two integers: along y, along x."""
        along_y, along_x = self.integers(name)
        return along_y, along_x

    def length(self, variable: str) -> int:
        """Return how many values of `variable` this run covers."""
        start, stop = self.ranges[variable]
        return stop - start


Action = Callable[[], None]
Kernel = Callable[[KernelCall], None]

NARROW = frozenset(map(np.dtype, (np.float16, ml_dtypes.bfloat16)))  # comparing names of dtypes is slower
PRODUCTS = ("mm", "bmm", "einsum")


def run(kernel: Kernel, call: KernelCall) -> None:
    """Run a kernel. 16-bit operands are converted to single precision, and results are rounded once."""
    bind(kernel, call)()


def bind(kernel: Kernel, call: KernelCall) -> Callable[[], None]:
    """Return the action of `run`, with everything that depends on dtypes decided."""
    narrow = any(_is_narrow(array) for array in (*call.inputs, *call.outputs))
    return partial(_widened, kernel, call) if narrow else partial(kernel, call)


def _widened(kernel: Kernel, call: KernelCall) -> None:
    arrays = (*call.inputs, *call.outputs)
    wide = np.result_type(np.float32, *(array.dtype for array in arrays if array.dtype.kind == "f"))
    inputs = tuple(array.astype(wide) if _is_narrow(array) else array for array in call.inputs)
    outputs = tuple(call.xp.empty(out.shape, wide) if _is_narrow(out) else out for out in call.outputs)
    kernel(call.on(inputs, outputs))
    for out, result in zip(call.outputs, outputs, strict=True):
        if result is not out:
            out[...] = result.astype(out.dtype)


MakeProduct = Callable[[Array, Array], Callable[[], None] | None]
"""Makes the action that multiplies float32 matrices in another format; None if the format does not support them."""


@dataclass(frozen=True, slots=True)
class KernelSet:
    """Kernels by operator. `adding` has those that can add to the content of the output.

    Kernels of `native` operators take 16-bit operands directly and round once themselves. `library` names the source of
    the kernels. `at_once` has functions that compute two consecutive calls with the same operands, by their operators.
    `several` has functions that return one action for consecutive calls of an operator on a GPU, or None. `obstacle`
    says why arrays of a module are not supported. `products` are products in formats that no tensor has, by name.
    `capture` records the work that an action queues on a device and returns an action that launches it at once. The
    library reserves `held_bytes` of the device's memory for temporaries; `release` frees the unused part.
    """

    library: str
    kernels: Mapping[str, Kernel]
    adding: Mapping[str, Kernel]
    native: Collection[str] = ()
    at_once: Mapping[tuple[str, str], Callable[[KernelCall, KernelCall], None]] = field(default_factory=dict)
    several: Mapping[str, Callable[[Sequence[KernelCall]], Callable[[], None] | None]] = field(default_factory=dict)
    obstacle: Callable[[ModuleType], str | None] = lambda _xp: None
    products: Mapping[str, MakeProduct] = field(default_factory=dict)
    capture: Callable[[ModuleType, Action], Action] | None = None
    held_bytes: Callable[[], int] = lambda: 0
    release: Callable[[], None] = lambda: None

    def bind(self, op: str, call: KernelCall, adds: bool = False) -> Callable[[], None]:
        """Return the action that runs an operator's kernel on a call. With `adds`, it adds to the outputs."""
        kernel = self.adding[op] if adds else self.kernels[op]
        return partial(kernel, call) if op in self.native or _is_half_product(op, call) else bind(kernel, call)


def _is_half_product(op: str, call: KernelCall) -> bool:
    """Return whether this is a float16 product on a GPU, which cuBLAS sums in single precision and rounds once."""
    halves = all(array.dtype == np.float16 for array in (*call.inputs, *call.outputs))
    return op in PRODUCTS and call.xp is not np and halves


def _is_narrow(array: Array) -> bool:
    return array.dtype in NARROW


def kept_where(xp: ModuleType, mask: Array, values: Array, out: Array | None = None) -> Array:
    """Return the values where the mask is true, +0 elsewhere.

    This works on bits: a selection with random masks is ten times slower on a CPU, and a product would keep NaN.
    """
    bits = f"i{values.dtype.itemsize}"
    chosen = mask.astype(bits)
    xp.negative(chosen, out=chosen)
    room = out.view(bits) if out is not None else chosen if chosen.shape == values.shape else None
    return xp.bitwise_and(chosen, values.view(bits), out=room).view(values.dtype)


BLOCK_ELEMENTS, DEVICE_BLOCK_ELEMENTS = 1 << 19, 1 << 24
"""Elements of a block, on a host and on a GPU. An array is only split if it has more than two blocks."""


def blocks(xp: ModuleType, *arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Yield corresponding blocks of arrays that broadcast to the shape of the first."""
    first, most = arrays[0], BLOCK_ELEMENTS if xp is np else DEVICE_BLOCK_ELEMENTS
    if not first.ndim:
        yield tuple(array.reshape(1) for array in arrays)  # functions of 0-d arrays return numbers, not arrays
    elif first.size <= 2 * most:
        yield arrays
    elif all(array.shape == first.shape and array.flags.c_contiguous for array in arrays if array.ndim):
        flat = [array.reshape(-1) if array.ndim else array for array in arrays]
        for start in range(0, first.size, most):
            yield tuple(array[start : start + most] if array.ndim else array for array in flat)
    else:
        yield from _of_rows(xp, arrays)


def _of_rows(xp: ModuleType, arrays: tuple[Array, ...]) -> Iterator[tuple[Array, ...]]:
    """Split along the first dimension, and split each slice further if it is too large."""
    first = arrays[0]
    rows = max(1, (BLOCK_ELEMENTS if xp is np else DEVICE_BLOCK_ELEMENTS) * len(first) // first.size)
    for start in range(0, len(first), rows):
        taken = slice(start, start + rows) if rows > 1 else start
        parts = tuple(_row(array, taken, first.ndim) for array in arrays)
        yield from blocks(xp, *parts) if rows == 1 else (parts,)


def _row(array: Array, taken: slice | int, rank: int) -> Array:
    """Return a slice of the first of `rank` dimensions. The array may lack that dimension or repeat along it."""
    if array.ndim < rank:
        return array
    if array.shape[0] == 1:
        return array if isinstance(taken, slice) else array[0]
    return array[taken]


@dataclass(frozen=True, slots=True)
class Blocked:
    """An element-wise kernel that works block by block. Outputs and operands have one shape, or are scalars.

    Operands of 16 bits are widened block by block.
    """

    kernel: Kernel

    def __call__(self, call: KernelCall) -> None:
        """Run the kernel on every block."""
        count = len(call.outputs)
        for parts in blocks(call.xp, *call.outputs, *call.inputs):
            run(self.kernel, call if parts[0] is call.outputs[0] else call.on(parts[count:], parts[:count]))


def by_images(kernel: Kernel) -> Kernel:
    """Return a kernel that processes independent images in blocks."""

    def parted(call: KernelCall) -> None:
        arrays = (*call.inputs, *call.outputs)
        largest = max(array.size for array in arrays)
        if call.xp is not np or largest <= BLOCK_ELEMENTS:
            kernel(call)
            return
        images = len(arrays[0])
        count = max(1, BLOCK_ELEMENTS * images // largest)
        for start in range(0, images, count):
            part = slice(start, start + count)
            inputs, outputs = (tuple(array[part] for array in group) for group in (call.inputs, call.outputs))
            kernel(call.on(inputs, outputs))

    return parted


def add_up(xp: ModuleType, values: Array, total: Array) -> None:
    """Add the sums of a block over all dimensions in which `total` has extent 1.

    The order depends only on its shape.
    """
    axes = tuple([axis for axis, extent in enumerate(total.shape) if extent == 1])
    total += xp.add.reduce(np.ascontiguousarray(values) if xp is np else values, axis=axes, keepdims=True)


BEYOND = 2.0**31
"""The least integer that does not fit in 32 bits."""

BEYOND_32_BITS = (
    "integers beyond 32 bits, which a graph cannot hold: compute with them in double precision, as "
    "x.double() * 1000003 % 97 does"
)


def copy_whole(call: KernelCall, out: Array, exact: Array) -> None:
    """Write 64-bit integers to a 32-bit output. Raises DataError if one does not fit."""
    call.xp.copyto(out, exact, casting="unsafe")
    require_room(call, exact != out)


def require_room(call: KernelCall, is_beyond: Array) -> None:
    """Raise a DataError if an integer of a call does not fit in 32 bits. A GPU records it in `faults` instead."""
    if call.faults is not None:
        call.xp.logical_or(call.faults, is_beyond.any(), out=call.faults)
    elif bool(is_beyond.any()):
        raise DataError(BEYOND_32_BITS)


def spread(array: Array, dims: tuple[int, ...], rank: int) -> Array:
    """Return a view of `array` with `rank` dimensions: its dimension j becomes dims[j], the others have extent 1."""
    order = sorted(range(len(dims)), key=lambda j: dims[j])
    shape = [1] * rank
    for extent, dim in zip(array.shape, dims, strict=True):
        shape[dim] = extent
    return array.transpose(order).reshape(shape)
