"""Tensors of given values, infinite attributes, frozen weights: what a graph says of them, also as JSON."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from executor.values import Tile, fill
from planner.errors import GraphError
from planner.graph import GraphBuilder, Init, Optimizer, training_graph
from planner.graph.graph_json import from_data, to_data
from planner.graph.infer import check
from planner.graph.ir import MOST_CHARACTERS, array_of

RANDOM = np.random.default_rng(0)
ARRAYS = [
    np.arange(12, dtype=np.int32).reshape(3, 4),
    np.tril(np.ones((5, 5), bool)),
    RANDOM.normal(size=(2, 3, 4)),
    np.array(-np.inf, np.float32),
    RANDOM.normal(size=(4, 2)).astype("bfloat16"),
]


def graph_of(array, role="constant"):
    builder = GraphBuilder()
    builder.constant("c", array, role)
    return builder.finish({}, {})


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}-{array.shape}")
def test_values_survive_json(array):
    graph = graph_of(array, "buffer")
    read = from_data(json.loads(json.dumps(to_data(graph))))
    assert read == graph
    assert read.tensors["c"].role == "buffer"
    assert array_of(read.tensors["c"]).tobytes() == array.tobytes()


@pytest.mark.parametrize("array", ARRAYS[1:3], ids=lambda array: str(array.dtype))
def test_a_worker_makes_its_tile(array):
    tensor = graph_of(array).tensors["c"]
    region = tuple(((0, 1), (2, extent)) if extent > 2 else ((1, extent),) for extent in array.shape)
    places = [np.concatenate([np.arange(*run) for run in runs]) for runs in region]
    out = np.zeros([len(along) for along in places], array.dtype)
    fill(np, out, Tile(tensor, region), np.uint64(0))
    np.testing.assert_array_equal(out, array[np.ix_(*places)])


def test_what_is_regular_is_small_and_what_is_large_is_refused():
    mask = graph_of(np.tril(np.ones((2048, 2048), bool)))
    assert len(json.dumps(to_data(mask))) < 20_000
    message = f"tensor 'c': values of shape (2048, 1024) take [0-9]+ characters, more than {MOST_CHARACTERS}"
    with pytest.raises(GraphError, match=message.replace("(", r"\(").replace(")", r"\)")):
        graph_of(RANDOM.normal(size=(2048, 1024)))
    with pytest.raises(GraphError, match="values of dtype complex128: expected one of float16"):
        graph_of(np.zeros(3, complex))


WRONG = {
    "no text": ("", "values should be 48 bytes for shape (3, 4) of int32, found 0"),
    "no base64": ("?", "values are not base64-encoded zlib data"),
    "too few": ("other", "values should be 48 bytes for shape (3, 4) of int32, found 8"),
    "too many": ("larger", "values should be 48 bytes for shape (3, 4) of int32, found more"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_values_are_named(wrong):
    text, message = WRONG[wrong]
    sizes = {"other": (2,), "larger": (1 << 20,)}
    if text in sizes:
        text = graph_of(np.zeros(sizes[text], np.int32)).tensors["c"].init.values
    graph = graph_of(ARRAYS[0])
    changed = {"c": replace(graph.tensors["c"], init=Init("values", values=text))}
    with pytest.raises(GraphError, match=re.escape(f"tensor 'c': {message}")):
        check(replace(graph, tensors=changed))


def test_a_constant_is_never_updated_and_a_buffer_may_be():
    for role in ("constant", "buffer"):
        b = GraphBuilder()
        b.constant("c", np.zeros((2,), np.int32), role)
        b.apply("add_scalar", "c", name="next", value=1)
        if role == "buffer":
            assert b.finish({"c": "next"}, {}).updates == {"c": "next"}
        else:
            with pytest.raises(GraphError, match="a constant is never updated"):
                b.finish({"c": "next"}, {})


def test_infinite_attributes_are_valid_json():
    b = GraphBuilder()
    x = b.input("x", (2, 2), dtype="float32")
    mask = b.constant("mask", np.eye(2, dtype=bool))
    b.apply("masked_fill", x, mask, name="filled", value=-np.inf)
    b.apply("clamp", "filled", name="bounded", min=0.5, max=np.inf)
    graph = b.finish({}, {})

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    text = json.dumps(to_data(graph), allow_nan=False)
    assert '{"float": "-inf"}' in text
    assert from_data(json.loads(text, parse_constant=refuse)) == graph


def trained(*, frozen):
    b = GraphBuilder("mixed")
    x = b.input("x", (4, 3))
    for name in ("one", "two"):
        x = b.apply("mm", x, b.weight(name, (3, 3), Init("uniform", 1.0), frozen=name in frozen), name=f"{name}.out")
    loss = b.apply("mean", b.cast(x, "float32", "wide"), name="loss", dims=(0, 1), count=12)
    return training_graph(b, {"loss": loss}, Optimizer("adam"))


def test_a_frozen_weight_has_neither_gradient_nor_state():
    graph = trained(frozen={"one"})
    assert set(graph.updates) == {"two", "two.m", "two.v", "step"}
    assert not [name for name in graph.tensors if name.startswith("one") and "grad" in name]
    assert set(trained(frozen={}).updates) > set(graph.updates)


def test_whole_numbers_and_truth_values_go_where_results_are_such():
    b = GraphBuilder()
    x, n, t = b.input("x", (3,), dtype="float32"), b.input("n", (3,), dtype="int32"), b.input("t", (3,), dtype="bool")
    accepted = {
        "add": ("int32", (n, n), {}),
        "lt": ("bool", (x, x), {}),
        "logical_xor": ("bool", (t, n), {}),
        "where": ("int32", (t, n, n), {}),
        "maximum": ("bool", (t, t), {}),
        "cast": ("int32", (t,), {"dtype": "int32"}),
        "sum": ("int32", (n,), {"dims": (0,)}),
    }
    for op, (dtype, inputs, attrs) in accepted.items():
        assert b.tensors[b.apply(op, *inputs, name=f"{op}.out", **attrs)].dtype == dtype
    refused = {
        "exp": ((n,), {}, "operand x must be a floating-point tensor, found int32; cast it first"),
        "scale": ((n,), {"factor": 0.5}, "operand x must be a floating-point tensor, found int32"),
        "mul": ((t, t), {}, "operand a must hold numbers, found bool; cast it to int32 first"),
        "add": ((n, x), {}, "operand b has dtype float32, but the operands before it have int32"),
        "where": ((x, n, n), {}, "operand mask must be bool or int32, found float32"),
        "gather": ((x, t), {"dim": 0}, "operand indices must be int32, found bool"),
    }
    for op, (inputs, attrs, message) in refused.items():
        with pytest.raises(GraphError, match=re.escape(message)):
            b.apply(op, *inputs, name=f"{op}.refused", **attrs)
