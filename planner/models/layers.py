"""Layers shared by several models, built from catalog operators."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.errors import GraphError
from planner.graph.build import ONES, ZEROS, Average, GraphBuilder
from planner.graph.ir import Init, Value
from planner.graph.training import dropout
from planner.models.options import Tokens

EPSILON = 1e-5
RELU_GAIN = math.sqrt(2.0)
"""Gain that keeps the variance of activations before a relu, which drops half of it."""


def uniform(fan_in: int, gain: float = 1.0) -> Init:
    """Return a uniform Init of variance gain^2 / fan_in, which keeps an activation's variance times gain^2."""
    return Init("uniform", gain * math.sqrt(3.0 / fan_in))


def linear(b: GraphBuilder, x: str, width: int, name: str, gain: float = 1.0) -> str:
    """Add a bias-free fully connected layer from x [n, i] to [n, width]; its weight "name.w" is [i, width]."""
    fan_in = b.shape(x)[1]
    weight = b.weight(f"{name}.w", (fan_in, width), uniform(fan_in, gain))
    return b.apply("mm", x, weight, name=name)


def convolution(b: GraphBuilder, x: str, name: str, size: tuple[int, ...], gain: float = RELU_GAIN) -> str:
    """Add a bias-free convolution of x [n, c, y, x].

    `size` is (output channels, kernel, stride, padding=kernel // 2).
    """
    channels, kernel, stride, padding = (*size, size[1] // 2)[:4]
    fan_in = b.shape(x)[1]
    weight = b.weight(f"{name}.w", (channels, fan_in, kernel, kernel), uniform(fan_in * kernel * kernel, gain))
    return b.apply("convolution", x, weight, name=name, stride=(stride, stride), padding=(padding, padding))


def batch_norm(b: GraphBuilder, x: str, name: str, running: bool = False) -> str:
    """Add batch norm of x [n, c, y, x] in parts: statistics are reductions, the normalization is element-wise.

    With `running`, states "name.running_mean" and "name.running_var" track the statistics, the variance unbiased.
    """
    n, channels, height, width = b.shape(x)
    weight = b.weight(f"{name}.w", (channels,), ONES)
    bias = b.weight(f"{name}.b", (channels,), ZEROS)
    count = n * height * width
    mean = b.apply("mean", x, name=f"{name}.mean", dims=(0, 2, 3), count=count)
    var = b.apply("batch_norm_var", x, mean, name=f"{name}.var", count=count)
    if running:
        b.averages += [
            Average(f"{name}.running_mean", mean, ZEROS),
            Average(f"{name}.running_var", var, ONES, count / max(1, count - 1)),
        ]
    return b.apply("batch_norm", x, mean, var, weight, bias, name=name, eps=EPSILON)


def add_bias(b: GraphBuilder, x: str, name: str, *dims: int) -> str:
    """Add the weight "name.b", initially zero, whose dimension j is dimension dims[j] of x; the node is "name.bias"."""
    shape = b.shape(x)
    bias = b.weight(f"{name}.b", tuple(shape[dim] for dim in dims), ZEROS)
    return b.apply("add", x, bias, name=f"{name}.bias", dims=dims)


def max_pool(b: GraphBuilder, x: str, name: str, kernel: int, padding: int = 0) -> str:
    """Add max pooling of x [n, c, y, x] over kernel x kernel windows with stride 2; return the values."""
    return b.apply_all(
        "max_pool2d_with_indices",
        x,
        name=name,
        stride=(2, 2),
        padding=(padding, padding),
        kernel=(kernel, kernel),
        extents={"dy": kernel, "dx": kernel},
    )[0]


def flatten(b: GraphBuilder, x: str, name: str) -> str:
    """Merge channels, rows and columns: x [n, c, y, x] to [n, c y x]."""
    _, channels, height, width = b.shape(x)
    source, target = (("n",), ("c",), ("y",), ("x",)), (("n",), ("c", "y", "x"))
    extents: dict[str, Value] = {"c": channels, "y": height, "x": width}
    return b.apply("reshape", x, name=name, source=source, target=target, extents=extents)


def global_pool(b: GraphBuilder, x: str, name: str) -> str:
    """Add the mean over rows and columns: x [n, c, y, x] to [n, c]."""
    _, _, height, width = b.shape(x)
    return b.apply("mean", x, name=name, dims=(2, 3), count=height * width)


def layer_norm(b: GraphBuilder, x: str, name: str) -> str:
    """Add layer norm over the last dimension of x in parts: two reductions and an element-wise normalization."""
    *rest, width = b.shape(x)
    rows, last = tuple(range(len(rest))), (len(rest),)
    weight = b.weight(f"{name}.w", (width,), ONES)
    bias = b.weight(f"{name}.b", (width,), ZEROS)
    mean = b.apply("mean", x, name=f"{name}.mean", dims=last, count=width)
    var = b.apply("var", x, mean, name=f"{name}.var", dims=last, count=width)
    return b.apply("normalize", x, mean, var, weight, bias, name=name, statistics=rows, weights=last, eps=EPSILON)


def rms_norm(b: GraphBuilder, x: str, name: str, eps: float = EPSILON) -> str:
    """Add RMS norm over the last dimension of x: a reduction and an element-wise normalization with weight "name.w"."""
    width = b.shape(x)[-1]
    weight = b.weight(f"{name}.w", (width,), ONES)
    square = b.apply("mean_square", x, name=f"{name}.square", count=width)
    return b.apply("rms_norm", x, square, weight, name=name, eps=eps)


def _row_sums(b: GraphBuilder, x: str, name: str) -> tuple[str, str]:
    """Return the maximum and the sum of exponentials over the last dimension of x."""
    maximum = b.apply("amax", x, name=f"{name}.maximum", dims=(len(b.shape(x)) - 1,))
    return maximum, b.apply("sum_exp", x, maximum, name=f"{name}.total")


def softmax(b: GraphBuilder, x: str, name: str) -> str:
    """Add softmax over the last dimension of x in parts: two reductions and an element-wise quotient."""
    return b.apply("softmax", x, *_row_sums(b, x, name), name=name)


def softmax_cross_entropy(b: GraphBuilder, logits: str, labels: str, name: str, count: int) -> str:
    """Add softmax cross entropy of logits [..., c] and int32 labels [...], summed and divided by `count`.

    It is computed in the weights' dtype: float32 with mixed precision.
    """
    logits = b.cast(logits, b.weight_dtype, f"{name}.logits")
    return b.apply("cross_entropy", logits, *_row_sums(b, logits, name), labels, name=name, count=count)


def classify(b: GraphBuilder, logits: str) -> dict[str, str]:
    """Add the labels [...] and the mean loss of a classifier's logits [..., classes]; return the metrics."""
    *rows, classes = b.shape(logits)
    labels = b.integers("labels", rows, classes)
    loss = softmax_cross_entropy(b, logits, labels, "loss", math.prod(rows))
    return {"loss": loss, "logits": logits, "labels": labels}


def pooled_classifier(b: GraphBuilder, x: str, classes: int) -> dict[str, str]:
    """Add a global average pool of x [n, c, y, x], a fully connected layer without bias, and the loss.

    Return the metrics.
    """
    return classify(b, linear(b, global_pool(b, x, "pool"), classes, "fc"))


# Parts of transformers on sequences of tokens [b, s, d]: embeddings, attention, feed-forward layers.
#
# Projections to and from heads have weights with a separate dimension for the heads, `[3, heads, d/heads, d]` and
# `[d, heads, d/heads]`, so sharding the heads keeps a head's queries, keys and values on one worker.


TO_HEADS = "bsd,thed->tbhse"
HEAD_WIDTH = 64
EXPANSION = 4


def heads_of(width: int, options: Tokens) -> int:
    """Return the number of heads of `width`: the option, or one per 64.

    Raise GraphError unless it divides the width.
    """
    heads = options.heads or max(1, width // HEAD_WIDTH)
    if width % heads:
        raise GraphError(f"option heads must divide the width {width}, found {heads}")
    return heads


def table(b: GraphBuilder, name: str, vocabulary: int, width: int) -> str:
    """Add the embeddings "name.w" [vocabulary, width], which can also be the weight of an output layer."""
    return b.weight(f"{name}.w", (vocabulary, width), uniform(width))


def embed(b: GraphBuilder, words: str, weight: str, name: str) -> str:
    """Embed tokens [b, s] by a table [v, d] and add the learned embeddings "name.positions.w" [s, d]."""
    _, width = b.shape(weight)
    positions = b.weight(f"{name}.positions.w", (b.shape(words)[1], width), uniform(width))
    embedded = b.apply("embedding", weight, words, name=f"{name}.tokens")
    return b.apply("add", embedded, positions, name=name, dims=(1, 2))


def classify_tokens(b: GraphBuilder, x: str, weight: str | None, vocabulary: int) -> dict[str, str]:
    """Add the logits [b, s, v] of all positions and their mean loss; return the metrics.

    `weight` is the table [v, d] of tied embeddings; without it the output layer has its own weight, "logits.w" [d, v].
    """
    if weight is None:
        output = WeightProduct("bsd,dv->bsv", (b.shape(x)[2], vocabulary), bias=False)
        return classify(b, project(b, x, "logits", output))
    return classify(b, b.apply("einsum", x, weight, name="logits", equation="bsd,vd->bsv"))


@dataclass(frozen=True, slots=True)
class WeightProduct:
    """A contraction with a weight of the given shape, the second operand of `equation`, initialized with this gain."""

    equation: str
    shape: tuple[int, ...]
    gain: float = 1.0
    bias: bool = True


def project(b: GraphBuilder, x: str, name: str, by: WeightProduct) -> str:
    """Contract x with the weight "name.w" and, with a bias, add "name.b" over the dimensions that the weight adds."""
    left, right, target = by.equation.replace("->", ",").split(",")
    fan_in = math.prod(extent for letter, extent in zip(right, by.shape, strict=True) if letter in left)
    weight = b.weight(f"{name}.w", by.shape, uniform(fan_in, by.gain))
    y = b.apply("einsum", x, weight, name=name, equation=by.equation)
    if not by.bias:
        return y
    return add_bias(b, y, name, *(dim for dim, letter in enumerate(target) if letter in right))


def attend(b: GraphBuilder, heads: tuple[str, str, str], name: str, causal: bool, bias: str | None = None) -> str:
    """Return attention [b, h, s, e] of queries, keys and values [b, heads, s, e].

    Queries may share key and value heads.

    A bias [h, t], per head and key, is added to the scores. No matrix of scores is stored.
    """
    how: dict[str, Value] = {"scale": 1.0 / math.sqrt(b.shape(heads[0])[-1]), "causal": causal}
    outputs = (f"{name}.mixed", f"{name}.log_sums")
    if bias is None:
        return b.apply_all("attention", *heads, name=f"{name}.mixed", outputs=outputs, **how)[0]
    operands = (*heads, bias)
    return b.apply_all("biased_attention", *operands, name=f"{name}.mixed", outputs=outputs, **how, dims=(1, 3))[0]


def attend_storing(b: GraphBuilder, heads: tuple[str, str, str], name: str, causal: bool, dropped: float = 0.0) -> str:
    """Return attention as `attend` does, from products and a softmax; keys need as many heads as queries.

    Probabilities are dropped with probability `dropped` in training.
    """
    q, k, v = heads
    q = b.apply("scale", q, name=f"{name}.q_scaled", factor=1.0 / math.sqrt(b.shape(q)[-1]))
    scores = b.apply("einsum", q, k, name=f"{name}.scores", equation="bhqe,bhke->bhqk")
    if causal:
        scores = b.apply("causal_mask", scores, name=f"{name}.mask")
    probabilities = softmax(b, scores, f"{name}.softmax")
    probabilities = dropout(b, probabilities, dropped, len(b.nodes), f"{name}.softmax.dropped")
    return b.apply("einsum", probabilities, v, name=f"{name}.mixed", equation="bhqk,bhke->bhqe")


def residual_gain(sums: int) -> float:
    """Return the gain that keeps the variance of `sums` residual sums from growing with depth."""
    return 1.0 / math.sqrt(sums)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Pre-norm blocks of one network: its builder, heads per attention, number of residual sums, and options.

    `gelu` is the approximation, "none" or "tanh". `bias` is added to the scores of `flash` attention.
    """

    b: GraphBuilder
    heads: int
    residuals: int
    qkv_bias: bool
    dropout: float = 0.0
    flash: bool = False
    gelu: str = "none"
    bias: str | None = None
    attention_dropout: float = 0.0

    def drop(self, x: str, name: str) -> str:
        """Drop elements of x in training."""
        return dropout(self.b, x, self.dropout, len(self.b.nodes), name)

    def attention(self, x: str, name: str, causal: bool = False) -> str:
        """Add to x [b, s, d] the self-attention of its norm; with `causal`, positions attend only to earlier ones."""
        b, (_, _, width) = self.b, self.b.shape(x)
        shape = (3, self.heads, width // self.heads, width)
        norm = layer_norm(b, x, f"{name}.norm")
        fused = project(b, norm, f"{name}.qkv", WeightProduct(TO_HEADS, shape, bias=self.qkv_bias))
        parts = tuple(f"{name}.{part}" for part in "qkv")
        q, k, v = b.apply_all("unbind", fused, name=f"{name}.unbind", outputs=parts, dim=0, n=3)
        return self.attend(x, (q, k, v), name, causal)

    def mlp(self, x: str, name: str) -> str:
        """Add to x [b, s, d] a feed-forward layer of its norm, 4 d wide, with a GELU."""
        b, (_, _, width) = self.b, self.b.shape(x)
        wide = EXPANSION * width
        y = layer_norm(b, x, f"{name}.norm")
        y = project(b, y, f"{name}.up", WeightProduct("bsd,df->bsf", (width, wide), RELU_GAIN))
        y = b.apply("gelu", y, name=f"{name}.gelu", **({} if self.gelu == "none" else {"approximate": self.gelu}))
        y = project(b, y, f"{name}.down", WeightProduct("bsf,fd->bsd", (wide, width), residual_gain(self.residuals)))
        return b.apply("add", x, self.drop(y, f"{name}.dropped"), name=f"{name}.sum")

    def attend(self, x: str, heads: tuple[str, str, str], name: str, causal: bool) -> str:
        """Add to x [b, s, d] the attention of queries, keys and values [b, heads, s, e]."""
        b, (_, _, width) = self.b, self.b.shape(x)
        if self.flash:
            mixed = attend(b, heads, name, causal, self.bias)
        else:
            mixed = attend_storing(b, heads, name, causal, self.attention_dropout)
        shape = (width, self.heads, width // self.heads)
        back = WeightProduct("bhse,dhe->bsd", shape, residual_gain(self.residuals))
        y = self.drop(project(b, mixed, f"{name}.out", back), f"{name}.dropped")
        return b.apply("add", x, y, name=f"{name}.sum")
