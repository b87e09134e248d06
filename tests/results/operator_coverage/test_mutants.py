"""A description without a kernel that is one change off is found: by its compositions' oracles, or by its own."""

from __future__ import annotations

import sys
from collections import defaultdict
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest

from executor.cases import Draw
from executor.verification.check import difference
from results.operator_coverage.tables.operators import OPERATORS, operator
from tests.results.operator_coverage.oracles_alone import ORACLES
from tests.results.operator_coverage.test_descriptions import CASES, HAS_TORCH, RANDOM, TABLES
from tests.results.operator_coverage.test_soundness import CASES as DRAWN
from tests.verify.mutated_trees import Mutated, description_changes

CHANGES = 5
"""How many changes of each description are tried; None: all of them, which takes ten times as long."""

SHAPES = 30
"""Cases on which an oracle is asked before a mutant counts as alive."""

EQUIVALENT = {
    "cosine_window: sign of i": "a cosine is even",
    "mirror_lower: offset": "on the diagonal both choices are the same element",
    "affine_grid_backward: stride of k": "2 k is 0 where k is",
    "scatter: offset": "one of the uses of the last index only asks for its sign",
    "scatter: stride of s": "one of the uses of the last index only asks for its sign",
    "scatter_rows: offset": "one of the uses of the last index only asks for its sign",
    "scatter_rows: stride of s": "one of the uses of the last index only asks for its sign",
}
"""Changes of which one, at some place, means nothing, and why."""


def differs(name, described, oracle):
    """Say how an operator's results on random cases differ from what its oracle says, or None."""
    draw = Draw(np.random.default_rng(0))
    for _ in range(SHAPES):
        case = DRAWN[name](draw)
        attributes = {key: value for key, value in case.attributes.items() if key != "extents"}
        expected = oracle(*case.operands, **attributes)
        description = described.describe([operand.ndim for operand in case.operands], case.attributes)
        found = description.evaluate(case.operands, case.attributes)
        said = difference(found, expected if isinstance(expected, tuple) else (expected,), 1e-9)
        if said is not None:
            return said
    return None


@pytest.mark.parametrize("name", ORACLES)
def test_descriptions_compute_what_their_oracles_say(name):
    assert differs(name, OPERATORS[name], ORACLES[name]) is None


@cache
def uses():
    """The compositions that have an oracle, by the operators that they are made of."""
    found = defaultdict(list)
    for table, name in CASES:
        for part in TABLES[table][0][name].composition.parts:
            found[part].append((table, name))
    return found


@cache
def expected(table, name):
    oracle = TABLES[table][1][name]
    found = oracle.function(*oracle.operands)
    return found if isinstance(found, tuple) else (found,)


@contextmanager
def in_place_of(name, mutated):
    """Describe an operator otherwise in every composition."""
    module = sys.modules["results.operator_coverage.tables.composition"]
    module.operator = lambda own: mutated if own == name else operator(own)
    try:
        yield
    finally:
        module.operator = operator


def is_found(name, change):
    mutated = Mutated(OPERATORS[name], change)
    try:
        if name in ORACLES and differs(name, mutated, ORACLES[name]) is not None:
            return True
        with in_place_of(name, mutated):
            for table, entry in uses()[name]:
                composition, oracle = TABLES[table][0][entry].composition, TABLES[table][1][entry]
                arrays = dict(zip(composition.operands, oracle.operands, strict=True))
                if difference(composition.evaluate(arrays), expected(table, entry), 1e-5) is not None:
                    return True
    except ValueError:
        return True  # a TDLError: shapes do not fit
    return False


def setting(name):
    """Ranks and attributes at which an operator's oracle asks for its description."""
    if name in ORACLES:
        case = DRAWN[name](Draw(np.random.default_rng(0)))
        return [operand.ndim for operand in case.operands], case.attributes
    table, entry = uses()[name][0]
    composition = TABLES[table][0][entry].composition
    parts = zip(composition.applications, composition.descriptions(), strict=True)
    application, found = next(part for part in parts if part[0].operator == name)
    return [rank for _, rank in found.extent_rules.operands], application.attributes


def every_mutant(limit=CHANGES):
    """Changes of every description that is not random, or `limit` of them, spread over all that it has."""
    for name in sorted(OPERATORS.keys() - RANDOM - {"warp_grid"}):
        changes = description_changes(OPERATORS[name], *setting(name))
        order = np.random.default_rng(list(name.encode())).permutation(len(changes))[:limit]
        yield from ((name, changes[number]) for number in sorted(order))


@pytest.mark.skipif(not HAS_TORCH, reason="the oracles of ATen and ONNX are PyTorch's functions")
def test_every_mutant_is_found():
    made = list(every_mutant())
    alive = [(name, change) for name, change in made if not is_found(name, change)]
    assert [f"{name}: {change}" for name, change in alive if f"{name}: {change.label}" not in EQUIVALENT] == []
    assert len(alive) <= len(EQUIVALENT)
    assert len(made) >= 400
