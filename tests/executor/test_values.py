from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from executor import values
from executor.backend import asnumpy
from executor.values import Tile, stream
from planner.graph.ir import Init, Tensor
from planner.layout.region import whole
from tests.cross.loopback import make
from tests.executor.training import index_of

UNIFORM = Init("uniform", scale=0.5)


def tensor(shape, dtype="float32", init=UNIFORM):
    return Tensor("t", shape, dtype, "weight", init)


def all_of(spec, xp=np):
    return asnumpy(make(xp, Tile(spec, whole(spec.shape)), stream(7, spec.name)))


def test_published_numbers_of_splitmix64():
    """The generator of Steele, Lea, Flood 2014; Vigna's splitmix64.c."""
    hashes = values.hashed(np.arange(3, dtype=np.uint64), np.uint64(1234567))
    assert [int(n) for n in hashes] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 24), ("float64", 53)])
def test_floats_are_exact_functions_of_the_top_bits(xp, dtype, bits):
    drawn = all_of(tensor((50,), dtype), xp)
    words = values.hashed(np.arange(50, dtype=np.uint64), stream(7, "t"))
    exact = [(int(word) >> (64 - bits)) / 2**bits - 0.5 for word in words]
    assert drawn.astype(np.float64).tolist() == exact


@pytest.mark.parametrize("init", [UNIFORM, Init("integers", below=7), Init("zeros"), Init("ones")])
def test_backends_agree_bitwise(xp, init):
    spec = tensor((5, 6), "int32" if init.kind == "integers" else "float32", init)
    assert all_of(spec, xp).tobytes() == all_of(spec).tobytes()


runs = st.lists(st.integers(0, 12), unique=True, max_size=6).map(
    lambda cuts: tuple((a, b) for a, b in list(pairwise(sorted(cuts)))[::2])
)


@given(st.lists(runs, max_size=3))
def test_a_tile_is_a_slice_of_the_whole(region):
    spec = tensor((12,) * len(region))
    tile = make(np, Tile(spec, tuple(region)), stream(7, "t"))
    at = tuple(part.astype(int) for part in index_of(region))
    assert np.array_equal(tile, all_of(spec)[at])


def test_blocks_do_not_show(monkeypatch):
    spec = tensor((7, 5, 11))
    at_once = all_of(spec)
    monkeypatch.setattr(values, "BLOCK_ELEMENTS", 6)
    assert np.array_equal(all_of(spec), at_once)


def test_scalars():
    assert all_of(tensor(())).shape == ()
    assert all_of(tensor((), init=Init("ones"))) == 1


def test_streams_differ_by_seed_name_and_iteration():
    assert len({int(stream(*of)) for of in [(0, "a", 0), (1, "a", 0), (0, "b", 0), (0, "a", 1)]}) == 4


def test_integers_cover_their_range_evenly():
    drawn = all_of(tensor((70_000,), "int32", Init("integers", below=7)))
    assert drawn.dtype == np.int32
    assert abs(np.bincount(drawn, minlength=7) / 10_000 - 1).max() < 0.05


def test_values_that_the_hash_does_not_make():
    with pytest.raises(ValueError, match=r"tensor t: expected an initial value of kind .*data"):
        all_of(tensor((2,), init=Init("data")))
    with pytest.raises(ValueError, match="found 0"):
        all_of(tensor((2,), "int32", Init("integers")))
