"""A .npz file is read as it was written, or refused in one line that names it: opened, or read array by array."""

import random

import numpy as np
import pytest

from executor.weights import Npz, open_arrays
from planner.errors import InputError

ARRAYS = {"a": np.arange(60.0).reshape(3, 20), "b": np.array(2), "none": np.empty((0, 4), np.int32)}


def test_what_was_written_is_read(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", **ARRAYS)
    arrays = Npz(tmp_path / "x.npz")
    assert set(arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
    assert arrays.get("c") is None


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_flipped_bits_are_harmless_or_said(tmp_path, write):
    path, rng, refused = tmp_path / "x.npz", random.Random(write.__name__), 0
    write(path, **ARRAYS)
    content = path.read_bytes()
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            dict(Npz(path))
        except InputError as error:
            assert str(error).startswith(f"{path}: expected arrays as numpy.savez writes them: ")  # noqa: PT017
            refused += 1
    assert refused > 100


def test_other_things_called_npz(tmp_path):
    path = tmp_path / "x.npz"
    with path.open("wb") as file:
        np.save(file, ARRAYS["a"])
    with pytest.raises(InputError, match="a single array"):
        Npz(path)
    np.savez(path, x=np.array([{}]))
    with pytest.raises(InputError, match=r"x\.npz: expected arrays .* Object arrays"):
        _ = open_arrays(path).kinds
