"""The page's conversions are what the script makes, and signatures are the published ones."""

import json

import tdl
from results.conversions import run
from results.conversions.inference import inferences
from results.experiment import read_data, read_published


def test_signatures_of_a_matrix_product_are_the_published_ones():
    inferred = inferences(tdl.catalog["mm"].describe((2, 2), {}))
    rows = {tuple(str(p) for p in (*row.operands, *row.outputs)) for row in inferred}
    published = read_published(run.HERE)["matmul"]
    assert rows == {tuple(row) for row in published}


def test_the_data_is_what_the_script_makes():
    assert read_data(run.HERE) == json.loads(json.dumps(run.data()))
