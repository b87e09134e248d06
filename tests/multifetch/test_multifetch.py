"""Boxes copied and combined by tables: the double's reading, and the kernel's own source on the host, against NumPy."""

import ml_dtypes
import numpy as np
import pytest

from executor.multifetch import SEGMENT, TERM, MultiFetch, box_of, copies, reduction, tables
from tdl import REDUCERS
from tests.multifetch.host import built

DTYPES = {
    "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64,
    "int32": np.int32,
}  # fmt: skip


@pytest.fixture(scope="module")
def kernels(cupy, tmp_path_factory):
    """The double's reading of the tables, and the source compiled for the host."""

    def double(table):
        cupy._multifetch.run(table.segments, table.terms, table.first_blocks, table.blocks, lambda *_range: None)

    return {"double": double, "source": built(tmp_path_factory.mktemp("host"))}


def numbers(generator, shape, dtype):
    """Numbers of every kind that a dtype has: large, small, zero, infinite and none."""
    if dtype == "int32":
        return np.asarray(generator.integers(-(2**31), 2**31, shape)).astype(np.int32)
    exponents = generator.integers(-26, 18, shape)
    values = np.asarray(generator.standard_normal(shape) * 2.0**exponents)
    values[generator.random(shape) < 0.05] = 0
    values[generator.random(shape) < 0.02] = np.inf
    values[generator.random(shape) < 0.02] = np.nan
    with np.errstate(over="ignore"):
        return values.astype(DTYPES[dtype])


def box(generator, shape):
    """A random box, sometimes empty."""
    starts = [int(generator.integers(0, extent)) for extent in shape]
    stops = [int(generator.integers(start, extent + 1)) for start, extent in zip(starts, shape, strict=True)]
    return tuple(slice(*ends) for ends in zip(starts, stops, strict=True))


def laid_out(generator, shape, dtype):
    """An array of a shape whose dimensions lie apart, turned round or one behind the other."""
    order = generator.permutation(len(shape))
    larger = [shape[dim] + int(generator.integers(0, 2)) for dim in order]
    array = numbers(generator, larger, dtype)[(*(slice(shape[dim]) for dim in order), ...)]
    return array.transpose(np.argsort(order))


@pytest.mark.parametrize("which", ["double", "source"])
@pytest.mark.parametrize("seed", range(12))
def test_copies_of_random_boxes(kernels, which, seed):
    generator = np.random.default_rng(seed)
    pairs, expected = [], []
    for dtype in (*DTYPES, "float32", "float32"):
        shape = tuple(int(extent) for extent in generator.integers(1, 9, generator.integers(0, 6)))
        whole = np.zeros([extent + 2 for extent in shape], DTYPES[dtype])
        target = whole[(*(slice(1, 1 + extent) for extent in shape), ...)]
        source = laid_out(generator, shape, dtype)
        pairs.append((target, source))
        result = whole.copy()
        result[(*(slice(1, 1 + extent) for extent in shape), ...)] = source
        expected.append((whole, result))
    kernels[which](tables(copies(pairs)))
    for copied, wanted in expected:
        assert copied.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("which", ["double", "source"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reducer", ["Sum", "Prod", "Max", "Min"])
def test_reductions_of_overlapping_boxes_in_order(kernels, which, reducer, dtype):
    generator = np.random.default_rng([len(reducer), *dtype.encode()])
    combine = REDUCERS[reducer].numpy
    for _ in range(4):
        shape = tuple(int(extent) for extent in generator.integers(2, 12, generator.integers(1, 4)))
        whole = numbers(generator, shape, dtype)
        expected = np.full(shape, _identity(reducer, dtype), DTYPES[dtype])
        pairs = []
        for _ in range(6):
            target = box(generator, shape)
            source = laid_out(generator, expected[target].shape, dtype)
            pairs.append((whole[target], source))
            with np.errstate(all="ignore"):
                expected[target] = combine(expected[target], source)
        with np.errstate(all="ignore"):
            kernels[which](tables(reduction(whole, pairs, reducer)))
        number = ~np.isnan(expected.astype(float))
        assert np.array_equal(np.isnan(whole.astype(float)), ~number)
        assert np.array_equal(whole[number], expected[number])


def _identity(reducer, dtype):
    if dtype == "int32":
        return {"Sum": 0, "Prod": 1, "Max": -(2**31), "Min": 2**31 - 1}[reducer]
    return REDUCERS[reducer].identity


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_round_as_numpys(kernels, dtype):
    """Every number of 16 bits plus others: what is rounded is right to the last bit."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    generator = np.random.default_rng(1)
    for _ in range(3):
        values, other = bits.view(DTYPES[dtype]), generator.permutation(bits).view(DTYPES[dtype])
        sums = np.empty(len(bits), DTYPES[dtype])
        kernels["source"](tables(reduction(sums, [(sums, values), (sums, other)], "Sum")))
        with np.errstate(all="ignore"):
            expected = (DTYPES[dtype](0) + values) + other
        number = ~np.isnan(expected.astype(np.float32))
        assert np.array_equal(np.isnan(sums.astype(np.float32)), ~number)
        assert np.array_equal(sums[number].view(np.uint16), expected[number].view(np.uint16))


def test_blocks_share_large_segments(kernels):
    values = np.arange(100_003, dtype=np.float32)
    first, second, third = np.zeros_like(values), np.zeros((7, 3), np.float32), np.zeros_like(values)
    pairs = [(first, values), (second, values[:21].reshape(7, 3)), (third[::2], values[::2])]
    table = tables(copies(pairs))
    assert table.blocks == -(-100_003 // 2048) + 1 + -(-50_002 // 2048)
    kernels["source"](table)
    assert np.array_equal(first, values)
    assert np.array_equal(second.reshape(-1), values[:21])
    assert np.array_equal(third, np.where(values % 2, 0, values))


def aligned(nbytes):
    memory = np.zeros(nbytes + 16, np.uint8)
    skipped = -memory.ctypes.data % 16
    return memory[skipped : skipped + nbytes]


def test_copies_move_the_largest_units_that_divide_them():
    source, target = (aligned(256).view(np.float32) for _ in range(2))
    units = {
        "all": (slice(None), slice(None), 4),
        "from the second": (slice(1, 64), slice(1, 64), 2),
        "shifted": (slice(0, 62), slice(2, 64), 3),
        "every other": (slice(0, 64, 2), slice(0, 64, 2), 2),
    }
    for to, start, kind in units.values():
        (segment,) = tables(copies([(target[to], source[start])])).segments
        assert segment["kind"] == kind
        assert segment["elements"] * (1 << kind) == target[to].nbytes


def test_dimensions_merge_where_all_arrays_allow():
    source, target = np.zeros((4, 6, 5, 2)), np.zeros((4, 6, 10))
    (segment,) = tables(copies([(target.reshape(4, 6, 5, 2), source)])).segments
    assert segment["dims"] == 1
    (segment,) = tables(copies([(target[:, :4].reshape(4, 4, 5, 2), source[:, 1:5])])).segments
    assert segment["shape"][: segment["dims"]].tolist()[0] == 4
    assert segment["dims"] == 2
    with pytest.raises(ValueError, match="at most 6 dimensions"):
        tables(copies([(np.zeros((2,) * 7), np.zeros((3,) * 7)[(slice(0, 2),) * 7])]))


def test_a_target_that_is_no_box():
    whole = np.zeros((4, 6))
    assert box_of(whole, whole[1:3, 2:]) == ((1, 3), (2, 6))
    assert box_of(whole, whole[3:4, 5:6]) == ((3, 4), (5, 6))
    with pytest.raises(ValueError, match="is no box"):
        box_of(whole, whole[:, ::2])


def test_the_tables_are_laid_out_as_the_source_says():
    assert (SEGMENT.itemsize, TERM.itemsize) == (104, 56)


DEVICES = ["double", pytest.param("cupy", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("xp", DEVICES, indirect=True)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_boxes_on_a_device(xp, dtype):
    generator = np.random.default_rng(5)
    for reducer in ("Sum", "Prod", "Max", "Min"):
        shape = (5, 40, 9)
        whole, target, source = (numbers(generator, shape, dtype) for _ in range(3))
        places = [box(generator, shape) for _ in range(5)]
        parts = [numbers(generator, whole[place].shape, dtype) for place in places]
        expected = np.full(shape, _identity(reducer, dtype), DTYPES[dtype])
        with np.errstate(all="ignore"):
            for place, part in zip(places, parts, strict=True):
                expected[place] = REDUCERS[reducer].numpy(expected[place], part)
        there, copied, copy = (xp.asarray(array) for array in (whole, target, source))
        pairs = [(there[place], xp.asarray(part)) for place, part in zip(places, parts, strict=True)]
        inner = (slice(1, 4), slice(0, 40, 3), slice(2, 9))
        MultiFetch(xp, [*reduction(there, pairs, reducer), *copies([(copied[inner], copy[inner])])])()
        target[inner] = source[inner]
        assert np.array_equal(there.get(), expected, equal_nan=dtype != "int32")
        assert copied.get().tobytes() == target.tobytes()


def test_one_launch_on_the_double(cupy):
    sources = [cupy.asarray(np.arange(6, dtype=np.float32) + start) for start in (0, 10)]
    target, total = cupy.zeros((2, 6), np.float32), cupy.zeros(6, np.float32)
    moves = [*copies(zip(target, sources, strict=True)), *reduction(total, [(total, s) for s in sources], "Sum")]
    launch = MultiFetch(cupy, moves)
    before = cupy._memory.LAUNCHES.copy()
    launch()
    assert cupy._memory.LAUNCHES - before == {"multifetch": 1}
    assert target.get().tolist() == [[0, 1, 2, 3, 4, 5], [10, 11, 12, 13, 14, 15]]
    assert total.get().tolist() == [10, 12, 14, 16, 18, 20]


def test_the_double_finds_races_and_freed_memory(cupy):
    target, source = cupy.zeros(8, np.float32), cupy.zeros(8, np.float32)
    twice = MultiFetch(cupy, copies([(target[:5], source[:5]), (target[4:], source[4:])]))
    with pytest.raises(RuntimeError, match="write the same bytes"):
        twice()
    chained = MultiFetch(cupy, copies([(target[:4], source[:4]), (source[:4], target[4:])]))
    with pytest.raises(RuntimeError, match="writes what it reads"):
        chained()
    block = cupy.cuda.Memory(64)
    gone = cupy.ndarray(16, np.float32, cupy.cuda.MemoryPointer(block, 0))
    launch = MultiFetch(cupy, copies([(target, gone[:8])]))
    cupy._memory.ALLOCATIONS.pop(block.ptr)
    with pytest.raises(RuntimeError, match="cudaErrorIllegalAddress"):
        launch()
    cupy._memory.ALLOCATIONS[block.ptr] = 64
