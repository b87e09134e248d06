"""Matrix products."""

from __future__ import annotations

from functools import reduce
from operator import mul

from tdl.errors import TDLError
from tdl.expr import Expr
from tdl.language import Body, Lambda, Operand, Sum, tensor
from tdl.operator import op


@op(category="matmul")
def mm(a: Operand, b: Operand, *, transpose_a: bool = False, transpose_b: bool = False) -> Body:
    return lambda i, j: Sum(lambda k: (a[k, i] if transpose_a else a[i, k]) * (b[j, k] if transpose_b else b[k, j]))


@op(category="matmul")
def bmm(a: Operand, b: Operand, *, transpose_a: bool = False, transpose_b: bool = False) -> Body:
    return lambda n, i, j: Sum(
        lambda k: (a[n, k, i] if transpose_a else a[n, i, k]) * (b[n, j, k] if transpose_b else b[n, k, j])
    )


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
