"""The committed coverage is what the code finds now."""

from __future__ import annotations

import json

from operator_verification.cases import CASES

from results.experiment import read_data
from results.operator_coverage import facts
from results.operator_coverage.operators import OPERATORS
from results.operator_coverage.run import HERE, read_verification

COMMITTED = read_data(HERE)


def test_every_row_is_what_the_code_finds():
    coverage = json.loads(json.dumps(facts.coverage()))
    for catalog, rows in coverage["catalogs"].items():
        for name, row in rows.items():
            assert COMMITTED["catalogs"][catalog][name] == row, f"{name}: run python -m results operator-coverage"
    assert coverage == COMMITTED


def test_what_was_verified():
    verified = read_verification()
    operators = {group: own["operators"] for group, own in verified["soundness"].items()}
    assert operators == {"with a kernel": len(CASES), "without a kernel": len(OPERATORS)}
    assert min(own["fewest shapes of a strategy"] for own in verified["soundness"].values()) >= 50
    assert all(killed == drawn >= 100 for killed, drawn in verified["mutants"].values())


def test_most_descriptions_are_within_three_lines():
    for own in COMMITTED["lines"].values():
        assert sum(own.get(str(number), 0) for number in (1, 2, 3)) > sum(own.values()) / 2
    assert sum(COMMITTED["lines"]["with a kernel"].values()) == len(CASES)
