"""Arrays of the double: NumPy inside, CuPy's names and arguments outside, and no way to the host but `get`."""

import operator
from functools import cache
from types import SimpleNamespace

import ml_dtypes  # noqa: F401  # makes NumPy know bfloat16
import numpy as np

from cupy import _memory, _names
from cupy.cuda import _streams

REFUSED = (
    "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array explicitly."
)
SCALARS = (bool, int, float, complex, np.generic)
WAITING = frozenset(
    {"nonzero", "flatnonzero", "argwhere", "unique", "compress", "extract", "delete", "place", "repeat"}
)
"""Functions whose result has a shape that the device tells."""

HOLDERS = frozenset({"array", "asarray", "asanyarray", "ascontiguousarray"})
"""Functions that take arrays of the host."""

CREATORS = frozenset({*HOLDERS, "empty", "zeros", "ones", "full", "arange", "eye", "identity", "linspace"})
VIEWS = frozenset({
    "reshape", "transpose", "view", "squeeze", "swapaxes", "diagonal", "ravel", "expand_dims", "moveaxis", "flip",
    "broadcast_to", "as_strided",
})  # fmt: skip


def wrap(result):
    """Return a result of NumPy's as one of the device's; scalars become arrays of rank 0."""
    if isinstance(result, tuple):
        return tuple(map(wrap, result))
    if not isinstance(result, np.ndarray | np.generic):
        return result
    array = object.__new__(ndarray)
    array._host = np.asarray(result)
    return array


def fresh(values):
    """Return values in an allocation of the device's own."""
    values = np.asarray(values)
    memory = _memory.pooled(values.nbytes).view(values.dtype).reshape(values.shape)
    memory[...] = values
    return wrap(memory)


def unwrapped(value):
    """Return an argument as NumPy wants it; arrays of the host are refused."""
    if isinstance(value, ndarray):
        return value._host
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {np.ndarray}")
    if isinstance(value, tuple | list):
        return type(value)(map(unwrapped, value))
    return value


BY_CUBLAS = frozenset({"dot", "einsum", "inner", "matmul", "outer", "tensordot", "vdot"})
"""Functions that call cuBLAS, which CuPy does not while a graph is captured."""


def _noted(result, compute):
    """Return a result; while a graph is captured, note how it is computed, again into the same memory."""
    if _streams.CAPTURED:

        def again():
            computed = compute()
            pairs = zip(result, computed, strict=True) if isinstance(result, tuple) else [(result, computed)]
            for kept, value in pairs:
                if isinstance(kept, ndarray):
                    np.copyto(kept._host, value)

        _streams.CAPTURED[-1].append(again)
    return result


MINIMA = ("amin", "min", "ptp")


def _require_no_output(name, kwargs):
    """Raise what CuPy raises where the smallest of elements are written: it takes the output for a dtype."""
    if name in MINIMA and kwargs.get("out") is not None:
        raise TypeError("operand type(s) all returned NotImplemented from __array_ufunc__(<ufunc 'equal'>)")


def _is_view(name, array):
    """Whether a function only looks at an array otherwise, and copies nothing."""
    copies = name in ("reshape", "ravel") and not (isinstance(array, ndarray) and array._host.flags.c_contiguous)
    return name in VIEWS and not copies


def function(what, name, numpys):
    """Return CuPy's function: its name and arguments are checked, NumPy computes."""
    known = _names.entry(what, name)

    def call(*args, **kwargs):
        _names.require_arguments(f"{what}.{name}", known, args, kwargs)
        _require_no_output(name, kwargs)
        if not _is_view(name, args[0] if args else None):
            _memory.LAUNCHES[name] += 1
        if name in WAITING or (name in HOLDERS and isinstance(args[0], np.ndarray)):
            _memory.WAITS[name] += 1
        if name in BY_CUBLAS and _streams.CAPTURED:
            raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
        if name in HOLDERS and isinstance(args[0], np.ndarray):
            _streams.require_no_capture("memory of the host is copied")
            _streams.current()._require_own()
            return fresh(numpys(*args, **kwargs))
        if name == "copyto":
            host = [unwrapped(value) for value in args]
            _streams.current()._submit(lambda: numpys(*host, **{k: unwrapped(v) for k, v in kwargs.items()}))
            return None
        if not _is_view(name, args[0] if args else None):
            _streams.current()._drain()

        def compute():
            return numpys(*map(unwrapped, args), **{key: unwrapped(value) for key, value in kwargs.items()})

        result = compute()
        if name.startswith("empty"):
            result.reshape(-1).view(np.uint8).fill(_memory.POISON)
        if _is_view(name, args[0] if args else None) or name.startswith("empty"):
            return fresh(result) if name.startswith("empty") else _kept(result, args, kwargs)
        created = name in CREATORS and not isinstance(args[0], ndarray)
        return _noted(fresh(result) if created else _kept(result, args, kwargs), compute)

    call.__name__ = name
    return call


def _kept(result, args, kwargs):
    """Return a result; one that is new memory goes into an allocation, what was given for it is returned as it is."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, ndarray) and value._host is result:
            return value
    if isinstance(result, np.generic) or (isinstance(result, np.ndarray) and result.base is None):
        return fresh(result)
    return wrap(result)


class ufunc:  # noqa: N801  # CuPy's name
    """An element-wise function with CuPy's loops and keywords."""

    def __init__(self, name, known, numpys):
        self.__name__ = name
        self._numpy = getattr(numpys, name)
        self._loops = [tuple(map(_kinds, loop.split("->"))) for loop in known["ufunc"]]
        for method in known["methods"]:
            setattr(self, method, self._reducing(method))

    def __call__(self, *args, **kwargs):
        unknown = set(kwargs) - _names.UFUNC_KEYWORDS
        if unknown:
            raise TypeError(f"Wrong arguments {sorted(unknown)} of {self.__name__} in CuPy {_names.NAMES['version']}")
        inputs = [unwrapped(value) for value in args[: self._numpy.nin]]
        if not all(isinstance(value, (np.ndarray, *SCALARS)) for value in inputs):
            raise TypeError(f"Unsupported type among {[type(value) for value in inputs]}")
        _memory.LAUNCHES[self.__name__] += 1
        out = args[self._numpy.nin] if len(args) > self._numpy.nin else kwargs.get("out")
        if out is None:
            _streams.current()._drain()
            computed = self._computed(inputs, kwargs)
            result = fresh(computed) if not isinstance(computed, tuple) else tuple(map(fresh, computed))
            return _noted(result, lambda: self._computed(inputs, kwargs))
        host = unwrapped(out)

        def work():
            self._computed(inputs, kwargs)
            self._numpy(*inputs, **{**kwargs, "out": host})

        _streams.current()._submit(work)
        return out

    def _computed(self, inputs, kwargs):
        computed = self._numpy(*inputs, **{key: value for key, value in kwargs.items() if key != "out"})
        if "dtype" not in kwargs:
            self._require_loop(inputs, computed)
        return computed

    def _require_loop(self, inputs, computed):
        """Raise TypeError unless the first of CuPy's loops that takes the inputs gives NumPy's result dtype."""
        strong = [value.dtype for value in inputs if isinstance(value, np.ndarray | np.generic)]
        weak = [value for value in inputs if not isinstance(value, np.ndarray | np.generic)]
        given = [*strong, *([np.result_type(*strong, *weak)] if weak else [])]
        results = computed if isinstance(computed, tuple) else (computed,)
        for taken, returned in self._loops:
            kinds = [taken[number % len(taken)] for number in range(len(given))]
            if all(np.can_cast(dtype, kind) for dtype, kind in zip(given, kinds, strict=True)):
                if returned != [result.dtype for result in results]:
                    break
                return
        raise TypeError(f"{self.__name__} of CuPy makes of {given} something else than {[r.dtype for r in results]}")

    def _reducing(self, method):
        def call(*args, **kwargs):
            _memory.LAUNCHES[f"{self.__name__}.{method}"] += 1
            _streams.current()._drain()
            numpys = _differences_of_sums if method == "reduceat" else getattr(self._numpy, method)

            def compute():
                return numpys(*map(unwrapped, args), **{key: unwrapped(value) for key, value in kwargs.items()})

            result = compute()
            return _noted(_kept(result, args, kwargs) if result is not None else None, compute)

        return call


def _differences_of_sums(values, starts, axis=0, dtype=None, out=None):
    """Sum segments as CuPy's reduceat does: cumulative sums at their ends, less those at their beginnings."""
    sums = np.cumsum(values, axis=axis, dtype=dtype)
    ends = np.append(starts[1:], values.shape[axis]) - 1
    totals = np.take(sums, ends, axis=axis)
    before = np.take(sums, starts - 1, axis=axis)
    np.moveaxis(before, axis, 0)[starts == 0] = 0
    return np.subtract(totals, before, out=out)


def _kinds(letters):
    """Return the dtypes of a loop's letters; E is bfloat16."""
    return [np.dtype("bfloat16" if letter == "E" else letter) for letter in letters]


@cache
def elementwise(name, path="cupy", numpys=np):
    """Return the element-wise function of CuPy's of that name."""
    return ufunc(name, _names.entry(path, name), numpys)


class ndarray:  # noqa: N801  # CuPy's name
    """An array on the device."""

    def __init__(self, shape, dtype=float, memptr=None, strides=None, order="C"):
        kind = np.dtype(dtype)
        nbytes = kind.itemsize * int(np.prod(shape, dtype=np.int64))
        raw = _memory.pooled(nbytes) if memptr is None else memptr._bytes(nbytes)
        self._host = np.ndarray(shape, kind, raw, 0, strides, order)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        known = _names.member("cupy.ndarray", name)
        if not isinstance(known, dict) or "parameters" not in known:
            result = getattr(self._host, name)
            return wrap(result) if isinstance(result, np.ndarray) else result

        def call(*args, **kwargs):
            _names.require_arguments(f"cupy.ndarray.{name}", known, args, kwargs)
            _require_no_output(name, kwargs)
            if not _is_view(name, self):
                _memory.LAUNCHES[name] += 1
                _streams.current()._drain()
            numpys = getattr(self._host, name)

            def compute():
                return numpys(*map(unwrapped, args), **{key: unwrapped(value) for key, value in kwargs.items()})

            result = _kept(compute(), args, kwargs)
            return result if _is_view(name, self) else _noted(result, compute)

        return call

    @property
    def data(self):
        """The address of the first element."""
        return SimpleNamespace(ptr=self._host.ctypes.data)

    def get(self, stream=None, order="C", out=None, blocking=True):
        """Copy to the host."""
        _streams.require_no_capture("an array is copied to the host")
        _memory.LAUNCHES["get"] += 1
        _memory.WAITS["get"] += blocking
        stream = stream or _streams.current()
        if out is None:
            out = np.empty(self.shape, self.dtype, order)
        if not (isinstance(out, np.ndarray) and out.dtype == self.dtype and out.shape == self.shape):
            raise TypeError("out: expected an array of the host of equal shape and dtype")
        if not out.flags.c_contiguous:
            raise RuntimeError("`out` cannot be specified when copying to non-contiguous ndarray")
        stream._drain()
        stream._queue.add(out, self._host.copy())
        if blocking:
            stream.synchronize()
        return out

    def set(self, arr, stream=None):
        """Copy from the host; from page-locked memory the copy is pending afterwards."""
        _memory.LAUNCHES["set"] += 1
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if arr.dtype != self.dtype or arr.shape != self.shape:
            raise TypeError(f"{arr.dtype} {arr.shape} cannot be set to {self.dtype} {self.shape}")
        if not self._host.flags.c_contiguous:
            raise RuntimeError("Cannot set to non-contiguous array")
        stream, values = stream or _streams.current(), np.ascontiguousarray(arr)
        given = values.copy()
        stream._submit(lambda: self._host.__setitem__(..., given))
        stream._queue.add(values)

    def __dlpack__(self, **_keywords):
        """Export the memory, which other libraries then use as the host's."""
        return self._host.__dlpack__()

    def __dlpack_device__(self):
        return self._host.__dlpack_device__()

    def __array__(self, *_args, **_kwargs):
        raise TypeError(REFUSED)

    def __array_function__(self, function, *_rest):
        raise TypeError(f"{function.__name__} of NumPy on an array of the device")

    def __array_ufunc__(self, operation, method, *inputs, **kwargs):
        if method != "__call__":
            raise TypeError(f"{operation.__name__}.{method} of NumPy on an array of the device")
        return elementwise(operation.__name__)(*inputs, **kwargs)

    def __getitem__(self, index):
        parts = [part for part in (index if isinstance(index, tuple) else (index,)) if isinstance(part, ndarray)]
        if parts:
            _memory.LAUNCHES["getitem"] += 1
            _memory.WAITS["a mask as an index"] += any(part.dtype == bool for part in parts)
            _streams.current()._drain()
        result = _kept(self._host[_index(index)], (), {})
        return _noted(result, lambda: self._host[_index(index)]) if parts else result

    def __setitem__(self, index, value):
        _memory.LAUNCHES["setitem"] += 1
        places, values = _index(index), unwrapped(value)
        masks = [part for part in places if isinstance(part, np.ndarray) and part.dtype == bool]
        _memory.WAITS["a mask as an index"] += bool(masks)

        def work():
            _require_distinct(self._host, places)
            self._host[places] = values

        _streams.current()._submit(work)

    def __len__(self):
        return len(self._host)

    def __iter__(self):
        return (self[number] for number in range(len(self)))

    def __bool__(self):
        return bool(self.get())

    def __int__(self):
        return int(self.get())

    def __index__(self):
        return operator.index(self.get())

    def __float__(self):
        return float(self.get())

    def __matmul__(self, other):
        _streams.current()._drain()
        return fresh(self._host @ unwrapped(other))

    __hash__ = None


def _index(index):
    """Return an index as NumPy wants it: whole numbers, slices and arrays of the device."""
    parts = index if isinstance(index, tuple) else (index,)
    for part in parts:
        allowed = part is None or part is Ellipsis or isinstance(part, int | np.integer | slice | ndarray)
        if not allowed:
            raise IndexError(f"an array of the device is not indexed by {type(part)} here")
    return tuple(part._host if isinstance(part, ndarray) else part for part in parts)


def _require_distinct(host, index):
    """Raise IndexError where an assignment writes an element twice: on a device either may win."""
    if any(isinstance(part, np.ndarray) and part.dtype != bool for part in index):
        places = np.arange(host.size).reshape(host.shape)[index].reshape(-1)
        if len(np.unique(places)) != len(places):
            raise IndexError("an assignment to places that are given twice has no certain result on a device")


OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "lshift": "left_shift", "rshift": "right_shift", "and": "bitwise_and",
    "or": "bitwise_or", "xor": "bitwise_xor",
}  # fmt: skip
COMPARISONS = {
    "lt": "less",
    "le": "less_equal",
    "eq": "equal",
    "ne": "not_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
UNARY = {"neg": "negative", "invert": "invert", "abs": "absolute"}


def _operand(value):
    return isinstance(value, (ndarray, *SCALARS))


def _operators():
    for short, name in (OPERATORS | COMPARISONS).items():

        def forward(self, other, name=name):
            return elementwise(name)(self, other) if _operand(other) else _unsupported(other)

        def backward(self, other, name=name):
            return elementwise(name)(other, self) if _operand(other) else _unsupported(other)

        def in_place(self, other, name=name):
            return elementwise(name)(self, other, out=self) if _operand(other) else _unsupported(other)

        setattr(ndarray, f"__{short}__", forward)
        if short in OPERATORS:
            setattr(ndarray, f"__r{short}__", backward)
            setattr(ndarray, f"__i{short}__", in_place)
    for short, name in UNARY.items():
        setattr(ndarray, f"__{short}__", lambda self, name=name: elementwise(name)(self))


def _unsupported(other):
    raise TypeError(f"Unsupported type {type(other)}")


_operators()
ndarray.__module__ = "cupy"
