"""Convolution and pooling of images: NCHW activations, OIHW weights, and (height, width) pairs as attributes."""

from __future__ import annotations

from tdl.expr import Expr
from tdl.language import Body, Max, Min, Operand, Sum, at as place, pad, where
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
        (n, (g, co), y, x),
        Sum(lambda ci, dy, dx: input[n, (g, ci), *at(y, x, dy, dx)] * weight[(g, co), ci, dy, dx]),
    )


@op(category="convolution")
def convolution_backward_input(
    grad: Operand, weight: Operand, *, stride: Pair, padding: Pair, dilation: Pair = (1, 1), groups: int = 1
) -> Body:
    at = _Window(stride, padding, dilation).output
    if groups == 1:
        return lambda n, ci, y, x: Sum(lambda co, dy, dx: grad[n, co, *at(y, x, dy, dx)] * weight[co, ci, dy, dx])
    return lambda n, ci, y, x, g=groups: place(
        (n, (g, ci), y, x),
        Sum(lambda co, dy, dx: grad[n, (g, co), *at(y, x, dy, dx)] * weight[(g, co), ci, dy, dx]),
    )


@op(category="convolution")
def convolution_backward_weight(
    grad: Operand, input: Operand, *, stride: Pair, padding: Pair, dilation: Pair = (1, 1), groups: int = 1
) -> Body:
    at = _Window(stride, padding, dilation).input
    if groups == 1:
        return lambda co, ci, dy, dx: Sum(lambda n, y, x: grad[n, co, y, x] * input[n, ci, *at(y, x, dy, dx)])
    return lambda co, ci, dy, dx, g=groups: place(
        ((g, co), ci, dy, dx),
        Sum(lambda n, y, x: grad[n, (g, co), y, x] * input[n, (g, ci), *at(y, x, dy, dx)]),
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
