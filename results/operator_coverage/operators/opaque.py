"""Orderings, transforms and factorisations: computed whole along their own dimensions, split along all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tdl.expr import Expr
from tdl.language import Body, Lambda, OpaqueFunction, Operand, tensor
from tdl.operator import op

Array = np.ndarray[Any, np.dtype[Any]]


def _last(x: Operand, whole: OpaqueFunction, index: tuple[Expr, ...]) -> Expr:
    """Element of a function of the last dimension."""
    return whole(x[*index[:-1], :])[index[-1]]


@op
def fft_last(x: Operand, *, length: int) -> Lambda:
    """Discrete Fourier transform of a real last dimension; real and imaginary parts alternate."""
    return _transform(x, lambda row: _interleave(np.fft.fft(row)), 2 * length)


@op
def ifft_last(x: Operand, *, length: int) -> Lambda:
    """Real part of the unnormalized inverse transform of alternating real and imaginary parts."""
    return _transform(x, lambda row: np.fft.ifft(row[0::2] + 1j * row[1::2]).real * length, length)


@op
def rfft_last(x: Operand, *, length: int) -> Lambda:
    """Half of the transform of a real last dimension; real and imaginary parts alternate."""
    return _transform(x, lambda row: _interleave(np.fft.rfft(row)), 2 * (length // 2 + 1))


@op
def irfft_last(x: Operand, *, length: int) -> Lambda:
    return _transform(x, lambda row: np.fft.irfft(row[0::2] + 1j * row[1::2], length), length)


def _transform(x: Operand, function: Callable[[Array], Array], length: int) -> Lambda:
    whole = OpaqueFunction(function, like=None, name="fft")
    return tensor(lambda *i, f=length: _last(x, whole, (*i, f)), rank=x.rank - 1)


def _interleave(values: Array) -> Array:
    return np.stack([values.real, values.imag], axis=-1).reshape(-1)


@op
def potrf(a: Operand) -> Body:
    """Lower Cholesky factor of every matrix."""
    cholesky = OpaqueFunction(np.linalg.cholesky, name="cholesky")
    return lambda *i: cholesky(a[*i[:-2], :, :])[i[-2:]]


@op
def potri(a: Operand) -> Body:
    """Inverse of every matrix whose lower Cholesky factor is given."""
    inverse = OpaqueFunction(lambda factor: np.linalg.inv(np.tril(factor) @ np.tril(factor).T), name="potri")
    return lambda *i: inverse(a[*i[:-2], :, :])[i[-2:]]


@op
def trsm(a: Operand, b: Operand, *, alpha: float = 1.0, transpose: bool = False) -> Lambda:
    """Solve lower triangular systems (or their transposes); the columns of b are independent."""

    def solution(factor: Array, column: Array) -> Array:
        lower = np.tril(factor)
        return np.linalg.solve(lower.T if transpose else lower, alpha * column)

    solve = OpaqueFunction(solution, like=1, name="solve")
    return tensor(lambda *i: solve(a[*i[:-2], :, :], b[*i[:-2], :, i[-1]])[i[-2]], rank=b.rank)
