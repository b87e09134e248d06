"""What a kernel is given: local arrays, attributes, and where in the whole tensors they lie."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType
from typing import Any, Concatenate, NoReturn, ParamSpec, SupportsFloat, SupportsInt, TypeVar, cast

import ml_dtypes
import numpy as np

from planner.graph.ir import Value

Array = Any  # numpy.ndarray or cupy.ndarray; the two share no base class
Range = tuple[int, int]
T = TypeVar("T")
P = ParamSpec("P")


class OutputError(TypeError):
    """A kernel does not write into an output: it replaces the array, or leaves elements as they were."""


class Outputs(tuple[Array, ...]):
    """The arrays that a kernel writes into; they cannot be replaced by others."""

    __slots__ = ()

    def __setitem__(self, number: object, value: object) -> NoReturn:
        raise OutputError(
            f"call.outputs[{number}] cannot be another array: write into it, call.outputs[{number}][...] = values"
        )


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One run of an operator on local arrays; every element of `outputs` must be written.

    `attributes` are the node's, with `extents` completed: the extent of every index variable in the whole tensors.
    `ranges` gives the half-open range of every index variable that this run covers, in global indices; of a variable
    that the operator only reads through plain indices, only the length means anything, because the local arrays are
    concatenations of the worker's runs. `origins` gives, per input and dimension, the global index of the local
    array's first element. A windowed dimension of an input holds the hull of what the ranges read, clipped to the
    tensor: what is missing at either end is padding. `faults`, [1] on a GPU, is set where data break a rule, and read
    after the step.
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
        """Guard the outputs against assignment."""
        object.__setattr__(self, "outputs", Outputs(self.outputs))

    def on(self, inputs: tuple[Array, ...], outputs: tuple[Array, ...]) -> KernelCall:
        """Return the call on other arrays, such as parts of its own."""
        return replace(self, inputs=inputs, outputs=outputs)

    def once(self, function: Callable[Concatenate[KernelCall, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function of the call returned when it was first asked for: nothing that changes."""
        key = function, *args
        if key not in self._known:
            self._known[key] = function(self, *args, **kwargs)
        return cast(T, self._known[key])

    def integer(self, name: str) -> int:
        """Attribute `name` as an integer."""
        return int(cast(SupportsInt, self.attributes[name]))

    def number(self, name: str, default: float | None = None) -> float:
        """Attribute `name` as a Python number, which takes on the dtype of the array that it meets."""
        value = self.attributes[name] if default is None else self.attributes.get(name, default)
        return value if type(value) is int else float(cast(SupportsFloat, value))

    def flag(self, name: str) -> bool:
        """Attribute `name` as a truth value, false where the node does not give it."""
        return bool(self.attributes.get(name, False))

    def integers(self, name: str) -> tuple[int, ...]:
        """Attribute `name` as a tuple of integers."""
        return tuple(int(entry) for entry in cast("tuple[SupportsInt, ...]", self.attributes[name]))

    def pair(self, name: str) -> tuple[int, int]:
        """Attribute `name` as two integers: along y, along x."""
        along_y, along_x = self.integers(name)
        return along_y, along_x

    def length(self, variable: str) -> int:
        """How many values of `variable` this run covers."""
        start, stop = self.ranges[variable]
        return stop - start


Action = Callable[[], None]
Kernel = Callable[[KernelCall], None]

NARROW = frozenset(map(np.dtype, (np.float16, ml_dtypes.bfloat16)))  # a dtype's name takes longer to make
PRODUCTS = ("mm", "bmm", "einsum")


def named(*kernels: Kernel) -> dict[str, Kernel]:
    """Return kernels that are called as their operators by the names of these."""
    return {kernel.__name__: kernel for kernel in kernels}


def run(kernel: Kernel, call: KernelCall) -> None:
    """Run a kernel; of 16-bit operands it is given copies in single precision, and what it computes is rounded once."""
    bind(kernel, call)()


def bind(kernel: Kernel, call: KernelCall) -> Callable[[], None]:
    """Return the action that `run` is, with what depends on dtypes decided."""
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
"""Makes the action that multiplies matrices of float32 in another format; None where there is none for them."""


@dataclass(frozen=True, slots=True)
class KernelSet:
    """Kernels by operator; `adding` are those that can add to what the output holds.

    Operators of `native` have kernels that take 16-bit operands as they are, and round once themselves. `library` says
    whose the kernels are. Of two calls of the same operands, one behind the other, `at_once` has functions, by their
    operators, that write the results of both. Of neighbouring calls of one operator on a GPU `several` has functions
    that return one action for all of them, or None. `obstacle` says why arrays of a module cannot be
    computed with. `products` are of formats that no tensor of a graph has, by name. `capture` returns an action
    that launches at once what another queues on a device, without running that. Of the device's memory the library
    holds so many `held_bytes` for temporaries, and gives back by `release` what it holds unused.
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
        """Return the action that runs an operator's kernel on a call; `adds` adds to what the outputs hold."""
        kernel = self.adding[op] if adds else self.kernels[op]
        return partial(kernel, call) if op in self.native or _is_half_product(op, call) else bind(kernel, call)


def _is_half_product(op: str, call: KernelCall) -> bool:
    """True for products of float16 on a GPU: CuPy's cuBLAS adds them up in single precision and rounds once."""
    halves = all(array.dtype == np.float16 for array in (*call.inputs, *call.outputs))
    return op in PRODUCTS and call.xp is not np and halves


def _is_narrow(array: Array) -> bool:
    return array.dtype in NARROW


def kept_where(xp: ModuleType, mask: Array, values: Array, out: Array | None = None) -> Array:
    """Return values where the mask is true, elsewhere +0.

    By bits, because a selection with random masks is ten times slower on a CPU and a product would keep NaN.
    """
    bits = f"i{values.dtype.itemsize}"
    chosen = mask.astype(bits)
    xp.negative(chosen, out=chosen)
    room = out.view(bits) if out is not None else chosen if chosen.shape == values.shape else None
    return xp.bitwise_and(chosen, values.view(bits), out=room).view(values.dtype)
