"""SoyBean's Section 2.2: its figures from its formulas, exact counts, and plans at least as good as its hybrid."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[2] / "results" / "soybean-example"
MB = 10**6


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(HERE))
    yield runpy.run_path(str(HERE / "run.py"))
    sys.path.remove(str(HERE))
    del sys.modules["schemes"]


@pytest.fixture(scope="module")
def published():
    return json.loads((HERE / "published.json").read_text())


@pytest.fixture(scope="module")
def written():
    return json.loads((HERE / "data.json").read_text())


def test_accounts(script, published, written):
    rows = [row for one in script["examples"](published) for row in script["accounts_of"](one)]
    assert rows == written["accounts"]
    for row in rows[:3]:
        assert row["text"] / MB == pytest.approx(published["megabytes"][row["scheme"]])
    assert all(row["moved"] == row["without_own_part"] for row in rows)


def test_plans_are_at_least_as_good_as_the_hybrid(script, published, written):
    plans = script["plans_of"](script["examples"](published)[0])
    assert plans == written["plans"]
    found = {(row["searcher"], row["placements"], tuple(row["ways"])): row["bytes"] for row in plans}
    for ways in ((4, 4), (2, 2, 2, 2)):
        for searcher in ("recursive", "joint"):
            assert found[searcher, "S", ways] < published["megabytes"]["hybrid"] * MB
            assert found[searcher, "S,R", ways] <= found["hybrid", "S,R", ways]
