"""Runs are sets of indices: what is in both, and what is left."""

from hypothesis import given, strategies as st

from planner.layout.region import lengths_in_common, normalize, subtract_runs

RUNS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=5).map(normalize)


def indices(runs):
    return {i for start, stop in runs for i in range(start, stop)}


@given(st.lists(RUNS, max_size=4), st.lists(RUNS, max_size=4))
def test_lengths_in_common(rows, columns):
    lengths = lengths_in_common(rows, columns)
    assert lengths.shape == (len(rows), len(columns))
    assert lengths.tolist() == [[len(indices(row) & indices(column)) for column in columns] for row in rows]


@given(RUNS, RUNS)
def test_subtract_runs(runs, other):
    left = subtract_runs(runs, other)
    assert indices(left) == indices(runs) - indices(other)
    assert left == normalize(left)
