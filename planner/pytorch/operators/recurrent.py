"""Recurrent layers, unrolled: a cell a timestep, which share their weights."""

from __future__ import annotations

from dataclasses import dataclass

from planner.pytorch.axes import Value
from planner.pytorch.operations import binary, contract, dropped, unary
from planner.pytorch.operators.call import Converter, TracedCall, UnsupportedError
from planner.pytorch.operators.shapes import permuted, pieces, stacked, taken
from planner.pytorch.translation import Translation


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's weights: [4 h, inputs], [4 h, h] and biases, the gates in the order i, f, g, o."""

    inputs: Value
    hidden: Value
    biases: tuple[Value, ...]


def _lstm(t: Translation, call: TracedCall) -> tuple[Value, Value, Value]:
    if call["bidirectional"]:
        raise UnsupportedError("nn.LSTM in both directions: expected bidirectional=False")
    p = call["dropout"] if call["train"] else 0.0
    sequence = call["input"]
    if call["batch_first"]:
        sequence = permuted(sequence, (1, 0, 2))
    each = 4 if call["has_biases"] else 2
    weights = call["params"]
    if len(weights) != each * call["num_layers"]:
        raise UnsupportedError("nn.LSTM with projections: expected proj_size=0")
    steps = []
    for step in range(sequence.shape[0]):
        with t.timestep(step):
            steps.append(taken(t, sequence, 0, step))
    last_h, last_c = [], []
    place = t.place
    for number in range(call["num_layers"]):
        inputs, hidden, *biases = weights[each * number : each * (number + 1)]
        layer = _Layer(inputs, hidden, tuple(biases))
        h, c = (taken(t, state, 0, number) for state in call["hx"])
        t.place = f"{place}.l{number}"
        outputs = []
        for step, x in enumerate(steps):
            with t.timestep(step):
                h, c = _cell(t, layer, dropped(t, x, p if number else 0.0), (h, c))
            outputs.append(h)
        steps = outputs
        last_h.append(h)
        last_c.append(c)
    t.place = place
    found = stacked(t, steps, 0)
    if call["batch_first"]:
        found = permuted(found, (1, 0, 2))
    return found, stacked(t, last_h, 0), stacked(t, last_c, 0)


def _cell(t: Translation, layer: _Layer, x: Value, state: tuple[Value, Value]) -> tuple[Value, Value]:
    h, c = state
    gates = binary(t, "add", contract(t, x, layer.inputs, [(1, 1)]), contract(t, h, layer.hidden, [(1, 1)]))
    for bias in layer.biases:
        gates = binary(t, "add", gates, bias)
    width = gates.shape[1] // 4
    i, f, g, o = pieces(t, gates, 1, [width] * 4)
    i, f, o = (unary(t, "sigmoid", gate) for gate in (i, f, o))
    kept = binary(t, "mul", f, c)
    added = binary(t, "mul", i, unary(t, "tanh", g))
    c = binary(t, "add", kept, added)
    return binary(t, "mul", o, unary(t, "tanh", c)), c


CONVERTERS: dict[str, Converter] = {"lstm": _lstm}
