"""Matrix products."""

from __future__ import annotations

from planner.pytorch.rewrite.axes import Value
from planner.pytorch.translate.call import TracedCall, converter, refuse_if
from planner.pytorch.translate.operations import binary, contract, reduce
from planner.pytorch.translate.translation import Translation


@converter("linear")
def _linear(t: Translation, call: TracedCall) -> Value:
    x, weight, bias = call["input"], call["weight"], call.optional("bias")
    product = contract(t, x, weight, [(x.rank - 1, 1)])
    return product if bias is None else binary(t, "add", product, bias)


@converter("matmul", "mm", "bmm")
def _matmul(t: Translation, call: TracedCall) -> Value:
    return matmul(t, call["self"], call.first("other", "mat2"))


def matmul(t: Translation, left: Value, right: Value) -> Value:
    """Multiply two values as torch.matmul does."""
    if left.rank == 1 or right.rank == 1:
        return contract(t, left, right, [(left.rank - 1, max(0, right.rank - 2))])
    rows, columns = left.rank - 2, right.rank - 2
    shared = [(rows - 1 - place, columns - 1 - place) for place in reversed(range(min(rows, columns)))]
    product = contract(t, left, right, [(left.rank - 1, right.rank - 2)], shared)
    # Leading dimensions that only one operand has come first in the result, as they do in its own order.
    first = len(shared) + (rows < columns)
    extra = range(first, first + abs(rows - columns))
    return product.permuted([*extra, *(dim for dim in range(product.rank) if dim not in extra)])


@converter("einsum")
def _einsum(t: Translation, call: TracedCall) -> Value:
    """Multiply operands two by two, in their order; what only one operand has is summed before."""
    equation, operands = call.argument("equation").replace(" ", ""), call.tensors("tensors")
    left, arrow, output = equation.partition("->")
    inputs = left.split(",")
    is_other = "." in equation or not arrow or any(len(set(letters)) < len(letters) for letters in inputs)
    refuse_if(is_other, f"einsum {equation!r}: expected an arrow, no dots, and no letter twice in an operand")
    letters, value = inputs[0], operands[0]
    for number, following in enumerate(zip(inputs[1:], operands[1:], strict=True), 2):
        kept = {*output, *"".join(inputs[number:])}
        letters, value = _pair(t, (letters, value), following, kept)
    letters, value = _alone(t, letters, value, set(output))
    return value.permuted([letters.index(letter) for letter in output])


Lettered = tuple[str, Value]


def _alone(t: Translation, letters: str, value: Value, kept: set[str]) -> Lettered:
    """Sum over the letters that are not kept."""
    gone = [dim for dim, letter in enumerate(letters) if letter not in kept]
    return ("".join(x for x in letters if x in kept), reduce(t, "sum", value, gone)) if gone else (letters, value)


def _pair(t: Translation, left: Lettered, right: Lettered, kept: set[str]) -> Lettered:
    """Multiply two operands and sum over the letters of both that are not kept."""
    (first, x), (second, y) = _alone(t, *left, kept | {*right[0]}), _alone(t, *right, kept | {*left[0]})
    common = [letter for letter in first if letter in second]
    pairs = {letter: (first.index(letter), second.index(letter)) for letter in common}
    shared = [letter for letter in common if letter in kept]
    summed = [pairs[letter] for letter in common if letter not in kept]
    product = contract(t, x, y, summed, [pairs[letter] for letter in shared])
    return "".join([*shared, *(letter for letter in first + second if letter not in common)]), product
