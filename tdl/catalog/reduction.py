"""Convolution and pooling, matrix products, reductions along dimensions, and their gradients.

Images are NCHW, weights of convolutions OIHW; (height, width) pairs are attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import mul

from tdl.catalog.elementwise import spread
from tdl.expr import Expr
from tdl.index import TDLError
from tdl.language import Body, Lambda, Max, Min, Operand, Prod, Sum, at as place, pad, tensor, where
from tdl.operator import op

Pair = tuple[int, int]


class _Window:
    """The index arithmetic of a window: the input element at an offset, or the window that read an element."""

    def __init__(self, stride: Pair, padding: Pair, dilation: Pair = (1, 1)) -> None:
        (self.sy, self.sx), (self.py, self.px), (self.ty, self.tx) = stride, padding, dilation

    def input(self, y: Expr, x: Expr, dy: Expr, dx: Expr) -> tuple[Expr, Expr]:
        row, column = y * self.sy + dy * self.ty - self.py, x * self.sx + dx * self.tx - self.px
        return pad(row, self.py, self.py), pad(column, self.px, self.px)

    def output(self, y: Expr, x: Expr, dy: Expr, dx: Expr) -> tuple[Expr, Expr]:
        return (y + self.py - dy * self.ty) / self.sy, (x + self.px - dx * self.tx) / self.sx


@op(category="convolution")
def convolution(
    input: Operand, weight: Operand, *, stride: Pair, padding: Pair, dilation: Pair = (1, 1), groups: int = 1
) -> Body:
    at = _Window(stride, padding, dilation).input
    if groups == 1:
        return lambda n, co, y, x: Sum(lambda ci, dy, dx: input[n, ci, *at(y, x, dy, dx)] * weight[co, ci, dy, dx])
    return lambda n, co, y, x, g=groups: place(
        (n, (g, co), y, x), Sum(lambda ci, dy, dx: input[n, (g, ci), *at(y, x, dy, dx)] * weight[(g, co), ci, dy, dx])
    )


@op(category="convolution")
def convolution_backward_input(
    grad: Operand, weight: Operand, *, stride: Pair, padding: Pair, dilation: Pair = (1, 1), groups: int = 1
) -> Body:
    at = _Window(stride, padding, dilation).output
    if groups == 1:
        return lambda n, ci, y, x: Sum(lambda co, dy, dx: grad[n, co, *at(y, x, dy, dx)] * weight[co, ci, dy, dx])
    return lambda n, ci, y, x, g=groups: place(
        (n, (g, ci), y, x), Sum(lambda co, dy, dx: grad[n, (g, co), *at(y, x, dy, dx)] * weight[(g, co), ci, dy, dx])
    )


@op(category="convolution")
def convolution_backward_weight(
    grad: Operand, input: Operand, *, stride: Pair, padding: Pair, dilation: Pair = (1, 1), groups: int = 1
) -> Body:
    at = _Window(stride, padding, dilation).input
    if groups == 1:
        return lambda co, ci, dy, dx: Sum(lambda n, y, x: grad[n, co, y, x] * input[n, ci, *at(y, x, dy, dx)])
    return lambda co, ci, dy, dx, g=groups: place(
        ((g, co), ci, dy, dx), Sum(lambda n, y, x: grad[n, (g, co), y, x] * input[n, (g, ci), *at(y, x, dy, dx)])
    )


@op
def im2col(image: Operand, *, stride: Pair, padding: Pair, dilation: Pair = (1, 1)) -> Body:
    at = _Window(stride, padding, dilation).input
    return lambda n, c, dy, dx, y, x: image[n, c, *at(y, x, dy, dx)]


@op(category="reduction")
def col2im(columns: Operand, *, stride: Pair, padding: Pair, dilation: Pair = (1, 1)) -> Body:
    at = _Window(stride, padding, dilation).output
    return lambda n, c, y, x: Sum(lambda dy, dx: columns[n, c, dy, dx, *at(y, x, dy, dx)])


@op(category="reduction")
def max_pool2d_with_indices(
    input: Operand, *, stride: Pair, padding: Pair, kernel: Pair, dilation: Pair = (1, 1)
) -> Body:
    (ky, kx), at = kernel, _Window(stride, padding, dilation).input

    def outputs(n: Expr, c: Expr, y: Expr, x: Expr) -> tuple[Expr, Expr]:
        greatest = Max(lambda wy=ky, wx=kx: input[n, c, *at(y, x, wy, wx)])
        first = Min(lambda dy=ky, dx=kx: where(input[n, c, *at(y, x, dy, dx)] == greatest, dy * kx + dx, ky * kx))
        return Max(lambda dy=ky, dx=kx: input[n, c, *at(y, x, dy, dx)]), first

    return outputs


@op(category="reduction")
def max_pool2d_with_indices_backward(
    grad: Operand, indices: Operand, *, stride: Pair, padding: Pair, kernel: Pair, dilation: Pair = (1, 1)
) -> Body:
    (ky, kx), at = kernel, _Window(stride, padding, dilation).output
    return lambda n, c, y, x: Sum(
        lambda dy=ky, dx=kx: where(indices[n, c, *at(y, x, dy, dx)] == dy * kx + dx, grad[n, c, *at(y, x, dy, dx)], 0)
    )


@op(category="reduction")
def avg_pool2d(input: Operand, *, stride: Pair, padding: Pair, kernel: Pair) -> Body:
    (ky, kx), at = kernel, _Window(stride, padding).input
    return lambda n, c, y, x: Sum(lambda dy=ky, dx=kx: input[n, c, *at(y, x, dy, dx)]) / (ky * kx)


@op(category="reduction")
def avg_pool2d_backward(grad: Operand, *, stride: Pair, padding: Pair, kernel: Pair) -> Body:
    (ky, kx), at = kernel, _Window(stride, padding).output
    return lambda n, c, y, x: Sum(lambda dy=ky, dx=kx: grad[n, c, *at(y, x, dy, dx)]) / (ky * kx)


Dims = tuple[int, ...]
Read = Callable[..., Expr]


def _along(x: Operand, dims: Dims, element: Callable[[Read, tuple[Expr, ...]], Expr]) -> Lambda:
    """Return a reduction over dimensions `dims` (variables r0, r1, ...) that keeps the others in order (i0, i1, ...).

    Raises TDLError if `dims` are not distinct dimensions of the operand.
    """
    if len(set(dims)) != len(dims) or not set(dims) <= set(range(x.rank)):
        raise TDLError(f"dims {tuple(dims)} are not distinct dimensions of '{x.name}', which has {x.rank}")

    def reduced(i: tuple[Expr, ...]) -> Expr:
        def read(*r: Expr) -> Expr:
            over, kept = iter(r), iter(i)
            return x[tuple(next(over if dim in dims else kept) for dim in range(x.rank))]

        return element(read, i)

    return tensor(lambda *i: reduced(i), rank=x.rank - len(dims))


@op(category="reduction")
def sum_(x: Operand, *, dims: Dims) -> Lambda:
    return _along(x, dims, lambda read, i: Sum(read, rank=len(dims)))


@op(category="reduction")
def mean(x: Operand, *, dims: Dims, count: float) -> Lambda:
    return _along(x, dims, lambda read, i: Sum(read, rank=len(dims)) / count)


@op(category="reduction")
def amax(x: Operand, *, dims: Dims, chosen: bool = False) -> Lambda:
    """Return the maximum.

    `chosen` only affects the gradient: it selects where the maximum is, instead of multiplying.
    """
    del chosen
    return _along(x, dims, lambda read, i: Max(read, rank=len(dims)))


@op(category="reduction")
def amin(x: Operand, *, dims: Dims, chosen: bool = False) -> Lambda:
    """Return the minimum. `chosen` is as for `amax`."""
    del chosen
    return _along(x, dims, lambda read, i: Min(read, rank=len(dims)))


@op(category="reduction")
def prod(x: Operand, *, dims: Dims) -> Lambda:
    return _along(x, dims, lambda read, i: Prod(read, rank=len(dims)))


@op(category="reduction")
def any_(mask: Operand, *, dims: Dims) -> Lambda:
    return _along(mask, dims, lambda read, i: Max(lambda *r: where(read(*r) != 0, 1, 0), rank=len(dims)))


@op(category="reduction")
def all_(mask: Operand, *, dims: Dims) -> Lambda:
    return _along(mask, dims, lambda read, i: Min(lambda *r: where(read(*r) != 0, 1, 0), rank=len(dims)))


@op(category="reduction")
def var(x: Operand, mean: Operand, *, dims: Dims, count: float) -> Lambda:
    def element(read: Read, i: tuple[Expr, ...]) -> Expr:
        return Sum(lambda *r: (read(*r) - mean[i]) ** 2, rank=len(dims)) / count

    return _along(x, dims, element)


@op(category="elementwise")
def var_backward(grad: Operand, x: Operand, mean: Operand, *, dims: Dims, count: float) -> Lambda:
    kept = tuple(dim for dim in range(x.rank) if dim not in dims)
    return tensor(lambda *i: (x[i] - mean[spread(i, kept)]) * (grad[spread(i, kept)] * (2 / count)), rank=x.rank)


@op(category="reduction")
def count_extremes(x: Operand, extreme: Operand, *, dims: Dims) -> Lambda:
    def element(read: Read, i: tuple[Expr, ...]) -> Expr:
        return Sum(lambda *r: where(read(*r) == extreme[i], 1.0, 0.0), rank=len(dims))

    return _along(x, dims, element)


@op(category="elementwise")
def extreme_backward(grad: Operand, x: Operand, extreme: Operand, *, dims: Dims, chosen: bool = False) -> Lambda:
    kept = tuple(dim for dim in range(x.rank) if dim not in dims)

    def element(*i: Expr) -> Expr:
        own, is_extreme = grad[spread(i, kept)], x[i] == extreme[spread(i, kept)]
        return where(is_extreme, own, 0) if chosen else own * where(is_extreme, 1, 0)

    return tensor(element, rank=x.rank)


@op(category="reduction")
def cumsum(x: Operand, *, dim: int, reverse: bool = False) -> Lambda:
    def element(*i: Expr) -> Expr:
        def term(r: Expr) -> Expr:
            return where(r >= i[dim] if reverse else r <= i[dim], x[*i[:dim], r, *i[dim + 1 :]], 0)

        return Sum(term)

    return tensor(element, rank=x.rank)


@op(category="elementwise")
def expand(x: Operand, *, dims: Dims, factor: float = 1.0) -> Lambda:
    rank = x.rank + len(dims)
    if len(set(dims)) != len(dims) or not set(dims) <= set(range(rank)):
        raise TDLError(f"dims {tuple(dims)} are not distinct dimensions of an output that has {rank}")
    inserted, kept = sorted(dims), [dim for dim in range(rank) if dim not in dims]
    names = [f"e{inserted.index(dim)}" if dim in dims else f"i{kept.index(dim)}" for dim in range(rank)]

    def element(*v: Expr) -> Expr:
        read = x[tuple(v[dim] for dim in kept)]
        return read if factor == 1 else read * factor

    return tensor(element, names=names)


# Matrix products.


@op(category="matmul")
def mm(a: Operand, b: Operand, *, transpose_a: bool = False, transpose_b: bool = False) -> Body:
    return lambda i, j: Sum(lambda k: (a[k, i] if transpose_a else a[i, k]) * (b[j, k] if transpose_b else b[k, j]))


@op(category="matmul")
def bmm(a: Operand, b: Operand, *, transpose_a: bool = False, transpose_b: bool = False) -> Body:
    return lambda n, i, j: Sum(
        lambda k: (a[n, k, i] if transpose_a else a[n, i, k]) * (b[n, j, k] if transpose_b else b[n, k, j])
    )


@op(category="matmul")
def grouped_mm(rows: Operand, matrices: Operand, indices: Operand, *, transpose: bool = False) -> Lambda:
    """Multiply each row by the matrix of its group, optionally transposed; rows of no group become zero.

    There is a group number for each row. Rows, and rows and columns of the matrices, may have several dimensions.
    """
    count = indices.rank

    def element(*i: Expr) -> Expr:
        r, n = i[:count], i[count:]

        def product(g: Expr, *k: Expr) -> Expr:
            return where(indices[r] == g, rows[*r, *k], 0) * matrices[g, *((*n, *k) if transpose else (*k, *n))]

        return Sum(product, rank=rows.rank - count)

    return tensor(element, rank=matrices.rank - 1 - rows.rank + 2 * count)


@op(category="matmul")
def grouped_mm_backward(first: Operand, second: Operand, indices: Operand) -> Lambda:
    """Sum the outer products of the rows of each group."""
    count = indices.rank

    def element(g: Expr, *i: Expr) -> Expr:
        k, n = i[: first.rank - count], i[first.rank - count :]
        return Sum(lambda *r: where(indices[r] == g, first[*r, *k], 0) * second[*r, *n], rank=count)

    return tensor(element, rank=first.rank + second.rank - 2 * count)


@op(category="matmul")
def einsum(*operands: Operand, equation: str) -> Lambda:
    inputs, output = _letters(equation, [x.rank for x in operands])
    summed = tuple(dict.fromkeys(letter for letters in inputs for letter in letters if letter not in output))

    def product(kept: tuple[Expr, ...], over: tuple[Expr, ...]) -> Expr:
        at = dict(zip((*output, *summed), (*kept, *over), strict=True))
        factors = (x[tuple(at[letter] for letter in own)] for x, own in zip(operands, inputs, strict=True))
        return reduce(mul, factors)

    if not summed:
        return tensor(lambda *kept: product(kept, ()), names=output)
    return tensor(lambda *kept: Sum(lambda *over: product(kept, over), names=summed), names=output)


def _letters(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """Return the letters of each operand and of the output.

    Raises TDLError if the equation does not fit the operands.
    """
    left, arrow, output = equation.replace(" ", "").partition("->")
    inputs = left.split(",")
    every = [*inputs, output]
    if not arrow or not all(letters.isalpha() or not letters for letters in every):
        raise TDLError(f"equation '{equation}' is not of the form 'ij,jk->ik'")
    if [len(letters) for letters in inputs] != ranks:
        raise TDLError(f"equation '{equation}' does not fit operands of ranks {tuple(ranks)}")
    if any(len(set(letters)) != len(letters) for letters in every) or not set(output) <= set(left):
        raise TDLError(f"equation '{equation}' repeats a letter within a tensor, or has one in the output only")
    return inputs, output
