"""Scaled dot-product attention that never stores its score matrix, as in FlashAttention-2 (Dao, 2023).

Queries are [b, h, q, c], keys [b, g, k, c] and values [b, g, k, e], where h = (g, r): r query heads share a head of
keys and values. The results are the output [b, h, q, e] and the logarithm of each query's sum of exponentials [b, h,
q]. The backward operators recompute the scores from it. There are several backward operators, so that queries and keys
can be split in the same way. `inner` is each query's sum of gradient times result, minus the gradient of the logarithm
if the logarithm is read.

`biased_attention` adds a bias to the scores; the bias has the dimensions `dims` of [b, h, q, k], and minus infinity
hides a key. If all keys are hidden from a query, both its result and its logarithm are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tdl.expr import Expr
from tdl.language import Body, Lambda, Operand, Sum, at, exp, log, tensor, where
from tdl.operator import op

Dims = tuple[int, ...]
Matrix = Callable[[Expr, Expr, Expr], Expr]

AXES = (("b",), ("g", "r"), ("q",), ("k",))
"""The index variables of each dimension of the score matrix."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The operands and attributes that define the scores."""

    query: Operand
    key: Operand
    bias: Operand | None
    scale: float
    causal: bool
    dims: Dims

    def exponentials(self, b: Expr, g: Expr, minus: Callable[[Expr, Expr], Expr] | None = None) -> Matrix:
        """Return exp(score - minus) as a function of r, q and k; without `minus`, exp(score)."""

        def element(r: Expr, q: Expr, k: Expr) -> Expr:
            score = Sum(lambda c: self.query[b, (g, r), q, c] * self.key[b, g, k, c]) * self.scale
            if self.bias is not None:
                place = (b, (g, r), q, k)
                score = score + self.bias[tuple(place[dim] for dim in self.dims)]
            return exp(score if minus is None else score - minus(r, q))

        return shared(element)

    def shown(self, q: Expr, k: Expr, value: Expr) -> Expr:
        """Return the value if the query attends to the key, otherwise 0."""
        return where(k <= q, value, 0) if self.causal else value


def shared(element: Matrix) -> Matrix:
    """Return a function that builds the element's expression once and then reuses it, so its operations count once."""
    written: list[Expr] = []

    def once(r: Expr, q: Expr, k: Expr) -> Expr:
        if not written:
            written.append(element(r, q, k))
        return written[0]

    return once


def _attention(scores: Scores, value: Operand) -> Body:
    def outputs(b: Expr, g: Expr, r: Expr, q: Expr, e: Expr) -> tuple[object, ...]:
        weight = scores.exponentials(b, g)
        total = Sum(lambda k: scores.shown(q, k, weight(r, q, k)))
        mixed = Sum(lambda k: scores.shown(q, k, weight(r, q, k) * value[b, g, k, e]))
        result, logarithm = mixed / total, log(total)
        if scores.bias is not None:
            result, logarithm = (where(total > 0, value, 0) for value in (result, logarithm))
        return at((b, (g, r), q, e), result), at((b, (g, r), q), logarithm)

    return outputs


@dataclass(frozen=True, slots=True)
class Gradient:
    """The other operands of the backward operators: gradient, values, logarithms of sums, inner products."""

    scores: Scores
    grad: Operand
    value: Operand
    total: Operand
    inner: Operand

    def matrices(self, b: Expr, g: Expr) -> tuple[Matrix, Matrix]:
        """Return the probabilities and the gradient of the scores, as functions of r, q and k."""
        probability = self.scores.exponentials(b, g, lambda r, q: self.total[b, (g, r), q])

        def slope(r: Expr, q: Expr, k: Expr) -> Expr:
            arriving = Sum(lambda d: self.grad[b, (g, r), q, d] * self.value[b, g, k, d])
            return probability(r, q, k) * (arriving - self.inner[b, (g, r), q])

        return probability, shared(slope)


def _backward_query(given: Gradient) -> Body:
    scores = given.scores

    def output(b: Expr, g: Expr, r: Expr, q: Expr, e: Expr) -> object:
        _, slope = given.matrices(b, g)
        total = Sum(lambda k: scores.shown(q, k, slope(r, q, k) * scores.key[b, g, k, e]))
        return at((b, (g, r), q, e), total * scores.scale)

    return output


def _backward_keys(given: Gradient) -> Body:
    scores = given.scores

    def outputs(b: Expr, g: Expr, k: Expr, e: Expr, f: Expr) -> tuple[object, ...]:
        probability, slope = given.matrices(b, g)
        of_key = Sum(lambda r, q: scores.shown(q, k, slope(r, q, k) * scores.query[b, (g, r), q, e]))
        of_value = Sum(lambda r, q: scores.shown(q, k, probability(r, q, k) * given.grad[b, (g, r), q, f]))
        return at((b, g, k, e), of_key * scores.scale), at((b, g, k, f), of_value)

    return outputs


@op(category="matmul")
def attention(query: Operand, key: Operand, value: Operand, *, scale: float, causal: bool = False) -> Body:
    return _attention(Scores(query, key, None, scale, causal, ()), value)


@op(category="matmul")
def biased_attention(
    query: Operand, key: Operand, value: Operand, bias: Operand, *, scale: float, dims: Dims, causal: bool = False
) -> Body:
    return _attention(Scores(query, key, bias, scale, causal, dims), value)


@op(category="matmul")
def attention_backward_query(  # noqa: PLR0917
    grad: Operand,
    query: Operand,
    key: Operand,
    value: Operand,
    total: Operand,
    inner: Operand,
    *,
    scale: float,
    causal: bool = False,
) -> Body:
    return _backward_query(Gradient(Scores(query, key, None, scale, causal, ()), grad, value, total, inner))


@op(category="matmul")
def attention_backward_keys(  # noqa: PLR0917
    grad: Operand,
    query: Operand,
    key: Operand,
    value: Operand,
    total: Operand,
    inner: Operand,
    *,
    scale: float,
    causal: bool = False,
) -> Body:
    return _backward_keys(Gradient(Scores(query, key, None, scale, causal, ()), grad, value, total, inner))


@op(category="matmul")
def biased_attention_backward_query(  # noqa: PLR0917
    grad: Operand,
    query: Operand,
    key: Operand,
    value: Operand,
    bias: Operand,
    total: Operand,
    inner: Operand,
    *,
    scale: float,
    dims: Dims,
    causal: bool = False,
) -> Body:
    return _backward_query(Gradient(Scores(query, key, bias, scale, causal, dims), grad, value, total, inner))


@op(category="matmul")
def biased_attention_backward_keys(  # noqa: PLR0917
    grad: Operand,
    query: Operand,
    key: Operand,
    value: Operand,
    bias: Operand,
    total: Operand,
    inner: Operand,
    *,
    scale: float,
    dims: Dims,
    causal: bool = False,
) -> Body:
    return _backward_keys(Gradient(Scores(query, key, bias, scale, causal, dims), grad, value, total, inner))


@op(category="matmul")
def biased_attention_backward_bias(  # noqa: PLR0917
    grad: Operand,
    query: Operand,
    key: Operand,
    value: Operand,
    bias: Operand,
    total: Operand,
    inner: Operand,
    *,
    scale: float,
    dims: Dims,
    causal: bool = False,
) -> Lambda:
    given = Gradient(Scores(query, key, bias, scale, causal, dims), grad, value, total, inner)
    kept = [name for dim in dims for name in AXES[dim]]
    summed = [name for axis in AXES for name in axis if name not in kept]

    def slope(places: dict[str, Expr]) -> Expr:
        b, g, r, q, k = (places[name] for axis in AXES for name in axis)
        return given.scores.shown(q, k, given.matrices(b, g)[1](r, q, k))

    def output(*i: Expr) -> object:
        places = dict(zip(kept, i, strict=True))
        coordinates = tuple(tuple(places[name] for name in AXES[dim]) for dim in dims)
        if not summed:
            return at(coordinates, slope(places))
        return at(coordinates, Sum(lambda *s: slope(places | dict(zip(summed, s, strict=True))), names=summed))

    return tensor(output, names=kept)
