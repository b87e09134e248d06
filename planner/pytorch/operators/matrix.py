"""Matrix products."""

from __future__ import annotations

from planner.pytorch.axes import Value
from planner.pytorch.operations import binary, contract, reduce
from planner.pytorch.operators.call import Converter, TracedCall, UnsupportedError
from planner.pytorch.operators.elementwise import scaled
from planner.pytorch.operators.shapes import permuted
from planner.pytorch.translation import Translation


def _linear(t: Translation, call: TracedCall) -> Value:
    x, weight, bias = call["input"], call["weight"], call["bias"]
    found = contract(t, x, weight, [(x.rank - 1, 1)])
    return found if bias is None else binary(t, "add", found, bias)


def _matmul(t: Translation, call: TracedCall) -> Value:
    one, other = call["self"], call["other"] if "other" in call.arguments else call["mat2"]
    return matmul(t, one, other)


def matmul(t: Translation, one: Value, other: Value) -> Value:
    """Multiply two values as torch.matmul does."""
    if one.rank == 1 or other.rank == 1:
        return contract(t, one, other, [(one.rank - 1, max(0, other.rank - 2))])
    batch = max(one.rank, other.rank) - 2
    ones, others = one.rank - 2, other.rank - 2
    if ones != others:
        # Leading dimensions that only one operand has come first in the result, as they do in its own order.
        extra = batch - min(ones, others)
        shared = [(ones - 1 - at, others - 1 - at) for at in reversed(range(min(ones, others)))]
        found = contract(t, one, other, [(one.rank - 1, other.rank - 2)], shared)
        return _reordered(found, len(shared), extra, ones > others)
    return contract(t, one, other, [(one.rank - 1, other.rank - 2)], [(at, at) for at in range(batch)])


def _reordered(found: Value, shared: int, extra: int, of_first: bool) -> Value:
    """Put leading dimensions of one operand before the shared ones."""
    first = shared if of_first else shared + 1
    moved = list(range(first, first + extra))
    rest = [dim for dim in range(found.rank) if dim not in moved]
    return permuted(found, [*moved, *rest])


def _addmm(t: Translation, call: TracedCall) -> Value:
    one, other = (call["mat1"], call["mat2"]) if call.op == "addmm" else (call["batch1"], call["batch2"])
    product = scaled(t, matmul(t, one, other), call["alpha"])
    return binary(t, "add", product, scaled(t, call["self"], call["beta"])) if call["beta"] else product


def _einsum(t: Translation, call: TracedCall) -> Value:
    """Multiply operands two by two, in their order; what only one operand has is summed before."""
    equation, operands = call["equation"].replace(" ", ""), list(call["tensors"])
    left, arrow, output = equation.partition("->")
    inputs = left.split(",")
    if "." in equation or not arrow or any(len(set(letters)) < len(letters) for letters in inputs):
        raise UnsupportedError(f"einsum {equation!r}: expected an arrow, no dots, and no letter twice in an operand")
    letters, value = inputs[0], operands[0]
    for number, (own, other) in enumerate(zip(inputs[1:], operands[1:], strict=True), 2):
        kept = {*output, *"".join(inputs[number:])}
        letters, value = _pair(t, (letters, value), (own, other), kept)
    letters, value = _alone(t, letters, value, set(output))
    return permuted(value, [letters.index(letter) for letter in output])


Lettered = tuple[str, Value]


def _alone(t: Translation, letters: str, value: Value, kept: set[str]) -> Lettered:
    """Sum over the letters that are not kept."""
    gone = [at for at, letter in enumerate(letters) if letter not in kept]
    return ("".join(x for x in letters if x in kept), reduce(t, "sum", value, gone)) if gone else (letters, value)


def _pair(t: Translation, one: Lettered, other: Lettered, kept: set[str]) -> Lettered:
    """Multiply two operands and sum over the letters of both that are not kept."""
    (first, left), (second, right) = _alone(t, *one, kept | {*other[0]}), _alone(t, *other, kept | {*one[0]})
    common = [letter for letter in first if letter in second]
    pairs = {letter: (first.index(letter), second.index(letter)) for letter in common}
    shared = [letter for letter in common if letter in kept]
    found = contract(t, left, right, [pairs[x] for x in common if x not in kept], [pairs[x] for x in shared])
    return "".join([*shared, *(x for x in first + second if x not in common)]), found


CONVERTERS: dict[str, Converter] = {
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "bmm": _matmul,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "einsum": _einsum,
}
