"""Modules drawn at random from layers and operators of PyTorch, each trained beside its graph.

`python -m tests.pytorch.fuzz [--first SEED] [--count N]` counts what becomes of them.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from planner.pytorch.nodes import leaves
from planner.pytorch.user_model import UserModel
from tests.pytorch.outcomes import outcome_of, sgd, summary

SIZES = (1, 2, 3, 4, 6)
FUNCTIONS = (
    torch.relu, torch.tanh, torch.sigmoid, F.gelu, F.silu, F.elu, F.softplus, F.hardtanh, F.relu6, F.hardswish,
    F.leaky_relu, F.logsigmoid, F.mish, torch.abs, torch.sin, torch.square, torch.atan, torch.erf, torch.expm1,
    torch.neg, torch.sign, torch.floor, torch.detach, torch.clone,
)  # fmt: skip
REDUCTIONS = (torch.sum, torch.mean, torch.amax, torch.amin, torch.std, torch.var, torch.logsumexp)
ALONG = (
    torch.cumsum, F.softmax, F.log_softmax, lambda x, d: torch.flip(x, (d,)), lambda x, d: torch.sort(x, d)[0],
    lambda x, d: torch.roll(x, 1, d), lambda x, d: F.normalize(x, dim=d), lambda x, d: torch.max(x, d)[0],
    lambda x, d: x.unbind(d)[-1], lambda x, d: x.select(d, 0), lambda x, d: torch.cat([x, x * 2], d),
    lambda x, d: torch.stack([x, x.neg()], d), lambda x, d: x.unsqueeze(d), lambda x, d: x.movedim(d, 0),
    lambda x, d: torch.topk(x, 1, d)[0], lambda x, d: x.chunk(2, d)[0], lambda x, d: x.narrow(d, 0, 1),
    lambda x, d: x.index_select(d, torch.tensor([0, 0])), lambda x, d: x.repeat_interleave(2, d),
)  # fmt: skip
PAIRS = (torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.atan2)


class Drawn(nn.Module):
    """Steps one after the other, each a function of the module and of what the step before returned."""

    def __init__(self, seed):
        super().__init__()
        self.rng = random.Random(seed)
        torch.manual_seed(seed)
        self.steps, self.said = [], []
        x = torch.randn(*(self.rng.choice(SIZES) for _ in range(self.rng.randint(1, 4))), dtype=torch.float64)
        self.example = x
        self.first = nn.Parameter(torch.randn(x.shape[-1], dtype=torch.float64))
        for _ in range(self.rng.randint(2, 7)):
            x = self._extended(x)

    def _extended(self, x):
        """Draw steps until one runs, add it, and return its result."""
        while True:
            name = self.rng.choice(tuple(STEPS))
            step = STEPS[name](self, self.rng, x)
            try:
                with torch.no_grad():
                    result = step(self, x.clone()) if step else None
            except (RuntimeError, IndexError, ValueError, TypeError, AssertionError):
                continue
            if result is not None and result.is_floating_point() and 0 < result.numel() < 4096:
                self.steps.append(step)
                self.said.append(f"{name}{list(x.shape)}")
                return result

    def layer(self, module):
        """Add a submodule in double precision; return its name."""
        name = f"layer{len(self.steps)}"
        self.add_module(name, module.double())
        return name

    def parameter(self, *shape):
        """Add a parameter; return its name."""
        name = f"weight{len(self.steps)}"
        self.register_parameter(name, nn.Parameter(torch.randn(shape, dtype=torch.float64)))
        return name

    def forward(self, x):
        x = x * self.first
        for step in self.steps:
            x = step(self, x)
        return torch.sin(x / (1 + x.abs())).sum() + self.first.sum()


def _layer(module):
    """Return the step that calls a submodule, where one can be made."""

    def draw(drawn, rng, x):
        try:
            name = drawn.layer(module(rng, x))
        except (IndexError, ValueError, RuntimeError):
            return None
        return lambda self, x: leaves(getattr(self, name)(x))[0]

    return draw


def _function(drawn, rng, x):
    function = rng.choice(FUNCTIONS)
    return lambda self, x: function(x)


def _reduction(drawn, rng, x):
    function, dim, keep = rng.choice(REDUCTIONS), rng.randrange(-max(1, x.ndim), max(1, x.ndim)), rng.random() < 0.5
    return lambda self, x: function(x, dim, keepdim=keep)


def _along(drawn, rng, x):
    function, dim = rng.choice(ALONG), rng.randrange(max(1, x.ndim))
    return lambda self, x: function(x, dim)


def _pair(drawn, rng, x):
    """Broadcast with a parameter, a constant or itself, in either order."""
    function, shape = rng.choice(PAIRS), [rng.choice((1, n)) for n in x.shape[rng.randint(0, x.ndim) :]]
    name, kind, swap = drawn.parameter(*shape), rng.randrange(3), rng.random() < 0.5
    number = torch.tensor(rng.choice((0.0, 1.0, -1.5)), dtype=torch.float64)

    def step(self, x):
        other = (getattr(self, name), number, x.detach())[kind]
        return function(other, x) if swap else function(x, other)

    return step


def _chosen(drawn, rng, x):
    """Select by a mask, with numbers and tensors of other shapes."""
    shape, kind = [rng.choice((1, n)) for n in x.shape], rng.randrange(4)
    name = drawn.parameter(*shape)

    def step(self, x):
        other = getattr(self, name)
        mask = (other if kind == 1 else x) > 0.03125  # not 0, of which rounding may make either
        return torch.where(mask, *((x, other), (other, x), (0.5, x), (x.sum(), x * 2))[kind])

    return step


def _index(rng, extent):
    """Return an index of a dimension: a number, a range that may be empty, numbers, everything."""
    kinds = (
        rng.randrange(-extent, extent),
        slice(rng.randrange(-extent, extent), rng.choice((None, extent, 1, 0)), rng.choice((None, 1, 2))),
        slice(None),
        None,
        Ellipsis,
        [rng.randrange(extent) for _ in range(2)],
    )
    return rng.choice(kinds)


def _read(drawn, rng, x):
    index = tuple(_index(rng, extent) for extent in x.shape[: rng.randint(1, max(1, x.ndim))])
    return lambda self, x: x[index]


def _written(drawn, rng, x):
    """Write into a copy, or a constant, by an index."""
    index = tuple(_index(rng, extent) for extent in x.shape[: rng.randint(1, max(1, x.ndim))])
    kind = rng.randrange(4)

    def step(self, x):
        y = (x.clone(), torch.zeros_like(x), torch.zeros(x.shape, dtype=x.dtype), x * 2)[kind]
        y[index] = (x.detach().mean(), 0.5, x.sum(), x[index] * 3)[kind]
        return y + x

    return step


def _concatenated(drawn, rng, x):
    """Put an empty part, a constant and itself one after the other."""
    dim, kind = rng.randrange(max(1, x.ndim)), rng.randrange(3)
    return lambda self, x: torch.cat([x, (x.narrow(dim, 0, 0), torch.zeros_like(x), x.flip(dim))[kind]], dim)


def _shaped(drawn, rng, x):
    order = rng.sample(range(x.ndim), x.ndim)
    kinds = (
        lambda self, x: x.permute(order),
        lambda self, x: x.reshape(-1),
        lambda self, x: x.flatten(max(0, x.ndim - 2)),
        lambda self, x: x.squeeze(),
        lambda self, x: x.expand(2, *x.shape),
        lambda self, x: x.reshape(x.shape[::-1]),
        lambda self, x: x.T.contiguous(),
        lambda self, x: x.unflatten(-1, (-1, 2)),
        lambda self, x: F.pad(x, (1, 0)),
        lambda self, x: x.repeat(*(2 for _ in x.shape)),
    )
    return rng.choice(kinds)


def _product(drawn, rng, x):
    width = rng.choice(SIZES)
    name = drawn.parameter(x.shape[-1], width) if x.ndim else drawn.parameter()
    kinds = (
        lambda self, x: x @ getattr(self, name),
        lambda self, x: (
            x * getattr(self, name) if not x.ndim else torch.einsum("...i,io->...o", x, getattr(self, name))
        ),
        lambda self, x: x @ x.transpose(-1, -2),
        lambda self, x: torch.outer(x.flatten(), x.flatten()),
    )
    return rng.choice(kinds)


def _scalar(drawn, rng, x):
    """Multiply by a parameter without dimensions, or by a number of the data."""
    name = drawn.parameter()
    return rng.choice((lambda self, x: x * getattr(self, name), lambda self, x: x / (1 + x.detach().abs().max())))


def _channels(x):
    return x.shape[1]


LAYERS = (
    lambda rng, x: nn.Linear(x.shape[-1], rng.choice(SIZES), bias=rng.random() < 0.5),
    lambda rng, x: nn.LayerNorm(x.shape[-1]),
    lambda rng, x: nn.RMSNorm(x.shape[-1]),
    lambda rng, x: (nn.BatchNorm1d, nn.BatchNorm2d)[x.ndim == 4](_channels(x), affine=rng.random() < 0.7),
    lambda rng, x: nn.GroupNorm(1, _channels(x)),
    lambda rng, x: (nn.Conv1d, nn.Conv2d)[x.ndim == 4](
        _channels(x), rng.choice(SIZES), rng.choice((1, 2, 3)), padding=1
    ),
    lambda rng, x: (nn.MaxPool1d, nn.MaxPool2d)[x.ndim == 4](2, padding=rng.choice((0, 1))),
    lambda rng, x: (nn.AvgPool1d, nn.AvgPool2d)[x.ndim == 4](2),
    lambda rng, x: nn.PReLU(),
    lambda rng, x: nn.LSTM(x.shape[-1], 3, batch_first=rng.random() < 0.5),
    lambda rng, x: nn.Dropout(0.0),
    lambda rng, x: nn.Sequential(nn.Linear(x.shape[-1], 4), nn.ReLU(), nn.Linear(4, x.shape[-1])),
    lambda rng, x: nn.TransformerEncoderLayer(x.shape[-1], 1, 4, dropout=0.0, batch_first=True),
    lambda rng, x: nn.Softmax(dim=-1),
    lambda rng, x: nn.Upsample(scale_factor=2),
)


def _any_layer(drawn, rng, x):
    return _layer(rng.choice(LAYERS))(drawn, rng, x)


STEPS = {
    "function": _function, "reduction": _reduction, "along": _along, "pair": _pair, "where": _chosen, "index": _read,
    "write": _written, "cat": _concatenated, "shape": _shaped, "product": _product, "scalar": _scalar,
    "layer": _any_layer, "another layer": _any_layer,
}  # fmt: skip
"""By name: draws a step for a module and an example of its operand; None where there is none."""


def outcome(seed):
    """Return one of OUTCOMES, why, and the module's steps; None for what PyTorch itself cannot train."""
    module = Drawn(seed)
    result = outcome_of(UserModel(module, (module.example,), None, (), sgd(module)))
    return result and (*result, " ".join(module.said))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    kinds = []
    for seed in range(arguments.first, arguments.first + arguments.count):
        kind, why, said = outcome(seed) or ("untrained", "", "")
        kinds.append(kind)
        if kind in ("wrong", "bare") or arguments.count < 20:
            print(f"{seed} {kind}: {why[:300]} | {said}", flush=True)
    print(summary(kinds))
    sys.exit(kinds.count("wrong") + kinds.count("bare") > 0)


if __name__ == "__main__":
    main()
