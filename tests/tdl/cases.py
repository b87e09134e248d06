"""One case per catalog operator: operands, attributes and what NumPy says directly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

rng = np.random.default_rng(7)
WINDOW = {"stride": (2, 1), "padding": (1, 1)}
POOL = {**WINDOW, "kernel": (3, 2)}
EPS = 1e-3


def real(*shape: int) -> np.ndarray:
    return rng.uniform(-1, 1, shape)


def positive(*shape: int) -> np.ndarray:
    return rng.uniform(0.5, 2, shape)


def integers(below: int, *shape: int) -> np.ndarray:
    return rng.integers(0, below, shape).astype(np.int32)


@dataclass(frozen=True)
class Case:
    op: str
    arrays: tuple[np.ndarray, ...]
    oracle: Callable[..., Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.op}-{'-'.join('x'.join(map(str, a.shape)) or '0' for a in self.arrays)}"


def case(op: str, arrays: tuple[np.ndarray, ...], oracle: Callable[..., Any], **attributes: Any) -> Case:
    return Case(op, arrays, oracle, attributes)


def padded(x, fill=0.0, stride=(2, 1), padding=(1, 1)):
    (py, px) = padding
    return np.pad(x, ((0, 0), (0, 0), (py, py), (px, px)), constant_values=fill)


def windows(x, kernel, fill=0.0, stride=(2, 1), padding=(1, 1)):
    """[n, c, y, x, dy, dx]: every window of an image."""
    every = sliding_window_view(padded(x, fill, stride, padding), kernel, axis=(2, 3))
    return every[:, :, :: stride[0], :: stride[1]]


def convolve(x, w):
    return np.einsum("ncyxhw,ochw->noyx", windows(x, w.shape[2:]), w)


def adjoint(forward, shape, grad):
    """The transpose of a linear function, element by element of its argument."""
    out = np.zeros(shape)
    for at in np.ndindex(shape):
        unit = np.zeros(shape)
        unit[at] = 1
        out[at] = (forward(unit) * grad).sum()
    return out


def max_pool(x):
    found = windows(x, (3, 2), fill=-np.inf)
    flat = found.reshape(*found.shape[:4], -1)
    return flat.max(-1), flat.argmax(-1)


def max_pool_backward(grad, chosen, height, width):
    out = np.zeros((*grad.shape[:2], height + 2, width + 2))
    for n, c, y, x in np.ndindex(grad.shape):
        dy, dx = divmod(int(chosen[n, c, y, x]), 2)
        out[n, c, 2 * y + dy, x + dx] += grad[n, c, y, x]
    return out[:, :, 1:-1, 1:-1]


def normal(x, m, v):
    return (x - m[:, None, None]) / np.sqrt(v[:, None, None] + EPS)


def adam(w, g, m, v, t):
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return w - 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.99**t)) + EPS), m, v


def sgd_momentum(w, g, v):
    return w - 0.1 * (0.9 * v + g), 0.9 * v + g


def batch_norm_backward(g, x, m, v, w, *grads):
    gw, gb = grads
    scale = (w / np.sqrt(v + EPS))[:, None, None]
    return scale * (g - (gb[:, None, None] + normal(x, m, v) * gw[:, None, None]) / 40)


def cross_entropy(x, m, s, labels):
    return (np.log(s) + m - x[np.arange(4), labels]).sum() / 4


def cross_entropy_backward(x, m, s, labels):
    return (np.exp(x - m[:, None]) / s[:, None] - np.eye(5)[labels]) / 4


def spd(*shape: int) -> np.ndarray:
    a = real(*shape)
    return a @ np.swapaxes(a, -1, -2) + 3 * np.eye(shape[-1])


image, kernel = real(2, 3, 5, 4), real(4, 3, 3, 2)
grad = real(2, 4, 3, 5)
pooled = real(2, 3, 3, 5)
chosen = max_pool(image)[1].astype(np.int32)
x2, y2, z2 = real(3, 4), real(3, 4), real(3, 4)
c3, d3, e3, f3 = real(3), positive(3), real(3), real(3)
bn = (real(2, 3, 4, 5), c3, d3)

CASES = (
    case("relu", (x2,), lambda x: np.maximum(x, 0)),
    case("sigmoid", (x2,), lambda x: 1 / (1 + np.exp(-x))),
    case("tanh", (x2,), np.tanh),
    case("exp", (real(2, 2, 2),), np.exp),
    case("log", (positive(5),), np.log),
    case("neg", (x2,), np.negative),
    case("threshold_backward", (x2, y2), lambda g, r: g * (r > 0)),
    case("sigmoid_backward", (x2, y2), lambda g, r: g * r * (1 - r)),
    case("tanh_backward", (x2, y2), lambda g, r: g * (1 - r * r)),
    case("add", (x2, y2), np.add),
    case("add", (x2, real(4)), np.add, dims=(1,)),
    case("add", (x2, real(4, 3)), lambda a, b: a + b.T, dims=(1, 0)),
    case("sub", (x2, real(3)), lambda a, b: a - b[:, None], dims=(0,)),
    case("mul", (x2, real()), np.multiply, dims=()),
    case("div", (x2, positive(3, 4)), np.divide),
    case("add_n", (x2,), lambda x: x),
    case("add_n", (x2, y2, z2), lambda x, y, z: x + y + z),
    case("scale", (x2,), lambda x: 3 * x, factor=3.0),
    case("increment", (real(),), lambda t: t + 1),
    case("sgd", (x2, y2), lambda w, g: w - 0.1 * g, lr=0.1),
    case("sgd_momentum", (x2, y2, z2), sgd_momentum, lr=0.1, momentum=0.9),
    case("adam", (x2, y2, z2, positive(3, 4), np.array(3.0)), adam, lr=0.1, beta1=0.9, beta2=0.99, eps=EPS),
    case("mm", (real(3, 4), real(4, 5)), np.matmul),
    case("mm", (real(4, 3), real(4, 5)), lambda a, b: a.T @ b, transpose_a=True),
    case("mm", (real(3, 4), real(5, 4)), lambda a, b: a @ b.T, transpose_b=True),
    case("einsum", (real(2, 3), real(4, 5, 3)), lambda a, b: np.einsum("bi,ghi->bgh", a, b), equation="bi,ghi->bgh"),
    case("einsum", (real(2, 3, 4),), lambda a: np.einsum("abc->ca", a), equation="abc -> ca"),
    case("einsum", (real(2), real(3)), np.outer, equation="a,b->ab"),
    case("einsum", (real(3), real(3)), np.dot, equation="a,a->"),
    case("convolution", (image, kernel), convolve, **WINDOW),
    case(
        "convolution_backward_input",
        (grad, kernel),
        lambda g, w: adjoint(lambda x: convolve(x, w), image.shape, g),
        **WINDOW,
        extents={"y": 5, "x": 4},
    ),
    case(
        "convolution_backward_weight",
        (grad, image),
        lambda g, x: adjoint(lambda w: convolve(x, w), kernel.shape, g),
        **WINDOW,
        extents={"dy": 3, "dx": 2},
    ),
    case("max_pool2d_with_indices", (image,), max_pool, **POOL, extents={"dy": 3, "dx": 2}),
    case(
        "max_pool2d_with_indices_backward",
        (pooled, chosen),
        lambda g, i: max_pool_backward(g, i, 5, 4),
        **POOL,
        extents={"y": 5, "x": 4, "dy": 3, "dx": 2},
    ),
    case("avg_pool2d", (image,), lambda x: windows(x, (3, 2)).mean((-2, -1)), **POOL, extents={"dy": 3, "dx": 2}),
    case(
        "avg_pool2d_backward",
        (pooled,),
        lambda g: adjoint(lambda x: windows(x, (3, 2)).mean((-2, -1)), image.shape, g),
        **POOL,
        extents={"y": 5, "x": 4, "dy": 3, "dx": 2},
    ),
    case("sum", (real(2, 3, 4),), lambda x: x.sum((0, 2)), dims=(0, 2)),
    case("sum", (real(2, 3),), lambda x: x.sum(), dims=(0, 1)),
    case("mean", (real(2, 3, 4, 5),), lambda x: x.mean((0, 2, 3)), dims=(0, 2, 3), count=40),
    case("amax", (real(2, 3),), lambda x: x.max(1), dims=(1,)),
    case(
        "expand",
        (real(3),),
        lambda x: np.broadcast_to(0.5 * x[None, :, None], (2, 3, 4)),
        dims=(0, 2),
        factor=0.5,
        extents={"e0": 2, "e1": 4},
    ),
    case("batch_norm_var", bn[:2], lambda x, m: ((x - m[:, None, None]) ** 2).mean((0, 2, 3)), count=40),
    case(
        "batch_norm",
        (*bn, e3, f3),
        lambda x, m, v, w, b: normal(x, m, v) * w[:, None, None] + b[:, None, None],
        eps=EPS,
    ),
    case(
        "batch_norm_backward_reduce",
        (real(2, 3, 4, 5), *bn),
        lambda g, x, m, v: ((g * normal(x, m, v)).sum((0, 2, 3)), g.sum((0, 2, 3))),
        eps=EPS,
    ),
    case("batch_norm_backward", (real(2, 3, 4, 5), *bn, e3, f3, c3), batch_norm_backward, eps=EPS, count=40),
    case("sum_exp", (real(4, 5), real(4)), lambda x, m: np.exp(x - m[:, None]).sum(1)),
    case("cross_entropy", (real(4, 5), real(4), positive(4), integers(5, 4)), cross_entropy, count=4),
    case(
        "cross_entropy_backward",
        (real(4, 5), real(4), positive(4), integers(5, 4)),
        cross_entropy_backward,
        factor=0.25,
    ),
    case(
        "reshape",
        (real(2, 3, 4),),
        lambda x: x.reshape(2, 12),
        source=(("v0",), ("v1",), ("v2",)),
        target=(("v0",), ("v1", "v2")),
    ),
    case(
        "reshape",
        (real(6, 4),),
        lambda x: x.reshape(2, 12, 1),
        source=(("v0", "v1"), ("v2",)),
        target=(("v0",), ("v1", "v2"), ()),
        extents={"v0": 2},
    ),
    case("unbind", (real(2, 3, 4),), lambda x: tuple(x[:, k] for k in range(3)), dim=1, n=3),
    case("stack", (real(2, 4), real(2, 4), real(2, 4)), lambda *xs: np.stack(xs, 1), dim=1),
)
