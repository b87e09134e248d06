"""One product of two 4 by 4 matrices, the example of docs/explanation/index.md."""

from planner.graph import Graph, GraphBuilder, Init


def product() -> Graph:
    """Y = X W."""
    b = GraphBuilder()
    x = b.input("X", (4, 4), Init("uniform", scale=1.0))
    w = b.weight("W", (4, 4), Init("uniform", scale=1.0))
    b.apply("mm", x, w, name="Y")
    return b.finish(updates={}, metrics={})
