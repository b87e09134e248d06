"""What the table of ATen's operators says of training graphs is so: a graph takes these, and refuses all others."""

from __future__ import annotations

import numpy as np
import pytest

from planner.errors import GraphError
from planner.graph import GraphBuilder
from planner.graph.build import ZEROS
from results.experiment import read_data
from results.operator_coverage.entries import CATALOGS
from results.operator_coverage.facts import operand_dtypes
from results.operator_coverage.run import HERE
from tests.results.operator_coverage.test_descriptions import HAS_TORCH, RANDOM, TABLES

ATEN = CATALOGS["core ATen 2.11"]
ROWS = read_data(HERE)["catalogs"]["core ATen 2.11"]
DESCRIBED = [name for name, entry in ATEN.items() if entry.text is not None]
SAMPLES = {
    entries[name].text: oracle.operands for entries, oracles in TABLES.values() for name, oracle in oracles.items()
}


def operands_of(entry):
    """Operands on which the composition is compared with others' results; of a random one, any."""
    if RANDOM & set(entry.composition.parts):
        return [np.zeros((3, 4)[:rank]) for rank in entry.composition.operands.values()]
    return SAMPLES[entry.text]


def build(entry):
    composition, builder = entry.composition, GraphBuilder()
    dtypes = operand_dtypes(composition)
    for (name, rank), array in zip(composition.operands.items(), operands_of(entry), strict=True):
        assert array.ndim == rank
        builder.input(name, array.shape, ZEROS, dtypes[name])
    for number, application in enumerate(composition.applications):
        builder.apply_all(
            application.operator,
            *application.inputs,
            name=f"node{number}",
            outputs=application.outputs,
            **application.attributes,
        )
    return builder.finish({}, {})


@pytest.mark.skipif(not HAS_TORCH, reason="the shapes are those of calls of PyTorch")
@pytest.mark.parametrize("name", DESCRIBED)
def test_a_graph_takes_what_the_table_says(name):
    if ROWS[name]["graph"]:
        assert len(build(ATEN[name]).nodes) == len(ATEN[name].composition.applications)
    else:
        with pytest.raises(GraphError):
            build(ATEN[name])


def test_what_is_refused_is_not_counted():
    refused = [
        name
        for name in DESCRIBED
        if not ROWS[name]["graph"] and ROWS[name]["kernel"][0] == len(ATEN[name].composition.parts)
    ]
    assert refused == []
