"""What stands for the kernel of multifetch.cu: its tables read by addresses, one segment at a time."""

import ml_dtypes
import numpy as np

from cupy import _memory, _module

ELEMENTS_PER_BLOCK = 2048
DTYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int32)
REDUCERS = ((np.add, "zero"), (np.multiply, "one"), (np.maximum, "lowest"), (np.minimum, "highest"))
COPIES = tuple(np.dtype(f"V{size}") for size in (1, 2, 4, 8, 16))
SEGMENT = [
    ("target", "u8"), ("strides", "i8", 6), ("shape", "u4", 6), ("elements", "u4"), ("dims", "i4"),
    ("first_term", "i4"), ("terms", "i4"), ("kind", "i4"), ("unused", "i4"),
]  # fmt: skip
TERM = [("source", "u8"), ("strides", "i8", 6)]


class RaceError(RuntimeError):
    """Two segments of one launch write the same bytes, or one writes what another reads."""


def identity(name, dtype):
    """Return the value of a dtype that its reducer does not change anything by."""
    if dtype == np.int32:
        return {"zero": 0, "one": 1, "lowest": -(2**31), "highest": 2**31 - 1}[name]
    return {"zero": 0, "one": 1, "lowest": -np.inf, "highest": np.inf}[name]


def strided(start, strides, shape, dtype, check):
    """View elements at an address; `check` is told the range of bytes."""
    reach = [stride * (extent - 1) for stride, extent in zip(strides, shape, strict=True)]
    low = start + sum(step for step in reach if step < 0)
    nbytes = sum(map(abs, reach)) + dtype.itemsize
    check(low, nbytes)
    return np.ndarray(shape, dtype, _memory.bytes_at(low, nbytes), start - low, strides)


def bytes_of(start, strides, shape, dtype):
    """Return the address of every byte of some elements."""
    addresses = np.arange(start, start + dtype.itemsize)
    for stride, extent in zip(strides, shape, strict=True):
        addresses = (addresses[:, None] + stride * np.arange(extent)).reshape(-1)
    return addresses


def run(segments, terms, first_blocks, blocks, check=_memory.require_reachable):
    """Do what the kernel does. Raises RaceError where the order of segments would matter."""
    written, read, expected_block = [], [], 0
    for number, (segment, first_block) in enumerate(zip(segments, first_blocks, strict=True)):
        shape = tuple(map(int, segment["shape"][: segment["dims"]]))
        elements = int(np.prod(shape, dtype=np.int64))
        if elements != segment["elements"] or not elements or first_block != expected_block:
            raise ValueError(f"segment {number}: {segment}, first block {first_block}, expected {expected_block}")
        expected_block += -(-elements // ELEMENTS_PER_BLOCK)
        own = terms[segment["first_term"] :][: segment["terms"]]
        written.append(bytes_of(int(segment["target"]), *_layout(segment, shape)))
        read += [bytes_of(int(term["source"]), *_layout(term, shape, segment)) for term in own]
        _segment(segment, own, shape, check)
    if expected_block != blocks:
        raise ValueError(f"{blocks} blocks, expected {expected_block}")
    targets = np.concatenate(written) if written else np.zeros(0, int)
    if len(np.unique(targets)) != len(targets):
        raise RaceError("two segments of one launch write the same bytes")
    if read and np.isin(np.concatenate(read), targets).any():
        raise RaceError("a launch writes what it reads")


def _dtype(kind):
    return COPIES[kind] if kind < len(COPIES) else np.dtype(DTYPES[(kind - len(COPIES)) % len(DTYPES)])


def _layout(entry, shape, segment=None):
    strides = tuple(int(stride) for stride in entry["strides"][: len(shape)])
    return strides, shape, _dtype((entry if segment is None else segment)["kind"])


def _segment(segment, terms, shape, check):
    target = strided(int(segment["target"]), *_layout(segment, shape), check)
    sources = [strided(int(term["source"]), *_layout(term, shape, segment), check) for term in terms]
    if segment["kind"] < len(COPIES):
        (target[...],) = sources
        return
    combine, start = REDUCERS[(segment["kind"] - len(COPIES)) // len(DTYPES)]
    value = np.full(shape, identity(start, target.dtype), target.dtype)
    for source in sources:
        value = combine(value, source)
    target[...] = value


def _launched(grid, block, args):
    segments, terms, first_blocks, count = args
    if not isinstance(count, np.int32) or block[0] > 1024:
        raise TypeError("the kernel's last argument is an int; a block has up to 1024 threads")
    tables = segments._host.view(SEGMENT), terms._host.view(TERM), first_blocks._host.view(np.int32)
    if len(tables[0]) != count:
        raise ValueError(f"{count} segments announced, {len(tables[0])} given")
    run(*tables, grid[0])


_module.KERNELS["multifetch"] = _launched
