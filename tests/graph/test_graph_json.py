import copy
import json

import pytest
from hypothesis import given, settings, strategies as st

from planner.errors import GraphError
from planner.graph import GraphBuilder, Init
from planner.graph.graph_json import from_data, load_graph, to_data
from planner.models import build


def there_and_back(graph):
    return from_data(json.loads(json.dumps(to_data(graph))))


MODELS = {
    "mlp-2-4": {"batch": 2},
    "cnn-2-4": {"batch": 2, "image": 4, "batch_norm": True, "optimizer": "adam"},
    "wresnet-14-0.25": {"batch": 2, "image": 64, "dtype": "float64", "optimizer": "sgd"},
    "rnn-2-4": {"batch": 2, "unroll": 3, "classes": 3, "input_width": 5},
}


@pytest.mark.parametrize("name", MODELS)
def test_models_round_trip(name, tmp_path):
    graph = build(name, **MODELS[name])
    assert there_and_back(graph) == graph
    (tmp_path / "graph.json").write_text(json.dumps(to_data(graph)))
    assert load_graph(tmp_path / "graph.json") == graph


SHAPES = st.lists(st.integers(1, 4), max_size=3).map(tuple)
FACTORS = st.floats(allow_nan=False, allow_infinity=False, width=64)


@st.composite
def graphs(draw):
    b = GraphBuilder(draw(st.sampled_from(("float32", "float64"))))
    tensors = []
    for number in range(draw(st.integers(1, 3))):
        init = draw(st.sampled_from((Init("zeros"), Init("uniform", draw(st.floats(1e-9, 1e9))))))
        tensors.append(b.weight(f"w{number}", draw(SHAPES), init))
    for number in range(draw(st.integers(0, 8))):
        tensors.append(draw(applied(b, tensors, f"n{number}")))
    return b.finish({}, {"last": tensors[-1]})


@st.composite
def applied(draw, b, tensors, name):
    x = draw(st.sampled_from(tensors))
    rank = len(b.shape(x))
    choice = draw(st.sampled_from(("relu", "scale", "add", "sum", "expand", "stack")))
    if choice == "scale":
        return b.apply("scale", x, name=name, factor=draw(FACTORS))
    if choice == "add":
        dims = tuple(sorted(draw(st.sets(st.integers(0, rank - 1))))) if rank else ()
        other = b.input(f"{name}.b", tuple(b.shape(x)[dim] for dim in dims))
        return b.apply("add", x, other, name=name, dims=dims)
    if choice == "sum" and rank:
        return b.apply("sum", x, name=name, dims=(draw(st.integers(0, rank - 1)),))
    if choice == "expand":
        extents = {"e0": draw(st.integers(1, 5))}
        return b.apply("expand", x, name=name, dims=(draw(st.integers(0, rank)),), extents=extents)
    if choice == "stack":
        with b.timestep(draw(st.integers(0, 3))):
            return b.apply("stack", x, x, name=name, dim=draw(st.integers(0, rank)))
    return b.apply("relu", x, name=name)


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_random_graphs_round_trip(graph):
    again = there_and_back(graph)
    assert again == graph
    assert json.dumps(to_data(again)) == json.dumps(to_data(graph))


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
    "nodes of another type": (change("nodes", {}), r"^\$\.nodes: expected `array`, got `object`"),
    "unknown key": (change("extra", 1), r"^\$: object contains unknown field `extra`"),
    "unknown key of a node": (change("nodes", 0, "when", 1), r"^\$\.nodes\[0\]: .*unknown field `when`"),
    "node without operator": (drop("nodes", 1, "op"), r"^\$\.nodes\[1\]: .*missing required field `op`"),
    "node that is none": (change("nodes", 2, None), r"^\$\.nodes\[2\]: expected `object`, got `null`"),
    "operand of another type": (change("nodes", 0, "inputs", 0, 7), r"^\$\.nodes\[0\]\.inputs\[0\]: expected `str`"),
    "timestep of another type": (change("nodes", 0, "unroll", ["a", "b"]), r"^\$\.nodes\[0\]\.unroll\[1\]: expected"),
    "shape of another type": (change("tensors", "fc1.w", "shape", "4x4"), r"^\$\.tensors\.fc1\.w\.shape: expected"),
    "extent of another type": (change("tensors", "fc1", "shape", [3, 4.5]), r"^\$\.tensors\.fc1\.shape\[1\]: expected"),
    "init without kind": (drop("tensors", "fc1.w", "init", "kind"), r"^\$\.tensors\.fc1\.w\.init: .*`kind`"),
    "unknown key of init": (change("tensors", "fc1.w", "init", "low", 0), r"^\$\.tensors\.fc1\.w\.init: .*`low`"),
    "update of another type": (change("updates", "fc1.w", 3), r"^\$\.updates\.fc1\.w: expected `str`, got `int`"),
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
