"""The catalog is analysed once per operator, ranks and attributes, whatever the shapes."""

from dataclasses import replace

import numpy as np
import pytest
from operator_verification.cases import CASES

import tdl
from executor.cases import Draw
from tdl import analysis


def fresh():
    """The catalog without anything remembered."""
    return {name: replace(operator, descriptions={}) for name, operator in tdl.catalog.items()}


@pytest.fixture
def analyses(monkeypatch):
    """Counts the analyses of strategies."""
    count = []
    analyse = analysis.strategies

    def counted(*arguments):
        count.append(arguments)
        return analyse(*arguments)

    monkeypatch.setattr(analysis, "strategies", counted)
    return count


def test_the_catalog_is_analysed_once_for_each_operator_ranks_and_attributes(analyses):
    catalog, different = fresh(), set()
    for name, operator in catalog.items():
        if name not in CASES:
            continue  # an operator that a test, or a module of PyTorch, has added
        draw = Draw(np.random.default_rng(3))
        for _ in range(4):
            case = CASES[name](draw)
            attributes = {key: value for key, value in case.attributes.items() if key != "extents"}
            ranks = tuple(operand.ndim for operand in case.operands)
            for _ in range(3):
                operator.describe(ranks, case.attributes)
            different.add((name, ranks, repr(sorted(attributes.items()))))
    assert len(analyses) == len(different)


def test_shapes_are_no_reason_for_another_analysis(analyses):
    mm, conv = (replace(tdl.catalog[name], descriptions={}) for name in ("mm", "convolution"))
    for size in range(1, 20):
        mm.describe((2, 2)).extents(((size, 3), (3, 2 * size)))
        conv.describe((4, 4), {"stride": (1, 1), "padding": (1, 1)}).extents(((2, 3, size, size), (4, 3, 3, 3)))
    assert len(analyses) == 2
    assert mm.describe((2, 2)) is mm.describe([2, 2], {"extents": {"i": 7}})


def test_catalog_names_operands_and_attributes():
    adam = tdl.catalog["adam"]
    assert adam.operands == ("w", "grad", "m", "v", "t")
    assert adam.required == ("lr", "beta1", "beta2", "eps")
    assert dict(tdl.catalog["mm"].attributes) == {"transpose_a": False, "transpose_b": False}
    assert tdl.catalog["add_n"].variadic
    assert tdl.catalog["stack"].describe((1, 1), {"dim": 0}).operands == ("tensors0", "tensors1")
    assert {op.category for op in tdl.catalog.values()} == {
        "matmul",
        "convolution",
        "reduction",
        "elementwise",
        "other",
    }
