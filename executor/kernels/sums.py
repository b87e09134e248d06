"""Sums: matrix products and Einstein sums, reductions, cumulative sums, and losses of labels.

Products are all computed with the array module's matmul, reductions by its functions. For losses, scores are gathered
by label; each run sums its part and divides by the whole `count`.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from math import prod
from types import ModuleType

import numpy as np

from executor.kernels.call import Array, Kernel, KernelCall, copy_whole
from tdl.operator import named

ADDED_ELEMENTS = 1 << 18
"""Elements of a product that are added to the output at a time, while they are in the cache."""


FEW_ROWS, MANY_COLUMNS = 64, 16
"""A product with a transposed matrix is computed transposed if it has at most FEW_ROWS rows, and MANY_COLUMNS times as
many columns."""


def mm(call: KernelCall, *, adds: bool = False) -> None:
    """Compute the product of two matrices, each optionally transposed. With `adds`, add it to the output."""
    a, b = call.inputs
    a = a.T if call.flag("transpose_a") else a
    b = b.T if call.flag("transpose_b") else b
    _multiply(call.xp, (a, b), call.outputs[0], adds)


def _is_turned(a: Array, b: Array) -> bool:
    """Return whether a has few rows and b is a transposed matrix, which OpenBLAS copies slowly.

    The transposed product needs no copy.
    """
    few = a.shape[-2] <= FEW_ROWS and MANY_COLUMNS * a.shape[-2] <= b.shape[-1]
    return bool(few and b.strides[-1] > b.strides[-2] == b.itemsize)


def _multiply(xp: ModuleType, factors: tuple[Array, Array], out: Array, adds: bool) -> None:
    """Write or add the product of two matrices, or of batches of them."""
    a, b = factors
    if not adds and xp is np and _is_turned(a, b):
        xp.copyto(out.swapaxes(-1, -2), xp.matmul(b.swapaxes(-1, -2), a.swapaxes(-1, -2)))
        return
    if not adds:
        xp.matmul(a, b, out=out)
        return
    rows = max(1, ADDED_ELEMENTS * out.shape[-2] // max(1, out.size))
    for start in range(0, out.shape[-2], rows):
        part = slice(start, start + rows)
        out[..., part, :] += xp.matmul(a[..., part, :], b)


def bmm(call: KernelCall) -> None:
    """Compute the products of two batches of matrices, each optionally transposed."""
    a, b = call.inputs
    a = a.transpose(0, 2, 1) if call.flag("transpose_a") else a
    b = b.transpose(0, 2, 1) if call.flag("transpose_b") else b
    call.xp.matmul(a, b, out=call.outputs[0])


def grouped_mm(call: KernelCall) -> None:
    """Multiply each row by the matrix of its group, optionally transposed."""
    rows, matrices, groups = call.inputs
    (out,), count = call.outputs, prod(rows.shape[groups.ndim :])
    rows = rows.reshape(-1, count)
    results = call.xp.zeros((len(rows), prod(out.shape[groups.ndim :])), out.dtype)
    for matrix, members in zip(matrices, _members(call, groups), strict=True):
        matrix_2d = matrix.reshape(-1, count).T if call.flag("transpose") else matrix.reshape(count, -1)
        results[members] = rows[members] @ matrix_2d
    out[...] = results.reshape(out.shape)


def grouped_mm_backward(call: KernelCall) -> None:
    """Sum the outer products of the rows of each group."""
    first, second, groups = call.inputs
    first, second = (rows.reshape(groups.size, prod(rows.shape[groups.ndim :])) for rows in (first, second))
    for sums, members in zip(call.outputs[0], _members(call, groups), strict=True):
        sums[...] = (first[members].T @ second[members]).reshape(sums.shape)


def _members(call: KernelCall, groups: Array) -> list[Array]:
    """Return the positions of the rows of each group that this run covers."""
    groups = groups.reshape(-1)
    order = call.xp.argsort(groups, kind="stable")
    numbers = call.xp.arange(call.ranges["g"][0], call.ranges["g"][1] + 1)
    ends = call.xp.searchsorted(groups[order], numbers).tolist()
    return [order[start:stop] for start, stop in pairwise(ends)]


def einsum(call: KernelCall, *, adds: bool = False) -> None:
    """Compute an Einstein sum in explicit form, from the first operand to the last.

    No letter may repeat within an operand.
    """
    sources, target = str(call.attributes["equation"]).replace(" ", "").split("->")
    a, *others = zip(call.inputs, sources.split(","), strict=True)
    while len(others) > 1:
        b, *others = others
        a = _product_for(call.xp, (a, b), set(target).union(*(letters for _, letters in others)))
    if others:
        _product(call.xp, (a, others[0]), (call.outputs[0], target), adds)
    else:
        kept, letters = _summed(*a, set(target))
        _put(call.xp, _arranged(kept, letters, target), call.outputs[0], adds)


Labelled = tuple[Array, str]
"""An array, and a letter for each of its dimensions."""


def _product_for(xp: ModuleType, factors: tuple[Labelled, Labelled], needed: set[str]) -> Labelled:
    """Return the sum of products of two operands over the letters that are not needed."""
    (a, first), (b, second) = factors
    extents = dict(zip(first + second, a.shape + b.shape, strict=True))
    letters = "".join(letter for letter in extents if letter in needed)
    product = xp.empty([extents[letter] for letter in letters], a.dtype)
    _product(xp, factors, (product, letters), adds=False)
    return product, letters


def _product(xp: ModuleType, factors: tuple[Labelled, Labelled], result: Labelled, adds: bool) -> None:
    """Write or add the sum of products of two operands over the letters that the result lacks."""
    (a, first), (b, second) = factors
    a, first = _summed(a, first, {*second, *result[1]})
    b, second = _summed(b, second, {*first, *result[1]})
    _contract(xp, (a, first), (b, second), result, adds)


def _put(xp: ModuleType, values: Array, out: Array, adds: bool) -> None:
    if adds:
        out += values
    else:
        xp.copyto(out, values)


def _summed(array: Array, letters: str, needed: set[str]) -> tuple[Array, str]:
    """Sum `array` over the letters that nothing else needs."""
    axes = tuple(axis for axis, letter in enumerate(letters) if letter not in needed)
    if not axes:
        return array, letters
    return array.sum(axis=axes, dtype=array.dtype), "".join(letter for letter in letters if letter in needed)


def _arranged(array: Array, letters: str, target: str) -> Array:
    """Transpose `array` to the order of `target`, a permutation of `letters`."""
    return array.transpose([letters.index(letter) for letter in target])


def letters_of_product(first: str, second: str, target: str) -> tuple[str, str, str, str]:
    """Return the letters of the batch, of the first operand's rows, of the second's columns, and of the sum."""
    batch = "".join(letter for letter in target if letter in first and letter in second)
    rows = "".join(letter for letter in target if letter not in second)
    columns = "".join(letter for letter in target if letter not in first)
    return batch, rows, columns, "".join(letter for letter in first if letter in second and letter not in target)


def _contract(xp: ModuleType, left: Labelled, right: Labelled, result: Labelled, adds: bool) -> None:
    """Write or add the sum of products of two operands to a third, as one batched matmul."""
    (a, first), (b, second), (out, target) = left, right, result
    batch, rows, columns, inner = letters_of_product(first, second, target)
    extents = dict(zip(first + second, a.shape + b.shape, strict=True))
    batches, m, n, k = (prod(extents[letter] for letter in group) for group in (batch, rows, columns, inner))
    a = _arranged(a, first, batch + rows + inner).reshape(batches, m, k)
    b = _arranged(b, second, batch + inner + columns).reshape(batches, k, n)
    produced = batch + rows + columns
    if produced == target and out.flags.c_contiguous:
        _multiply(xp, (a, b), out.reshape(batches, m, n), adds)
        return
    product = xp.matmul(a, b).reshape([extents[letter] for letter in produced])
    _put(xp, _arranged(product, produced, target), out, adds)


def _exact(kernel: Kernel) -> Kernel:
    """Return a kernel that sums integers in 64 bits. Raises DataError if a sum does not fit the output."""

    def exact(call: KernelCall) -> None:
        (out,) = call.outputs
        if out.dtype.kind != "i":
            kernel(call)
            return
        wide = call.xp.empty(out.shape, "int64")
        kernel(call.on(tuple(array.astype("int64") for array in call.inputs), (wide,)))
        copy_whole(call, out, wide)

    return exact


ADDING: dict[str, Kernel] = {"mm": partial(mm, adds=True), "einsum": partial(einsum, adds=True)}
"""Kernels that add their result to the output, in the precision of the operands."""


def reduce_sum(call: KernelCall) -> None:
    """Sum over the dimensions `dims`."""
    (x,), (out,) = call.inputs, call.outputs
    if out.dtype.kind != "i":
        call.xp.sum(x, axis=call.integers("dims"), dtype=out.dtype, out=out)
        return
    copy_whole(call, out, call.xp.sum(x, axis=call.integers("dims"), dtype="int64"))


def mean(call: KernelCall) -> None:
    """Sum over `dims` and divide by `count`, the number of summed elements in the whole tensor."""
    reduce_sum(call)
    call.xp.divide(call.outputs[0], call.number("count"), out=call.outputs[0])


def _reduced(function: str) -> Kernel:
    """Return the kernel of a function that reduces the dimensions `dims`. CuPy's `amin` does not support `out`."""

    def kernel(call: KernelCall) -> None:
        call.xp.copyto(call.outputs[0], getattr(call.xp, function)(call.inputs[0], axis=call.integers("dims")))

    return kernel


# These two are faster than derived kernels: blocks gain nothing if little is computed per element.


def mean_square(call: KernelCall) -> None:
    """Sum the squares of this run's part of every row, divided by the whole row's `count`."""
    (x,), (out,) = call.inputs, call.outputs
    call.xp.divide((x * x).sum(axis=-1), call.number("count"), out=out)


def count_extremes(call: KernelCall) -> None:
    """Count the elements that equal the extreme."""
    (x, extreme), dims = call.inputs, call.integers("dims")
    call.xp.copyto(call.outputs[0], (x == call.xp.expand_dims(extreme, dims)).sum(axis=dims))


def cumsum(call: KernelCall) -> None:
    """Compute cumulative sums, in reverse if requested, of the elements that this run has."""
    xp, (x,), (out,), dim = call.xp, call.inputs, call.outputs, call.integer("dim")
    (start, stop), places = call.ranges["r"], xp.arange(*call.ranges[f"i{dim}"])
    if call.flag("reverse"):
        x = xp.flip(x, dim)
        count = stop - xp.clip(places, start, stop)
    else:
        count = xp.clip(places + 1, start, stop) - start
    sums = xp.concatenate([xp.zeros_like(x[(slice(None),) * dim + (slice(0, 1),)]), xp.cumsum(x, axis=dim)], axis=dim)
    taken = xp.take(sums, count, axis=dim)
    if out.dtype.kind == "i":
        copy_whole(call, out, taken)
    else:
        xp.copyto(out, taken)


def dim_of(call: KernelCall, rank: int) -> int:
    """Return the dimension of an array along which the classes run."""
    return call.integer("dim") % rank if "dim" in call.attributes else rank - 1


def _chosen(call: KernelCall, scores: Array, labels: Array) -> tuple[Array, Array]:
    """Return which labels are among this run's classes, and the scores of the labels (arbitrary for the others)."""
    (start, stop), dim = call.ranges["c"], dim_of(call, scores.ndim)
    inside = (labels >= start) & (labels < stop)
    places = call.xp.expand_dims((labels - start) * inside, dim)
    return inside, call.xp.take_along_axis(scores, places, dim).squeeze(dim)


def _hit(call: KernelCall, labels: Array) -> Array:
    """Return True where a class of this run is the label."""
    dim = dim_of(call, labels.ndim + 1)
    classes = call.xp.arange(*call.ranges["c"]).reshape(-1, *(1,) * (labels.ndim - dim))
    return call.xp.expand_dims(labels, dim) == classes


def _mean(call: KernelCall, losses: Array) -> None:
    """Write the sum of losses divided by `count`."""
    (out,) = call.outputs
    call.xp.sum(losses, out=out)
    call.xp.divide(out, call.number("count"), out=out)


def nll_loss(call: KernelCall) -> None:
    """Compute minus the log-probabilities of the labels."""
    inside, chosen = _chosen(call, *call.inputs)
    _mean(call, call.xp.where(inside, -chosen, 0))


def nll_loss_backward(call: KernelCall) -> None:
    """Compute minus the gradient over `count` at the labels, zero elsewhere."""
    grad, labels = call.inputs
    call.xp.multiply(_hit(call, labels), -grad / call.number("count"), out=call.outputs[0])


def cross_entropy(call: KernelCall) -> None:
    """Compute the negative log-likelihood of the labels among this run's classes."""
    x, maximum, total, labels = call.inputs
    inside, chosen = _chosen(call, x, labels)
    losses = call.xp.log(total) + maximum - chosen
    _mean(call, call.xp.where(inside, losses, call.xp.zeros_like(total)))


KERNELS: dict[str, Kernel] = {
    **{name: _exact(kernel) for name, kernel in named(mm, bmm, einsum, grouped_mm, grouped_mm_backward).items()},
    "sum": reduce_sum,
    **{name: _reduced(name) for name in ("amax", "amin", "prod", "any", "all")},
    **named(mean, mean_square, count_extremes, cumsum, nll_loss, nll_loss_backward, cross_entropy),
}
