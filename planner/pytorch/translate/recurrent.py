"""Recurrent layers, unrolled: one cell per timestep, with shared weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from planner.pytorch.rewrite.axes import Value
from planner.pytorch.translate.call import TracedCall, converter, refuse_if
from planner.pytorch.translate.elementwise import masked, negated
from planner.pytorch.translate.operations import binary, contract, dropped, unary
from planner.pytorch.translate.shapes import joined, pieces, stacked, taken
from planner.pytorch.translate.translation import Translation


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's weights in one direction: [gates h, inputs], [gates h, h], and no bias or one for each."""

    inputs: Value
    hidden: Value
    biases: tuple[Value, ...]

    def of_inputs(self, t: Translation, x: Value) -> Value:
        """Return the product with the inputs' weight, plus its bias."""
        return _added(t, contract(t, x, self.inputs, [(1, 1)]), *self.biases[:1])

    def of_hidden(self, t: Translation, h: Value) -> Value:
        """Return the product with the hidden state's weight, plus its bias."""
        return _added(t, contract(t, h, self.hidden, [(1, 1)]), *self.biases[1:])


def _added(t: Translation, value: Value, *others: Value) -> Value:
    for other in others:
        value = binary(t, "add", value, other)
    return value


State = tuple[Value, ...]
"""State of a cell; its first value is the cell's output."""

Cell = Callable[[Translation, _Layer, Value, State], State]


def _lstm_cell(t: Translation, layer: _Layer, x: Value, state: State) -> State:
    """Compute one step of an LSTM; the gates are in the order i, f, g, o."""
    h, c = state
    of_x, of_h = contract(t, x, layer.inputs, [(1, 1)]), contract(t, h, layer.hidden, [(1, 1)])
    i, f, g, o = _gates(t, _added(t, of_x, of_h, *layer.biases), 4)
    i, f, o = (unary(t, "sigmoid", gate) for gate in (i, f, o))
    kept = binary(t, "mul", f, c)
    added = binary(t, "mul", i, unary(t, "tanh", g))
    c = binary(t, "add", kept, added)
    return binary(t, "mul", o, unary(t, "tanh", c)), c


def _gru_cell(t: Translation, layer: _Layer, x: Value, state: State) -> State:
    """Compute one step of a GRU; the gates are in the order r, z, n."""
    (h,) = state
    of_x, of_h = (_gates(t, gates, 3) for gates in (layer.of_inputs(t, x), layer.of_hidden(t, h)))
    r, z = (unary(t, "sigmoid", binary(t, "add", of_x[gate], of_h[gate])) for gate in (0, 1))
    n = unary(t, "tanh", binary(t, "add", of_x[2], binary(t, "mul", r, of_h[2])))
    return (binary(t, "add", n, binary(t, "mul", z, binary(t, "sub", h, n))),)


def _rnn_cell(function: str, t: Translation, layer: _Layer, x: Value, state: State) -> State:
    return (unary(t, function, binary(t, "add", layer.of_inputs(t, x), layer.of_hidden(t, state[0]))),)


def _gates(t: Translation, value: Value, count: int) -> tuple[Value, ...]:
    return pieces(t, value, 1, [value.shape[1] // count] * count)


CELLS: Mapping[str, Cell] = {
    "lstm": _lstm_cell,
    "gru": _gru_cell,
    "rnn_tanh": partial(_rnn_cell, "tanh"),
    "rnn_relu": partial(_rnn_cell, "relu"),
}


@converter(*CELLS, "planner::recurrent")
def _recurrent(t: Translation, call: TracedCall) -> tuple[Value, ...]:
    """Unroll layers of a cell, in one or both directions; return outputs and last states.

    In a packed sequence, a sample's states stay unchanged beyond its length.
    """
    kind, over = str(call.argument("kind", call.op)), None
    p = call.number("dropout") * call.flag("train")
    sequence, states, is_batch_first = call["input"], call.tensors("hx"), call.flag("batch_first")
    sequence = sequence.permuted((1, 0, 2)) if is_batch_first else sequence
    if "lengths" in call.arguments:
        over = [unary(t, "le_scalar", call["lengths"], value=step).repeated(1) for step in range(sequence.shape[0])]
    layers, place, directions = _layers(call), t.place, 2 if call.flag("bidirectional") else 1
    steps, last = _at_each_step(t, partial(taken, t, sequence, 0), range(sequence.shape[0])), list[State]()
    for number in range(0, len(layers), directions):
        t.place = f"{place}.l{number // directions}"
        steps, outputs = _at_each_step(t, partial(dropped, t, p=p if number else 0.0), steps), []
        for direction, layer in enumerate(layers[number : number + directions]):
            t.place = f"{place}.l{number // directions}{'_reverse' if direction else ''}"
            first = tuple(taken(t, state, 0, number + direction) for state in states)
            output, ended = _run(t, partial(CELLS[kind], t, layer), steps, first, over, reverse=bool(direction))
            outputs.append(output)
            last.append(ended)
        steps = _at_each_step(t, partial(joined, t, dim=1), zip(*outputs, strict=True))
    t.place = place
    result = stacked(t, steps, 0)
    result = result.permuted((1, 0, 2)) if is_batch_first else result
    return result, *(stacked(t, ends, 0) for ends in zip(*last, strict=True))


def _layers(call: TracedCall) -> list[_Layer]:
    """Return the weights of every layer and direction."""
    each, weights = 4 if call.flag("has_biases") else 2, call.tensors("params")
    count = call.integer("num_layers") * (2 if call.flag("bidirectional") else 1)
    refuse_if(len(weights) != each * count, "nn.LSTM with projections is not supported: expected proj_size=0")
    groups = (weights[each * number : each * (number + 1)] for number in range(count))
    return [_Layer(inputs, hidden, tuple(biases)) for inputs, hidden, *biases in groups]


def _run(  # noqa: PLR0913 -- a cell and its operands
    t: Translation,
    cell: Callable[[Value, State], State],
    steps: Sequence[Value],
    state: State,
    over: Sequence[Value] | None,
    *,
    reverse: bool,
) -> tuple[list[Value], State]:
    """Return a layer's outputs by timestep, and its last state; `over` marks the samples that ended before a step."""
    outputs: dict[int, Value] = {}
    for step in reversed(range(len(steps))) if reverse else range(len(steps)):
        with t.timestep(step):
            new = cell(steps[step], state)
            if over is None:
                state, outputs[step] = new, new[0]
            else:
                going = [masked(t, value, over[step], 0.0) for value in new]
                ended = [masked(t, value, negated(t, over[step]), 0.0) for value in state]
                state = tuple(binary(t, "add", *pair) for pair in zip(going, ended, strict=True))
                outputs[step] = going[0]
    return [outputs[step] for step in range(len(steps))], state


def _at_each_step(t: Translation, function: Callable[[Any], Value], operands: Iterable[Any]) -> list[Value]:
    """Return a function's values of the operands, each at its own timestep."""
    values = []
    for step, operand in enumerate(operands):
        with t.timestep(step):
            values.append(function(operand))
    return values
