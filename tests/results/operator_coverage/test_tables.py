"""The tables are complete, every composition describes, and what is claimed of the counts holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tdl
from results.operator_coverage.tables import (
    ALIASES,
    CATALOGS,
    KINDS,
    OPERATORS,
    TENSOR_FOLDER,
    Entry,
    composition,
    counts,
)

FACTS = Path(__file__).resolve().parents[3] / "shared" / "facts"
MXNET = CATALOGS["MXNet 0.11.0"]
ENTRIES = [
    (catalog, group, name)
    for catalog, groups in CATALOGS.items()
    for group, table in groups.items()
    for name in table
]  # fmt: skip


@pytest.mark.parametrize(("catalog", "group", "name"), ENTRIES, ids=lambda part: part)
def test_every_entry_is_described_or_has_a_reason(catalog, group, name):
    entry = CATALOGS[catalog][group][name]
    if entry.composition is None:
        assert len(entry.reason) > 10
        assert entry.kind is None
        return
    assert not entry.reason
    assert entry.kind in KINDS
    for description in entry.composition.descriptions():
        assert description.strategies.keys() | description.refusals.keys() == set(description.variables)


def test_at_least_what_the_paper_describes():
    found = counts(MXNET["operators"].values())
    assert found["operators"] == 231
    assert found["described"] >= 134
    assert counts(CATALOGS["core ATen 2.11"]["operators"].values())["described"] >= 0.85 * 164


def test_aliases_and_the_tensor_folder_name_operators():
    assert set(ALIASES.values()) <= MXNET["operators"].keys()
    assert not ALIASES.keys() & MXNET["operators"].keys()
    assert len(TENSOR_FOLDER) == 139
    assert MXNET["operators"].keys() >= TENSOR_FOLDER


def test_operators_without_a_kernel_are_used_and_are_not_in_the_catalog():
    used = {part for _, _, part in parts()}
    assert not OPERATORS.keys() & tdl.catalog.keys()
    assert OPERATORS.keys() - used <= {"warp_grid"}


def parts():
    for catalog, group, name in ENTRIES:
        entry = CATALOGS[catalog][group][name]
        yield from ((catalog, name, part) for part in (entry.composition.parts if entry.composition else ()))


def test_flow_of_pixels():
    """The other way to generate a grid: `GridGenerator` of type warp."""
    flow = np.random.default_rng(0).uniform(-1, 1, (2, 2, 3, 4))
    (grid,) = OPERATORS["warp_grid"].describe((4,), {"size": (3, 4)}).evaluate([flow])
    np.testing.assert_allclose(grid[:, 0], (flow[:, 0] + np.arange(4)) * 2 / 3 - 1)
    np.testing.assert_allclose(grid[:, 1], (flow[:, 1] + np.arange(3)[:, None]) * 2 / 2 - 1)


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
    found, current = set(), None
    for line in path.read_text().splitlines():
        if line.startswith("## "):
            current = line[3:].partition(":")[0]
        elif line.strip() and line[0] not in "#*" and (section is None or current == section):
            cells = line.split("\t")
            if first(cells):
                found.add(cells[0])
    return found


@pytest.mark.parametrize(
    ("section", "group"),
    [("SECTION 1", "operators"), ("SECTION 2", "imperative functions"), ("SECTION 3", "plugins")],
)
def test_mxnet_has_every_name(section, group):
    assert MXNET[group].keys() == listed("mxnet_0_11_ops.txt", lambda _: True, section)


def test_mxnet_has_every_gradient_and_alias():
    gradients = [listed("mxnet_0_11_ops.txt", lambda _: True, section) for section in ("SECTION 4", "SECTION 5")]
    assert MXNET["gradients"].keys() == gradients[0] | gradients[1]
    aliases = listed("mxnet_0_11_ops.txt", lambda _: True, "SECTION 6")
    assert {f"{alias} -> {name}" for alias, name in ALIASES.items()} == aliases


def test_tensor_folder_is_the_folder():
    guess = listed("mxnet_0_11_ops.txt", lambda cells: cells[2].startswith("H1"), "SECTION 1")
    assert guess == TENSOR_FOLDER


@pytest.mark.parametrize(
    ("group", "domains"),
    [
        ("operators", {"ai.onnx"}),
        ("preview domains", {"ai.onnx.preview", "ai.onnx.preview.training"}),
        ("classical machine learning", {"ai.onnx.ml"}),
    ],
)
def test_onnx_has_every_name(group, domains):
    assert CATALOGS["ONNX 1.23"][group].keys() == listed("onnx_ops.txt", lambda cells: cells[2] in domains)


def test_aten_has_every_name():
    names = listed("core_aten_ops.txt", lambda cells: not cells[0].startswith("prims."))
    assert CATALOGS["core ATen 2.11"]["operators"].keys() == names
