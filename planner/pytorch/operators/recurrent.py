"""Recurrent layers, unrolled: a cell a timestep, which share their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from planner.pytorch.axes import Value
from planner.pytorch.operations import binary, contract, dropped, unary
from planner.pytorch.operators.call import Converter, TracedCall, UnsupportedError
from planner.pytorch.operators.shapes import joined, permuted, pieces, stacked, taken
from planner.pytorch.translation import Translation


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's weights in one direction: [gates h, inputs], [gates h, h], and a bias of each or none."""

    inputs: Value
    hidden: Value
    biases: tuple[Value, ...]

    def of_inputs(self, t: Translation, x: Value) -> Value:
        return self._product(t, x, self.inputs, self.biases[:1])

    def of_hidden(self, t: Translation, h: Value) -> Value:
        return self._product(t, h, self.hidden, self.biases[1:])

    def _product(self, t: Translation, x: Value, weight: Value, biases: Sequence[Value]) -> Value:
        found = contract(t, x, weight, [(1, 1)])
        for bias in biases:
            found = binary(t, "add", found, bias)
        return found


State = tuple[Value, ...]
"""Of a cell; its first value is what the cell puts out."""

Cell = Callable[[Translation, _Layer, Value, State], State]


def _lstm_cell(t: Translation, layer: _Layer, x: Value, state: State) -> State:
    """Take a step of an LSTM; the gates are in the order i, f, g, o."""
    h, c = state
    gates = binary(t, "add", contract(t, x, layer.inputs, [(1, 1)]), contract(t, h, layer.hidden, [(1, 1)]))
    for bias in layer.biases:
        gates = binary(t, "add", gates, bias)
    i, f, g, o = _gates(t, gates, 4)
    i, f, o = (unary(t, "sigmoid", gate) for gate in (i, f, o))
    kept = binary(t, "mul", f, c)
    added = binary(t, "mul", i, unary(t, "tanh", g))
    c = binary(t, "add", kept, added)
    return binary(t, "mul", o, unary(t, "tanh", c)), c


def _gru_cell(t: Translation, layer: _Layer, x: Value, state: State) -> State:
    """Take a step of a GRU; the gates are in the order r, z, n."""
    (h,) = state
    of_x, of_h = (_gates(t, gates, 3) for gates in (layer.of_inputs(t, x), layer.of_hidden(t, h)))
    r, z = (unary(t, "sigmoid", binary(t, "add", of_x[gate], of_h[gate])) for gate in (0, 1))
    n = unary(t, "tanh", binary(t, "add", of_x[2], binary(t, "mul", r, of_h[2])))
    return (binary(t, "add", n, binary(t, "mul", z, binary(t, "sub", h, n))),)


def _rnn_cell(function: str) -> Cell:
    def cell(t: Translation, layer: _Layer, x: Value, state: State) -> State:
        return (unary(t, function, binary(t, "add", layer.of_inputs(t, x), layer.of_hidden(t, state[0]))),)

    return cell


def _gates(t: Translation, value: Value, count: int) -> tuple[Value, ...]:
    return pieces(t, value, 1, [value.shape[1] // count] * count)


def _recurrent(cell: Cell) -> Converter:
    """Return the converter of layers of a cell, in one or both directions; it returns outputs and last states."""

    def converter(t: Translation, call: TracedCall) -> tuple[Value, ...]:
        p = call["dropout"] * bool(call["train"])
        sequence, states = call["input"], call["hx"]
        states = (states,) if isinstance(states, Value) else states
        if call["batch_first"]:
            sequence = permuted(sequence, (1, 0, 2))
        layers = _layers(call)
        steps = []
        for step in range(sequence.shape[0]):
            with t.timestep(step):
                steps.append(taken(t, sequence, 0, step))
        last: list[State] = []
        place, directions = t.place, 2 if call["bidirectional"] else 1
        for number in range(len(layers) // directions):
            t.place, found = f"{place}.l{number}", []
            steps = [_dropped(t, step, x, p if number else 0.0) for step, x in enumerate(steps)]
            for direction in range(directions):
                at = number * directions + direction
                t.place = f"{place}.l{number}{'_reverse' if direction else ''}"
                first = tuple(taken(t, state, 0, at) for state in states)
                outputs, ended = _run(t, partial(cell, t, layers[at]), steps, first, reverse=bool(direction))
                found.append(outputs)
                last.append(ended)
            steps = [_side_by_side(t, step, outputs) for step, outputs in enumerate(zip(*found, strict=True))]
        t.place = place
        result = stacked(t, steps, 0)
        if call["batch_first"]:
            result = permuted(result, (1, 0, 2))
        return result, *(stacked(t, ends, 0) for ends in zip(*last, strict=True))

    return converter


def _layers(call: TracedCall) -> list[_Layer]:
    """Return the weights of every layer, and of every direction of it."""
    each, weights = 4 if call["has_biases"] else 2, call["params"]
    count = call["num_layers"] * (2 if call["bidirectional"] else 1)
    if len(weights) != each * count:
        raise UnsupportedError("nn.LSTM with projections: expected proj_size=0")
    groups = (weights[each * number : each * (number + 1)] for number in range(count))
    return [_Layer(inputs, hidden, tuple(biases)) for inputs, hidden, *biases in groups]


def _run(
    t: Translation, cell: Callable[[Value, State], State], steps: Sequence[Value], state: State, *, reverse: bool
) -> tuple[list[Value], State]:
    """Return a layer's outputs, by timestep, and its last state."""
    outputs: dict[int, Value] = {}
    for step in reversed(range(len(steps))) if reverse else range(len(steps)):
        with t.timestep(step):
            state = cell(steps[step], state)
        outputs[step] = state[0]
    return [outputs[step] for step in range(len(steps))], state


def _dropped(t: Translation, step: int, x: Value, p: float) -> Value:
    with t.timestep(step):
        return dropped(t, x, p)


def _side_by_side(t: Translation, step: int, outputs: Sequence[Value]) -> Value:
    with t.timestep(step):
        return joined(t, outputs, 1)


CONVERTERS: dict[str, Converter] = {
    "lstm": _recurrent(_lstm_cell),
    "gru": _recurrent(_gru_cell),
    "rnn_tanh": _recurrent(_rnn_cell("tanh")),
    "rnn_relu": _recurrent(_rnn_cell("relu")),
}
