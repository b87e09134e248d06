"""SoyBean's Section 2.2: its figures from its formulas, exact counts, and plans at least as good as its hybrid."""

from __future__ import annotations

import pytest

from results.experiment import read_data, read_published
from results.soybean_example.run import HERE, accounts_of, examples, plans_of

MB = 10**6


PUBLISHED, WRITTEN = read_published(HERE), read_data(HERE)


def test_accounts():
    rows = [row for example in examples(PUBLISHED) for row in accounts_of(example)]
    assert rows == WRITTEN["accounts"]
    for row in rows[:3]:
        assert row["text"] / MB == pytest.approx(PUBLISHED["megabytes"][row["scheme"]])
    assert all(row["moved"] == row["without_own_part"] for row in rows)


def test_plans_are_at_least_as_good_as_the_hybrid():
    plans = plans_of(examples(PUBLISHED)[0])
    assert plans == WRITTEN["plans"]
    nbytes = {(row["searcher"], row["placements"], tuple(row["ways"])): row["bytes"] for row in plans}
    for ways in ((4, 4), (2, 2, 2, 2)):
        for searcher in ("recursive", "joint"):
            assert nbytes[searcher, "S", ways] < PUBLISHED["megabytes"]["hybrid"] * MB
            assert nbytes[searcher, "S,R", ways] <= nbytes["hybrid", "S,R", ways]
