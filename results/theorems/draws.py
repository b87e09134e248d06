"""What the statements are tried on: small graphs of matrix products, a convolution, and plans drawn at random."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from planner.graph import Graph, GraphBuilder, Init
from planner.graph.ir import Node
from planner.graph.optimizers import Optimizer
from planner.graph.training import training_graph
from planner.layout import Ways
from planner.plans.plan import Plan
from planner.search import Space, Ties
from planner.search.coarse import Coarsenings
from results.paper_operators import batch_cholesky

UNTIED = Ties(elementwise=False, gradients=False, updates=False, unrolled=False, repeats=False)


def product(i: int, j: int, k: int) -> Graph:
    """y[i, j] = a[i, k] b[k, j]."""
    b = GraphBuilder()
    b.apply("mm", b.input("a", (i, k)), b.input("b", (k, j)), name="y")
    return b.finish({}, {})


def chain(batch: int, widths: list[int]) -> Graph:
    """Return the products of a perceptron's training without anything element-wise (SoyBean Sec 4.2, equation 1)."""
    b = GraphBuilder()
    x = [b.input("x0", (batch, widths[0]))]
    w = []
    for layer, shape in enumerate(pairwise(widths), start=1):
        w.append(b.input(f"w{layer}", shape))
        x.append(b.apply("mm", x[-1], w[-1], name=f"x{layer}"))
    gradient = b.input(f"g{len(w)}", (batch, widths[-1]))
    for layer in range(len(w), 0, -1):
        b.apply("mm", x[layer - 1], gradient, name=f"dw{layer}", transpose_a=True)
        gradient = b.apply("mm", gradient, w[layer - 1], name=f"g{layer - 1}", transpose_b=True)
    return b.finish({}, {})


def web(rng: Random, products: int) -> Graph:
    """Products of square matrices, each of any two made before: residuals, diamonds, shared operands."""
    b = GraphBuilder()
    extent = 2 * rng.randint(1, 3)
    tensors = [b.input(name, (extent, extent)) for name in "abc"]
    for number in range(products):
        left, right = rng.sample(tensors, 2)
        flip = rng.choice([{}, {"transpose_a": True}, {"transpose_b": True}])
        tensors += b.emit(Node(f"p{number}", "mm", (left, right), (), flip))
    return b.finish({}, {})


def convolution(rows: int, channels: int) -> Graph:
    """A convolution of 3 x 1 windows over images of one column, as many rows out as in."""
    b = GraphBuilder()
    x = b.input("x", (channels, channels, rows, 1))
    w = b.input("w", (channels, channels, 3, 1))
    b.apply("convolution", x, w, name="y", stride=(1, 1), padding=(1, 0))
    return b.finish({}, {})


def factorisations(extent: int) -> Graph:
    """Cholesky factors of the matrices of one dimension of a cube, then of those of another: each splits one way."""
    b = GraphBuilder()
    x = b.apply(batch_cholesky.name, b.input("x", (extent, extent, extent)), name="l1")
    b.apply(batch_cholesky.name, b.apply("permute", x, name="p", dims=(1, 0, 2)), name="l2")
    return b.finish({}, {})


def perceptron(batch: int, widths: list[int]) -> Graph:
    """Fully connected layers and SGD: the whole training graph, sharing fetches within backward groups."""
    b = GraphBuilder()
    x = b.input("x", (batch, widths[0]))
    for layer, shape in enumerate(pairwise(widths), start=1):
        x = b.apply("mm", x, b.weight(f"w{layer}", shape, Init("uniform", 1.0)), name=f"fc{layer}")
    return training_graph(b, {"loss": b.apply("sum", x, name="loss", dims=(0, 1))}, Optimizer("sgd"))


def products_drawn(rng: Random, extents: list[int]) -> Graph:
    """Draw one product, or all of one layer's training or of two."""
    layers = rng.choice([0, 0, 1, 2])
    if not layers:
        return product(*(rng.choice(extents) for _ in range(3)))
    return chain(rng.choice(extents), [rng.choice(extents) for _ in range(layers + 1)])


def space_of(graph: Graph, ways: tuple[int, ...], *, replicate: bool) -> Space:
    """Return the space of plans of a graph in which nothing is tied."""
    return Space(Coarsenings(graph).of(UNTIED), Ways(ways), replicate)


def plan_drawn(rng: Random, graph: Graph, ways: tuple[int, ...], *, replicate: bool = False) -> Plan:
    """Draw a layout of every tensor and a strategy of every node."""
    space = space_of(graph, ways, replicate=replicate)
    choice = [rng.choice(space.candidates(v)) for v in range(len(space.coarse.variables))]
    return Plan(graph, 0, space.ways, space.layouts(choice), space.strategies(choice))


def size(graph: Graph) -> int:
    """Return how large a graph is, to tell smaller counter-examples from larger ones."""
    return 1_000_000 * len(graph.nodes) + sum(tensor.elements for tensor in graph.tensors.values())


def shapes(graph: Graph) -> str:
    """Write a graph's nodes with the shapes of what they read and make."""
    dims = {name: f"{name}[{','.join(map(str, tensor.shape))}]" for name, tensor in graph.tensors.items()}
    return "; ".join(
        f"{dims[node.outputs[0]]} = {node.op}({', '.join(dims[name] for name in node.inputs)})" for node in graph.nodes
    )


def decisions(plan: Plan) -> str:
    """Write a plan in one line."""
    layouts = ", ".join(f"{name} {','.join(map(str, layout))}" for name, layout in plan.layouts.items())
    computed = ", ".join(f"{name} by {','.join(strategy)}" for name, strategy in plan.strategies.items())
    return f"{shapes(plan.graph)}; ways {plan.ways.factors}; stored: {layouts}; computed: {computed}"
