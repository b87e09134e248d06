"""Hypothesis strategies: operators with shapes, candidate states, small training graphs."""

from itertools import product

from hypothesis import HealthCheck, strategies as st

from planner.graph import GraphBuilder, Init
from planner.graph.optimizers import Optimizer
from planner.graph.training import training_graph
from planner.layout import Ways, signatures
from planner.search.costs.domains import choices_at_step, placements_at_step

EVEN_WAYS = [Ways(factors) for factors in ((2,), (3,), (2, 2), (3, 2), (4, 2), (2, 2, 2))]
SHARED_WAYS = [
    Ways((2,), (1, 2)), Ways((3,), (3, 1, 2)), Ways((2, 2), (3, 1, 2, 2)), Ways((2, 2), (1, 1, 1, 2)),
    Ways((3, 2), (1, 2, 2, 2, 1, 1)), Ways((2, 2, 2), (2, 2, 2, 2, 2, 2, 1, 1)),
    Ways((2, 2, 2), (5, 3, 1, 2, 4, 1, 1, 3)),
]  # fmt: skip
AXES_WAYS = [
    Ways((2, 2), axes=("dp", "tp")),
    Ways((3, 2), axes=("dp", "tp")),
    Ways((2, 2, 2), axes=("dp", "cp", "tp")),
    Ways((2, 2, 2), axes=("dp", "tp", "tp")),
    Ways((2, 2, 2), axes=("dp", "dp", "tp")),
]
TOO_MANY_PLANS = [HealthCheck.filter_too_much]
"""Graphs that have more plans than can be enumerated are drawn again, by chance often."""

WAYS = st.sampled_from([*EVEN_WAYS, *SHARED_WAYS])
WAYS_WITH_AXES = st.sampled_from([*EVEN_WAYS, *SHARED_WAYS, *AXES_WAYS])
EXTENT = st.integers(1, 9)


@st.composite
def one_node(draw, *kinds):
    """A graph of one node: a plain, windowed, broadcast, reducing or reshaping operator with any extents."""
    b = GraphBuilder()
    kind = draw(st.sampled_from(kinds or sorted(_MAKERS)))
    _MAKERS[kind](draw, b)
    return b.finish({}, {})


def signature(*kinds):
    """Such a node's signature."""
    return one_node(*kinds).map(lambda graph: signatures(graph)["node"])


def _mm(draw, b):
    i, j, k = draw(EXTENT), draw(EXTENT), draw(EXTENT)
    b.apply("mm", b.input("a", (i, k)), b.input("b", (j, k)), name="node", transpose_b=True)


def _square(draw, b):
    n = draw(EXTENT)
    a = b.input("a", (n, n))
    b.apply("mm", a, a, name="node", transpose_a=draw(st.booleans()))


def _convolution(draw, b):
    kernel, stride, padding = draw(st.sampled_from([(3, 1, 1), (3, 2, 1), (1, 2, 0), (2, 1, 0), (3, 2, 0)]))
    image = draw(st.integers(4, 9))
    x = b.input("x", (draw(st.integers(1, 3)), draw(st.integers(1, 3)), image, 3))
    w = b.input("w", (draw(st.integers(1, 3)), b.shape(x)[1], kernel, 1))
    b.apply("convolution", x, w, name="node", stride=(stride, 1), padding=(padding, 0))


def _convolution_backward(draw, b):
    kernel, stride, padding = draw(st.sampled_from([(3, 1, 1), (3, 2, 1), (1, 2, 0)]))
    image = draw(st.integers(4, 9))
    out = (image + 2 * padding - kernel) // stride + 1
    n, co, ci = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    grad = b.input("g", (n, co, out, 2))
    attrs = {"stride": (stride, 1), "padding": (padding, 0)}
    if draw(st.booleans()):
        w = b.input("w", (co, ci, kernel, 1))
        extents = {"y": image, "x": 2}
        b.apply("convolution_backward_input", grad, w, name="node", extents=extents, **attrs)
    else:
        x = b.input("x", (n, ci, image, 2))
        extents = {"dy": kernel, "dx": 1}
        b.apply("convolution_backward_weight", grad, x, name="node", extents=extents, **attrs)


def _broadcast(draw, b):
    i, j = draw(EXTENT), draw(EXTENT)
    b.apply("mul", b.input("a", (i, j)), b.input("b", (j,)), name="node", dims=(1,))


def _reduce(draw, b):
    shape = (draw(EXTENT), draw(EXTENT), draw(st.integers(1, 4)))
    dims = draw(st.sampled_from([(0,), (1,), (0, 2), (0, 1, 2)]))
    b.apply("sum", b.input("a", shape), name="node", dims=dims)


def _reshape(draw, b):
    i, j, k = draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
    split, merged = (("v0",), ("v1",), ("v2",)), (("v0", "v1"), ("v2",))
    extents = {"v0": i, "v1": j, "v2": k}
    if draw(st.booleans()):
        x = b.input("x", (i, j, k))
        b.apply("reshape", x, name="node", source=split, target=merged, extents=extents)
    else:
        x = b.input("x", (i * j, k))
        b.apply("reshape", x, name="node", source=merged, target=split, extents=extents)


_MAKERS = {
    "mm": _mm,
    "square": _square,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "reshape": _reshape,
}


def squares():
    """A product of a square matrix with itself."""
    return signature("square")


@st.composite
def graphs_of_readers(draw):
    """A graph of two or three nodes that read one tensor as their operand 0."""
    b = GraphBuilder()
    if draw(st.booleans()):
        n, co, ci, out = (draw(st.integers(1, 4)) for _ in range(4))
        attrs = {"stride": (2, 1), "padding": (1, 0)}
        grad = b.input("g", (n, co, out + 1, 2))
        w, x = b.input("w", (co, ci, 3, 1)), b.input("x", (n, ci, 2 * out + 1, 2))
        b.apply("convolution_backward_input", grad, w, name="0", extents={"y": 2 * out + 1, "x": 2}, **attrs)
        b.apply("convolution_backward_weight", grad, x, name="1", extents={"dy": 3, "dx": 1}, **attrs)
        return b.finish({}, {})
    i, j, k = draw(EXTENT), draw(EXTENT), draw(EXTENT)
    x = b.input("x", (i, k))
    b.apply("mm", x, b.input("b", (k, j)), name="0")
    b.apply("mm", x, b.input("c", (i, j)), name="1", transpose_a=True)
    if draw(st.booleans()):
        b.apply("mul", x, b.input("d", (k,)), name="2", dims=(1,))
    return b.finish({}, {})


def readers_of_one_tensor():
    """The signatures of such nodes."""
    return graphs_of_readers().map(lambda graph: list(signatures(graph).values()))


def some_strategies(draw, node, ways):
    """A few strategies of a node, `*` among them where it may be."""

    def strategy():
        return tuple(
            draw(st.sampled_from(choices_at_step(node, ways, step, replicate=True))) for step in range(len(ways))
        )

    return tuple(dict.fromkeys(strategy() for _ in range(3)))


def all_layouts(shape, ways):
    return tuple(product(*(placements_at_step(shape, ways, step, replicate=True) for step in range(len(ways)))))


def all_strategies(node, ways):
    return tuple(product(*(choices_at_step(node, ways, step, replicate=True) for step in range(len(ways)))))


def some_layouts(draw, shape, ways):
    options = all_layouts(shape, ways)
    return tuple(draw(st.lists(st.sampled_from(options), min_size=1, max_size=4, unique=True)))


@st.composite
def training_graphs(draw, most_layers=3):
    """Small perceptrons with residual connections, diamonds and shared weights, any extents, any optimizer."""
    b = GraphBuilder()
    width, batch = draw(st.integers(2, 9)), draw(st.integers(2, 8))
    x = b.input("x", (batch, width))
    weights = [b.weight("w0", (width, width), Init("uniform", 1.0))]
    for layer in range(draw(st.integers(1, most_layers))):
        if draw(st.booleans()):
            weights.append(b.weight(f"w{layer + 1}", (width, width), Init("uniform", 1.0)))
        kind = draw(st.sampled_from(["plain", "relu", "residual", "diamond"]))
        y = b.apply("mm", x, draw(st.sampled_from(weights)), name=f"fc{layer}")
        if kind == "relu":
            y = b.apply("relu", y, name=f"relu{layer}")
        elif kind == "residual":
            y = b.apply("add", y, x, name=f"add{layer}")
        elif kind == "diamond":
            other = b.apply("mm", x, draw(st.sampled_from(weights)), name=f"side{layer}")
            y = b.apply("mul", y, other, name=f"join{layer}")
        x = y
    unused = [w for w in weights if not any(w in node.inputs for node in b.nodes)]
    for number, w in enumerate(unused):
        x = b.apply("mm", x, w, name=f"last{number}")
    loss = b.apply("sum", x, name="loss", dims=(0, 1))
    optimizer = Optimizer(draw(st.sampled_from(["none", "sgd", "momentum"])))
    return training_graph(b, {"loss": loss}, optimizer)


@st.composite
def loose_ends(draw):
    """A forward graph of one to three operators, of which nobody need read what they make."""
    b = GraphBuilder()
    tensors = [b.input("x", (draw(st.integers(2, 4)), draw(st.integers(2, 6))))]
    for number in range(draw(st.integers(1, 3))):
        x, name = draw(st.sampled_from(tensors)), f"{number}"
        kind = draw(st.sampled_from(["mm", "sum", "relu", "mul", "slice"]))
        if kind == "mm" and len(b.shape(x)) == 2:
            weight = b.weight(f"w{number}", (b.shape(x)[1], draw(st.integers(1, 4))), Init("uniform", 1.0))
            tensors.append(b.apply("mm", x, weight, name=name))
        elif kind == "sum" and b.shape(x):
            tensors.append(b.apply("sum", x, name=name, dims=(draw(st.integers(0, len(b.shape(x)) - 1)),)))
        elif kind == "slice" and b.shape(x):
            tensors.append(b.apply("slice", x, name=name, dim=0, skip=b.shape(x)[0] // 2))
        elif kind == "mul":
            tensors.append(
                b.apply("mul", x, draw(st.sampled_from([y for y in tensors if b.shape(y) == b.shape(x)])), name=name)
            )
        else:
            tensors.append(b.apply("relu", x, name=name))
    return b.finish({}, {})
