import copy
import json

import pytest

from planner.errors import GraphError
from planner.graph.graph_json import from_data, load_graph, to_data
from planner.models import build


def there_and_back(graph):
    return from_data(json.loads(json.dumps(to_data(graph))))


MODELS = {
    "mlp-2-4": {"batch": 2, "lr": 0.1 + 0.2},
    "transformer-1-8": {"sequence": 4, "vocabulary": 11, "heads": 2, "dropout": 0.3, "micro_batches": 2},
    "wresnet-14-0.25": {"batch": 2, "image": 64, "dtype": "float64", "optimizer": "sgd"},
    "rnn-2-4": {"batch": 2, "unroll": 3, "classes": 3, "input_width": 5},
}


@pytest.mark.parametrize("name", MODELS)
def test_models_round_trip(name, tmp_path):
    graph = build(name, **MODELS[name])
    again = there_and_back(graph)
    assert again == graph
    assert json.dumps(to_data(again)) == json.dumps(to_data(graph))
    (tmp_path / "graph.json").write_text(json.dumps(to_data(graph)))
    assert load_graph(tmp_path / "graph.json") == graph


def change(*path):
    *outer, last, value = path

    def apply(data):
        for key in outer:
            data = data[key]
        data[last] = value

    return apply


def drop(*path):
    *outer, last = path

    def apply(data):
        for key in outer:
            data = data[key]
        del data[last]

    return apply


DAMAGES = {
    "no nodes": (drop("nodes"), r"^\$: object missing required field `nodes`"),
    "unknown key of a node": (change("nodes", 0, "when", 1), r"^\$\.nodes\[0\]: .*unknown field `when`"),
    "operand of another type": (change("nodes", 0, "inputs", 0, 7), r"^\$\.nodes\[0\]\.inputs\[0\]: expected `str`"),
    "timestep of another type": (change("nodes", 0, "unroll", ["a", "b"]), r"^\$\.nodes\[0\]\.unroll\[1\]: expected"),
    "init without kind": (drop("tensors", "fc1.w", "init", "kind"), r"^\$\.tensors\.fc1\.w\.init: .*`kind`"),
    "not a graph": (None, r"^\$: expected `object`, got `array`"),
    "inconsistent": (change("tensors", "fc1", "shape", [2, 5]), r"^\$: node 'fc1' .*should have shape"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_path_of_what_is_wrong_is_named(damage):
    apply, message = DAMAGES[damage]
    data = copy.deepcopy(to_data(build("mlp-2-4", batch=2)))
    if apply is None:
        data = []
    else:
        apply(data)
    with pytest.raises(GraphError, match=message):
        from_data(data)


def test_the_path_starts_where_the_graph_is_embedded():
    with pytest.raises(GraphError, match=r"^\$\.graph: expected `object`, got `int`"):
        from_data(3, "$.graph")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("\x00", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"nodes": [], "nodes": []}', "key 'nodes' occurs twice in one object"),
        ('{"tensors": {}, "nodes": [], "updates": {}}', r"\$: object missing required field `metrics`"),
    ],
)
def test_a_broken_file_is_named(tmp_path, text, message):
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(GraphError, match=rf"broken\.json: {message}"):
        load_graph(path)
