"""Matrix products."""

from __future__ import annotations

from planner.pytorch.axes import Value
from planner.pytorch.operations import binary, contract
from planner.pytorch.operators.call import Converter, TracedCall, UnsupportedError
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
    if call["beta"] != 1 or call["alpha"] != 1:
        raise UnsupportedError(f"{call.op} with alpha or beta")
    one, other = (call["mat1"], call["mat2"]) if call.op == "addmm" else (call["batch1"], call["batch2"])
    return binary(t, "add", matmul(t, one, other), call["self"])


def _einsum(t: Translation, call: TracedCall) -> Value:
    equation, operands = call["equation"].replace(" ", ""), call["tensors"]
    left, _, output = equation.partition("->")
    inputs = left.split(",")
    if "." in equation or "->" not in equation or len(operands) != 2:
        raise UnsupportedError(f"einsum {equation!r}: expected two operands, an arrow and no dots")
    (one, other), (first, second) = operands, inputs
    if len(set(first)) < len(first) or len(set(second)) < len(second):
        raise UnsupportedError(f"einsum {equation!r}: a letter repeats within an operand")
    for letters, number in ((first, 0), (second, 1)):
        alone = [at for at, letter in enumerate(letters) if letter not in output and letter not in inputs[1 - number]]
        if alone:
            raise UnsupportedError(f"einsum {equation!r}: sums over a letter of one operand: sum that operand first")
    common = [letter for letter in first if letter in second]
    pairs = {letter: (first.index(letter), second.index(letter)) for letter in common}
    shared = [letter for letter in common if letter in output]
    found = contract(t, one, other, [pairs[x] for x in common if x not in output], [pairs[x] for x in shared])
    order = [*shared, *(x for x in first if x not in common), *(x for x in second if x not in common)]
    return permuted(found, [order.index(letter) for letter in output])


CONVERTERS: dict[str, Converter] = {
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "bmm": _matmul,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "einsum": _einsum,
}
