"""Operators from parts beside PyTorch's own, results and gradients, in double precision."""

import numpy as np
import one_worker
import pytest

from planner.errors import GraphError
from planner.graph import GraphBuilder, Init, gradients
from tests.graph import parts
from tests.graph.reshaping import reshape_attributes

torch = pytest.importorskip("torch")
functional = torch.nn.functional

# name -> (shapes, ours, PyTorch's)
CASES = {
    "softmax": ([(2, 3, 4)], lambda b, x: parts.softmax(b, x, "y"), lambda x: torch.softmax(x, -1)),
    "softmax along 1": ([(2, 3, 4)], lambda b, x: parts.softmax(b, x, "y", 1), lambda x: torch.softmax(x, 1)),
    "log_softmax": ([(4, 5)], lambda b, x: parts.log_softmax(b, x, "y"), lambda x: torch.log_softmax(x, -1)),
    "layer_norm": (
        [(2, 3, 4), (4,), (4,)],
        lambda b, *operands: parts.layer_norm(b, *operands, "y"),
        lambda x, w, bias: functional.layer_norm(x, (4,), w, bias),
    ),
    "layer_norm over two": (
        [(2, 3, 4), (3, 4), (3, 4)],
        lambda b, *operands: parts.layer_norm(b, *operands, "y"),
        lambda x, w, bias: functional.layer_norm(x, (3, 4), w, bias),
    ),
    "group_norm": (
        [(2, 6, 3, 2), (6,), (6,)],
        lambda b, *operands: parts.group_norm(b, *operands, 2, "y"),
        lambda x, w, bias: functional.group_norm(x, 2, w, bias),
    ),
    "rms_norm": (
        [(2, 3, 4), (4,)],
        lambda b, x, w: parts.rms_norm(b, x, w, "y"),
        lambda x, w: functional.rms_norm(x, (4,), w, 1e-6),
    ),
    "attention": (
        [(2, 2, 5, 3)] * 3,
        lambda b, *operands: parts.attention(b, *operands, "y"),
        lambda *operands: functional.scaled_dot_product_attention(*operands, is_causal=True),
    ),
    "attention on all": (
        [(2, 2, 5, 3), (2, 2, 4, 3), (2, 2, 4, 3)],
        lambda b, *operands: parts.attention(b, *operands, "y", causal=False),
        functional.scaled_dot_product_attention,
    ),
    "convolution_1d": (
        [(2, 4, 9), (6, 2, 3)],
        lambda b, x, w: parts.convolution_1d(b, x, w, "y", stride=2, padding=1, dilation=2, groups=2),
        lambda x, w: functional.conv1d(x, w, None, 2, 1, 2, 2),
    ),
    "adaptive_avg_pool2d": (
        [(2, 3, 6, 4)],
        lambda b, x: parts.adaptive_avg_pool2d(b, x, (3, 1), "y"),
        lambda x: functional.adaptive_avg_pool2d(x, (3, 1)),
    ),
    "reshape": ([(4, 6)], lambda b, x: parts.reshape(b, x, (2, 12), "y"), lambda x: x.reshape(2, 12)),
    "reshape by one dimension": ([(4, 6)], lambda b, x: parts.reshape(b, x, (6, 4), "y"), lambda x: x.reshape(6, 4)),
    "split": ([(2, 6)], lambda b, x: parts.split(b, x, 3, "y")[1], lambda x: torch.split(x, 2, 1)[1]),
}


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_equal_torch(name):
    shapes, ours, theirs = CASES[name]
    b = GraphBuilder("float64")
    names = [b.weight(f"w{number}", shape, Init("uniform", 1.0)) for number, shape in enumerate(shapes)]
    y = ours(b, *names)
    factors = b.input("factors", b.shape(y))
    dims = tuple(range(len(b.shape(y))))
    loss = b.apply("sum", b.apply("mul", y, factors, name="products"), name="loss", dims=dims)
    found = gradients(b, loss, names)
    graph = b.finish({}, {})
    values = one_worker.draw(graph, seed=2)
    results = one_worker.run(graph, values)
    operands = [torch.tensor(values[own], requires_grad=True) for own in names]
    expected = theirs(*operands)
    np.testing.assert_allclose(results[y], expected.detach(), atol=1e-12)
    slopes = torch.autograd.grad(expected, operands, torch.tensor(values["factors"]))
    for own, slope in zip(names, slopes, strict=True):
        np.testing.assert_allclose(results[found[own]], slope, atol=1e-11)


def test_cross_entropy_equals_torch():
    b = GraphBuilder("float64")
    x, labels = b.weight("x", (4, 5), Init("uniform", 1.0)), b.labels("labels", 4, 5)
    loss = parts.cross_entropy(b, x, labels, "loss")
    graph = b.finish({}, {})
    values = one_worker.draw(graph)
    expected = functional.cross_entropy(torch.tensor(values["x"]), torch.tensor(values["labels"]).long())
    np.testing.assert_allclose(one_worker.run(graph, values)[loss], expected)


@pytest.mark.parametrize(
    ("old", "new", "source", "target"),
    [
        ((2, 3, 4), (6, 4), "a b c", "(ab) c"),
        ((6, 4), (2, 3, 4), "(ab) c", "a b c"),
        ((2, 12), (2, 3, 2, 2), "a (bcd)", "a b c d"),
        ((4, 6), (2, 12), "(ab) c", "a (bc)"),
        ((2, 1, 3), (2, 3), "a () b", "a b"),
        ((2, 3), (1, 2, 3, 1), "a b", "() a b ()"),
        ((), (1, 1), "", "() ()"),
        ((5, 7), (5, 7), "a b", "a b"),
    ],
)
def test_reshape_attributes(old, new, source, target):
    found = reshape_attributes(old, new)
    letters = {f"v{number}": letter for number, letter in enumerate("abcd")}

    def shown(groups):
        return tuple("".join(letters[name] for name in group) for group in groups)

    assert shown(found["source"]) == tuple(group.strip("()") for group in source.split())
    assert shown(found["target"]) == tuple(group.strip("()") for group in target.split())
    x = np.arange(np.prod(old, dtype=int), dtype=float).reshape(old)
    b = GraphBuilder("float64")
    y = b.apply("reshape", b.input("x", old), name="y", **found)
    assert b.shape(y) == new
    assert np.array_equal(one_worker.run(b.finish({}, {}), {"x": x})[y], x.reshape(new))


def test_what_cannot_be_reshaped_or_split_is_named():
    b = GraphBuilder()
    x = b.input("x", (4, 6))
    with pytest.raises(GraphError, match=r"node 'y': a tensor of shape \(4, 6\) cannot have shape \(5, 5\)"):
        parts.reshape(b, x, (5, 5), "y")
    with pytest.raises(GraphError, match="node 'y': 6 elements of dimension 1 cannot be cut into 4 parts"):
        parts.split(b, x, 4, "y")
    image = b.input("image", (1, 1, 5, 4))
    with pytest.raises(GraphError, match=r"node 'y': an image of \(5, 4\) cannot be cut into \(2, 2\) equal windows"):
        parts.adaptive_avg_pool2d(b, image, (2, 2), "y")
