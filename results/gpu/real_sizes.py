"""Cases of the heavy operators at the sizes of real models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.cases import Array, Case
from results.gpu.comparison import computed, reference, rounded
from results.gpu.small_cases import DECADES, LARGE, Sample

Named = Iterator[tuple[str, Case]]
HEADS, WIDTH, EPSILON = 12, 64, 1e-5


@dataclass(frozen=True, slots=True)
class Values:
    """Random values; extents `of` real models are divided by `cut`."""

    rng: np.random.Generator
    cut: int

    def of(self, extent: int) -> int:
        """Return an extent."""
        return max(2, extent // self.cut)

    def normal(self, *shape: int) -> Array:
        """Return normal values."""
        return self.rng.standard_normal(shape)

    def mixed(self, *shape: int) -> Array:
        """Return values of many magnitudes, from about 1e-4 to 1e4."""
        return self.normal(*shape) * 10 ** self.rng.uniform(-DECADES, DECADES, shape)

    def positive(self, *shape: int) -> Array:
        """Return values from 1/8 to 2."""
        return self.rng.uniform(0.125, 2, shape)

    def tokens(self, below: int, *shape: int) -> Array:
        """Return numbers below a bound, small ones often, as words are."""
        return (below * self.rng.random(shape) ** 4).astype(np.int32)


def products(values: Values) -> Named:
    """Products of language models, and one of extents that nothing divides."""
    for m, n, k in ((512, 50257, 768), (4096, 1376, 4096), (768, 3072, 8192), (1023, 1025, 4093)):
        rows, columns, inner = map(values.of, (m, n, k))
        a, b = values.mixed(rows, inner), values.mixed(columns, inner)
        yield "mm", Case((a, b), {"transpose_a": False, "transpose_b": True})
    batch, length, width = 4, values.of(1024), values.of(768)
    x, weight = values.mixed(batch, length, width), values.mixed(HEADS, WIDTH, width)
    yield "einsum", Case((x, weight), {"equation": "bsd,hed->bhse"})
    grad = values.mixed(batch, HEADS, length, WIDTH)
    yield "einsum", Case((grad, x), {"equation": "bhse,bsd->hed"})
    a, b = values.mixed(HEADS, length, WIDTH), values.mixed(HEADS, WIDTH, length)
    yield "bmm", Case((a, b), {"transpose_a": False, "transpose_b": False})


def attention(values: Values) -> Named:
    """Attention and its gradients: causal, with shared heads of keys, with a bias that hides keys."""
    length = values.of(1024)
    shapes = ((2, HEADS, HEADS, WIDTH, False), (1, 16, 4, 128, False), (1, HEADS, HEADS, WIDTH, True))
    for batch, heads, groups, width, is_biased in shapes:
        query = values.normal(batch, heads, length, width)
        key, value = (values.normal(batch, groups, length, width) for _ in range(2))
        bias = np.where(values.normal(length, length) > 1, -np.inf, values.normal(length, length))
        given = (query, key, value, bias) if is_biased else (query, key, value)
        attributes: dict[str, Any] = {"scale": width**-0.5, "causal": not is_biased}
        attributes |= {"dims": (2, 3)} if is_biased else {}
        prefix = "biased_attention" if is_biased else "attention"
        case = rounded(Case(given, attributes))
        yield prefix, case
        result, logarithm = computed("arrays", prefix, case, np)
        grad = values.normal(*result.shape)
        operands = (grad, *given, logarithm, (grad * result).sum(axis=-1))
        for gradient in ("query", "keys", *(["bias"] if is_biased else [])):
            yield f"{prefix}_backward_{gradient}", Case(operands, attributes)


def norms(values: Values) -> Named:
    """Layer norm and RMS norm of tokens."""
    rows, width = values.of(8192), values.of(768)
    x, grad = 3 * values.normal(rows, width) + values.normal(rows, 1), values.normal(rows, width)
    weight, bias, (mean, variance) = *(values.normal(width) for _ in range(2)), (x.mean(axis=1), x.var(axis=1))
    attributes: dict[str, Any] = {"statistics": (0,), "weights": (1,), "eps": EPSILON}
    yield "mean", Case((x,), {"dims": (1,), "count": width})
    yield "var", Case((x, mean), {"dims": (1,), "count": width})
    yield "normalize", Case((x, mean, variance, weight, bias), attributes)
    yield "normalize_backward_weights", Case((grad, x, mean, variance), attributes)
    yield "normalize_backward_statistics", Case((grad, x, mean, variance, weight), attributes)
    sums = values.normal(rows), values.normal(rows)
    operands = (grad, x, mean, variance, weight, *sums)
    yield "normalize_backward", Case(operands, attributes | {"count": width})
    square, given = (x**2).mean(axis=1), {"eps": EPSILON}
    yield "rms_norm", Case((x, square, weight), given)
    yield "rms_norm_backward_weight", Case((grad, x, square), given)
    yield "rms_norm_backward", Case((grad, x, square, weight, sums[0]), given | {"count": width})


def batch_norm(values: Values) -> Named:
    """Batch norm of images."""
    channels, extent = values.of(256), values.of(56)
    shape = (32, channels, extent, extent)
    x, grad, counted = 2 * values.normal(*shape) + 1, values.normal(*shape), shape[0] * extent**2
    mean, variance = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
    weight, bias, other = (values.normal(channels) for _ in range(3))
    yield "batch_norm_var", Case((x, mean), {"count": counted})
    yield "batch_norm", Case((x, mean, variance, weight, bias), {"eps": EPSILON})
    yield "batch_norm_backward_reduce", Case((grad, x, mean, variance), {"eps": EPSILON})
    operands = (grad, x, mean, variance, weight, bias, other)
    yield "batch_norm_backward", Case(operands, {"eps": EPSILON, "count": counted})


def softmax(values: Values) -> Named:
    """Softmax of scores of which a half is hidden, and cross entropy over a vocabulary of which words are hidden."""
    length = values.of(1024)
    scores = np.where(np.tri(length, dtype=bool), 4 * values.normal(8, length, length), -np.inf)
    maximum = scores.max(axis=-1)
    exponentials = np.exp(scores - maximum[..., None])
    total = exponentials.sum(axis=-1)
    result, grad = exponentials / total[..., None], values.normal(*scores.shape)
    yield "amax", Case((scores,), {"dims": (2,)})
    yield "sum_exp", Case((scores, maximum), {"dim": 2})
    yield "softmax", Case((scores, maximum, total), {"dim": 2})
    yield "softmax_backward_sum", Case((grad, result), {"dim": 2})
    yield "softmax_backward", Case((grad, result, (grad * result).sum(axis=-1)), {"dim": 2})
    rows, classes = values.of(512), values.of(50257)
    logits, labels = 3 * values.normal(rows, classes), values.tokens(classes // 2, rows)
    logits[:, classes // 2 :][values.normal(rows, classes - classes // 2) > 2] = -np.inf
    maximum = logits.max(axis=-1)
    total = np.exp(logits - maximum[:, None]).sum(axis=-1)
    yield "cross_entropy", Case((logits, maximum, total, labels), {"count": rows, "dim": 1})
    grads: dict[str, Any] = {"factor": 1 / rows, "dim": 1}
    yield "cross_entropy_backward", Case((logits, maximum, total, labels), grads)


def selections(values: Values) -> Named:
    """Rows by their numbers, and the sums that are their gradients, of small and of large values."""
    rows, width, shape = values.of(50257), values.of(768), (8, values.of(1024))
    tokens = values.tokens(rows, *shape)
    yield "embedding", Case((values.mixed(rows, width), tokens))
    grad = values.normal(*shape, width)
    grad[0, : shape[1] // 4] *= LARGE
    yield "embedding_dense_backward", Case((grad, tokens), {"extents": {"v": rows}})
    yield "embedding_dense_backward", Case((values.mixed(*shape, width), tokens), {"extents": {"v": rows}})
    count = values.of(4096)
    chosen, taken = values.mixed(2 * count, width), values.tokens(count, 2 * count)
    yield "index_select", Case((chosen, taken), {"dim": 0})
    given: dict[str, Any] = {"dim": 0, "extents": {"i0": count}}
    yield "index_select_backward", Case((chosen, taken), given)
    yield "gather_backward", Case((chosen, values.tokens(count, *chosen.shape)), given)
    yield "sum", Case((values.mixed(values.of(16384), width),), {"dims": (0,)})


def experts(values: Values) -> Named:
    """Tokens on their way to experts and back."""
    count, width, tokens, capacity = 8, values.of(1024), values.of(2048), values.of(640)
    chosen = values.tokens(count, 2, tokens, 2)
    yield "topk", Case((values.normal(2, tokens, count),), {"dim": 2, "k": 2, "largest": True, "nan_first": False})
    yield "expert_slots", Case((chosen,), {"capacity": capacity})
    (slots,) = computed("arrays", "expert_slots", Case((chosen,), {"capacity": capacity}), np)
    places: dict[str, Any] = {"capacity": capacity, "extents": {"e": count, "c": capacity}}
    yield "dispatch", Case((values.mixed(2, tokens, 2, width), slots), places)
    yield "collect", Case((values.mixed(2, count, capacity, width), slots), {"capacity": capacity})


CONVOLUTIONS = ((8, 64, 56, 64, 3, 1), (8, 3, 224, 64, 7, 2), (8, 256, 56, 64, 1, 1), (16, 512, 7, 512, 3, 1))
"""Images, channels, extent, filters, taps and stride."""


def convolutions(values: Values) -> Named:
    """Convolutions of ResNet-50, and both gradients."""
    for images, channels, extent, filters, taps, stride in CONVOLUTIONS:
        inner, outer, rows = values.of(channels), values.of(filters), max(taps, values.of(extent))
        padding = taps // 2
        result = (rows + 2 * padding - taps) // stride + 1
        x, weight = values.mixed(images, inner, rows, rows), values.mixed(outer, inner, taps, taps)
        grad = values.mixed(images, outer, result, result)
        window: dict[str, Any] = {"stride": (stride, stride), "padding": (padding, padding)}
        yield "convolution", Case((x, weight), window)
        image, kernel = {"y": rows, "x": rows}, {"dy": taps, "dx": taps}
        yield "convolution_backward_input", Case((grad, weight), {**window, "extents": image})
        yield "convolution_backward_weight", Case((grad, x), {**window, "extents": kernel})


def elementwise(values: Values) -> Named:
    """Optimizers, activations and rotary positions."""
    count = values.of(1 << 22)
    weight, grad, moment = (values.normal(count) for _ in range(3))
    adam = {"lr": 3e-4, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    operands = (weight, grad, moment, values.positive(count), np.asarray(7.0))
    yield "adam", Case(operands, adam)
    yield "adamw", Case(operands, adam | {"decay": 0.01})
    yield "sgd_momentum", Case((weight, grad, moment), {"lr": 0.01, "momentum": 0.9})
    for approximate in ("none", "tanh"):
        yield "gelu", Case((4 * weight,), {"approximate": approximate})
        yield "gelu_backward", Case((grad, 4 * weight), {"approximate": approximate})
    yield "silu", Case((4 * weight,))
    yield "silu_backward", Case((grad, 4 * weight))
    length = values.of(1024)
    angles = np.arange(length)[:, None] * 1e4 ** -(np.arange(WIDTH) % (WIDTH // 2) / (WIDTH // 2))
    x = values.normal(4, HEADS, length, WIDTH)
    for inverse in (False, True):
        yield "rotary", Case((x, np.cos(angles), np.sin(angles)), {"half": WIDTH // 2, "inverse": inverse})


FAMILIES: Mapping[str, Callable[[Values], Named]] = {
    "products": products,
    "attention": attention,
    "norms": norms,
    "batch norm": batch_norm,
    "softmax": softmax,
    "selections": selections,
    "experts": experts,
    "convolutions": convolutions,
    "elementwise": elementwise,
}


def samples(family: str, cut: int) -> Iterator[tuple[str, Sample]]:
    """Yield the cases of a family, with their operators; compared with NumPy's kernels in double precision."""
    for operator, case in FAMILIES[family](Values(np.random.default_rng([7, *family.encode()]), cut)):
        given = rounded(case)
        yield operator, Sample("real size", given, reference(operator, given, _by_numpy(operator)))


def _by_numpy(operator: str) -> Callable[[Case], list[Array]]:
    return lambda case: computed("arrays", operator, case, np)
