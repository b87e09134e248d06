"""The tables are complete, every composition describes, and the committed coverage is what the code finds now."""

from __future__ import annotations

import json

import pytest
from operator_verification.cases import CASES

import tdl
from results.experiment import read_data
from results.operator_coverage import facts
from results.operator_coverage.entries import CATALOGS, KINDS, Entry
from results.operator_coverage.operators import OPERATORS
from results.operator_coverage.run import HERE, read_verification

ENTRIES = [(catalog, name) for catalog, table in CATALOGS.items() for name in table]


@pytest.mark.parametrize(("catalog", "name"), ENTRIES, ids=lambda part: part)
def test_every_entry_is_described_or_has_a_reason(catalog, name):
    entry = CATALOGS[catalog][name]
    if entry.composition is None:
        assert len(entry.reason) > 10
        assert entry.kind is None
        return
    assert not entry.reason
    assert entry.kind in KINDS
    for description in entry.composition.descriptions():
        assert description.strategies.keys() | description.refusals.keys() == set(description.variables)


def test_operators_without_a_kernel_are_used_and_are_not_in_the_catalog():
    entries = [entry for table in CATALOGS.values() for entry in table.values() if entry.composition]
    assert not OPERATORS.keys() & tdl.catalog.keys()
    assert OPERATORS.keys() <= {part for entry in entries for part in entry.composition.parts}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("relu(x[2])", "element-wise"),
        ("mm(a[2], b[2])", "output reduction"),
        ("y = mm(a[2], b[2]); potrf(c[3])", "opaque"),
        ("permute(x[2], dims=(1, 0))", "other"),
    ],
)
def test_classes(text, kind):
    assert Entry(text).kind == kind


def test_every_row_is_what_the_code_finds():
    assert json.loads(json.dumps(facts.coverage())) == read_data(HERE), "run python -m results operator-coverage"


def test_what_was_verified():
    verified = read_verification()
    assert verified["soundness"]["with a kernel"]["operators"] == len(CASES)
    assert verified["soundness"]["with a kernel"]["fewest shapes of a strategy"] >= 50
    assert all(killed == drawn >= 100 for killed, drawn in verified["mutants"].values())
