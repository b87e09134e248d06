import pytest

from planner.errors import GraphError
from planner.graph import GraphBuilder, Init
from planner.graph.ir import Node


def test_shapes_names_and_roles():
    b = GraphBuilder("float64")
    x = b.input("x", (5, 4, 3))
    parts = b.apply_all("unbind", x, name="parts", dim=1, n=4)
    assert parts == ("parts.0", "parts.1", "parts.2", "parts.3")
    total = b.apply("add_n", *parts, name="total")
    graph = b.finish({}, {})
    assert total == "total"
    assert graph.tensors["total"].shape == (5, 3)
    assert {tensor.dtype for tensor in graph.tensors.values()} == {"float64"}
    assert [tensor.role for tensor in graph.tensors.values()] == ["input"] + ["activation"] * 5


def test_timesteps_name_and_mark_nodes():
    b = GraphBuilder()
    x = b.input("x", (2,))
    with b.timestep(3):
        y = b.apply("relu", x, name="cell")
    assert b.apply("relu", y, name="after") == "after"
    first, second = b.nodes
    assert (first.name, first.outputs, first.unroll) == ("cell.3", ("cell.3",), ("cell", 3))
    assert second.unroll is None


def test_names_are_taken_once():
    b = GraphBuilder()
    x = b.input("x", (2,))
    b.apply("relu", x, name="y")
    with pytest.raises(GraphError, match="node 'y' \\(relu\\): a node of that name exists already"):
        b.apply("relu", x, name="y")
    with pytest.raises(GraphError, match="tensor 'x': a tensor of that name exists already"):
        b.weight("x", (2,), Init("ones"))


def test_operands_must_exist_and_fit():
    b = GraphBuilder()
    x, y = b.input("x", (2, 3)), b.input("y", (4, 2))
    with pytest.raises(GraphError, match="node 'z' \\(mm\\)"):
        b.apply("mm", x, y, name="z")
    with pytest.raises(GraphError, match="tensor 'w' is not defined"):
        b.apply("mm", x, "w", name="z")
    with pytest.raises(GraphError, match="expected 1 outputs, found 2"):
        b.emit(Node("z", "mm", (y, x), ("a", "b")))
    assert b.apply("mm", y, x, name="z") == "z"
