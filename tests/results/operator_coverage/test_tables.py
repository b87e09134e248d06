"""The tables are complete, every composition describes, and what is claimed of the counts holds."""

from __future__ import annotations

import pytest

import tdl
from results.operator_coverage.composition import composition
from results.operator_coverage.entries import CATALOGS, KINDS, TENSOR_FOLDER, Entry, counts
from results.operator_coverage.operators import OPERATORS
from tests.pages import ROOT

FACTS = ROOT.parent / "shared" / "facts"
MXNET = CATALOGS["MXNet 0.11.0"]
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


def test_at_least_what_the_paper_describes():
    counted = counts(MXNET.values())
    assert counted["operators"] == 231
    assert counted["described"] >= 134
    assert counts(CATALOGS["core ATen 2.11"].values())["described"] >= 0.85 * 164


def test_the_tensor_folder_names_operators():
    assert len(TENSOR_FOLDER) == 139
    assert MXNET.keys() >= TENSOR_FOLDER


def test_operators_without_a_kernel_are_used_and_are_not_in_the_catalog():
    entries = [entry for table in CATALOGS.values() for entry in table.values() if entry.composition]
    assert not OPERATORS.keys() & tdl.catalog.keys()
    assert OPERATORS.keys() <= {part for entry in entries for part in entry.composition.parts}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("relu(x[2])", "element-wise"),
        ("mm(a[2], b[2])", "output reduction"),
        ("potrf(a[3])", "opaque"),
        ("permute(x[2], dims=(1, 0))", "other"),
        ("y = mm(a[2], b[2]); potrf(c[3])", "opaque"),
        ("y = relu(x[2]); sum(y, dims=(1,))", "output reduction"),
    ],
)
def test_classes(text, kind):
    assert Entry(text).kind == kind


@pytest.mark.parametrize(
    ("text", "selects"),
    [
        ("embedding(weight[2], indices[1])", True),
        ("sequence_mask(x[3], length[1])", True),
        ('cumsum(x[1], dim=0, extents={"i0": 3})', False),
        ("causal_mask(x[2])", False),
        ("dropout(x[2], step[0], p=0.5)", False),
        ("relu(x[2])", False),
    ],
)
def test_selection_by_value_compares_an_index_with_a_value(text, selects):
    assert Entry(text).selects == selects


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonesuch(x[2])", "unknown operator 'nonesuch'"),
        ("relu(x)", "neither an operand with its rank nor an earlier result"),
        ("add(x[2], x[1])", "'x' in .* is declared twice"),
        ("y = 3", "does not apply one operator"),
        ("a, b = relu(x[2]); relu(a)", "relu has 1 outputs"),
        ("mm(a[2], b[3])", "'b' has 3 dimensions but 2 indices"),
        ("relu(x[2], slope=1)", "unknown attribute 'slope'"),
    ],
)
def test_a_wrong_composition_is_one_error(text, message):
    with pytest.raises(tdl.TDLError, match=message):
        composition(text).descriptions()


def listed(file, first, section=None):
    """Names in a list of operators: those of lines that `first` accepts, in one section of the file."""
    path = FACTS / file
    if not path.exists():
        pytest.skip(f"{file} is not there")
    names, current = set(), None
    for line in path.read_text().splitlines():
        if line.startswith("## "):
            current = line[3:].partition(":")[0]
        elif line.strip() and line[0] not in "#*" and (section is None or current == section):
            cells = line.split("\t")
            if first(cells):
                names.add(cells[0])
    return names


def test_mxnet_has_every_name():
    assert MXNET.keys() == listed("mxnet_0_11_ops.txt", lambda _: True, "SECTION 1")


def test_tensor_folder_is_the_folder():
    guess = listed("mxnet_0_11_ops.txt", lambda cells: cells[2].startswith("H1"), "SECTION 1")
    assert guess == TENSOR_FOLDER


def test_aten_has_every_name():
    names = listed("core_aten_ops.txt", lambda cells: not cells[0].startswith("prims."))
    assert CATALOGS["core ATen 2.11"].keys() == names
