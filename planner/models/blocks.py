"""Parts of transformers on sequences of tokens [b, s, d]: embeddings, attention, feed-forward layers.

Projections to and from heads have weights with a separate dimension for the heads, `[3, heads, d/heads, d]` and `[d,
heads, d/heads]`, so sharding the heads keeps a head's queries, keys and values on one worker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.errors import GraphError
from planner.graph.build import GraphBuilder
from planner.graph.ir import Value
from planner.graph.training_mode import dropout
from planner.models.layers import RELU_GAIN, add_bias, classify, layer_norm, softmax, uniform
from planner.models.options import Tokens

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
        return self._attend(x, (q, k, v), name, causal)

    def cross_attention(self, x: str, memory: str, name: str) -> str:
        """Add to x [b, s, d] the attention of its norm to `memory` [b, t, d]."""
        b, (_, _, width) = self.b, self.b.shape(x)
        head = (self.heads, width // self.heads, width)
        norm = layer_norm(b, x, f"{name}.norm")
        q = project(b, norm, f"{name}.q", WeightProduct("bsd,hed->bhse", head, bias=self.qkv_bias))
        fused = project(b, memory, f"{name}.kv", WeightProduct(TO_HEADS, (2, *head), bias=self.qkv_bias))
        parts = tuple(f"{name}.{part}" for part in "kv")
        k, v = b.apply_all("unbind", fused, name=f"{name}.unbind", outputs=parts, dim=0, n=2)
        return self._attend(x, (q, k, v), name, causal=False)

    def mlp(self, x: str, name: str) -> str:
        """Add to x [b, s, d] a feed-forward layer of its norm, 4 d wide, with a GELU."""
        b, (_, _, width) = self.b, self.b.shape(x)
        wide = EXPANSION * width
        y = layer_norm(b, x, f"{name}.norm")
        y = project(b, y, f"{name}.up", WeightProduct("bsd,df->bsf", (width, wide), RELU_GAIN))
        y = b.apply("gelu", y, name=f"{name}.gelu", **({} if self.gelu == "none" else {"approximate": self.gelu}))
        y = project(b, y, f"{name}.down", WeightProduct("bsf,fd->bsd", (wide, width), residual_gain(self.residuals)))
        return b.apply("add", x, self.drop(y, f"{name}.dropped"), name=f"{name}.sum")

    def _attend(self, x: str, heads: tuple[str, str, str], name: str, causal: bool) -> str:
        b, (_, _, width) = self.b, self.b.shape(x)
        if self.flash:
            mixed = attend(b, heads, name, causal, self.bias)
        else:
            mixed = attend_storing(b, heads, name, causal, self.attention_dropout)
        shape = (width, self.heads, width // self.heads)
        back = WeightProduct("bhse,dhe->bsd", shape, residual_gain(self.residuals))
        y = self.drop(project(b, mixed, f"{name}.out", back), f"{name}.dropped")
        return b.apply("add", x, y, name=f"{name}.sum")
