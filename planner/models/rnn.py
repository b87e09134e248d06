"""RNN-L-H: L stacked LSTM layers of H hidden units, unrolled, with a softmax at every timestep (Tofu Sec 7).

The weights of the four gates have a leading dimension of 4, so sharding the hidden units keeps a unit's gates on one
worker. There are no biases and no projections.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.graph.build import ZEROS, GraphBuilder
from planner.graph.ir import Graph
from planner.models.layers import softmax_cross_entropy, uniform
from planner.models.options import Training, option, width

GATES = ("i", "f", "g", "o")
GATE_EQUATION = "bi,ghi->bgh"


@dataclass(frozen=True, slots=True)
class RnnOptions(Training):
    """Options of an unrolled LSTM."""

    unroll: int = option(20, "Number of unrolled time steps.")
    input_width: int = option(512, "Input width of a time step.")
    classes: int = option(512, "Number of classes.")


def build_rnn(layers: str, hidden: str, options: RnnOptions) -> Graph:
    """Return the training graph of an unrolled LSTM: inputs "x.t" and "labels.t", mean loss over timesteps.

    The states before the first timestep are inputs of zeros. The metrics name the last timestep's logits and labels.
    """
    b = GraphBuilder(options.dtype)
    units, inputs = width(hidden), options.input_width
    cells = [
        _Cell(b, f"lstm{layer}", (options.samples, inputs if layer == 1 else units, units))
        for layer in range(1, int(layers) + 1)
    ]
    weight = b.weight("fc.w", (units, options.classes), uniform(units))
    losses, metrics = [], {}
    for step in range(options.unroll):
        with b.timestep(step):
            x = b.input(f"x.{step}", (options.samples, inputs))
            labels = b.integers(f"labels.{step}", (options.samples,), options.classes)
            for cell in cells:
                x = cell.advance(x)
            logits = b.apply("mm", x, weight, name="logits")
            losses.append(softmax_cross_entropy(b, logits, labels, "cross_entropy", options.samples * options.unroll))
            metrics = {"logits": logits, "labels": labels}
    loss = b.apply("add_n", *losses, name="loss")
    return options.train(b, {"loss": loss, **metrics})


class _Cell:
    """One LSTM layer: its weights, and its state after the timestep last added to the graph."""

    def __init__(self, b: GraphBuilder, name: str, sizes: tuple[int, int, int]) -> None:
        batch, inputs, hidden = sizes
        self.b = b
        self.name = name
        # Two products are added, so each has half of the variance.
        init = uniform(inputs + hidden)
        self.weight_x = b.weight(f"{name}.wx", (len(GATES), hidden, inputs), init)
        self.weight_h = b.weight(f"{name}.wh", (len(GATES), hidden, hidden), init)
        self.h = b.input(f"{name}.h.initial", (batch, hidden), ZEROS)
        self.c = b.input(f"{name}.c.initial", (batch, hidden), ZEROS)

    def advance(self, x: str) -> str:
        """Add one timestep with input x [batch, inputs]; return the new hidden state [batch, hidden]."""
        b, name = self.b, self.name
        from_x = b.apply("einsum", x, self.weight_x, name=f"{name}.x", equation=GATE_EQUATION)
        from_h = b.apply("einsum", self.h, self.weight_h, name=f"{name}.h_product", equation=GATE_EQUATION)
        gates = b.apply("add", from_x, from_h, name=f"{name}.gates")
        parts = tuple(f"{name}.{gate}.before" for gate in GATES)
        raw = b.apply_all("unbind", gates, name=f"{name}.unbind", outputs=parts, dim=1, n=len(GATES))
        i, f, g, o = (
            b.apply("tanh" if gate == "g" else "sigmoid", part, name=f"{name}.{gate}")
            for part, gate in zip(raw, GATES, strict=True)
        )
        kept = b.apply("mul", f, self.c, name=f"{name}.kept")
        added = b.apply("mul", i, g, name=f"{name}.added")
        self.c = b.apply("add", kept, added, name=f"{name}.c")
        self.h = b.apply("mul", o, b.apply("tanh", self.c, name=f"{name}.c_tanh"), name=f"{name}.h")
        return self.h
