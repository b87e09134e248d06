"""An operator of PyTorch that somebody wrote, softcap(x) = c tanh(x / c), and what it is in the catalog's operators.

Run with `plan examples/own_converter.py:make --workers 4`, or compare with PyTorch by `--verify`. In a file of its own
the converter is given by `--operators FILE.py`.
"""

import torch
from torch import nn

from planner.pytorch import TracedCall, Translation, Value, converter, unary


@torch.library.custom_op("examples::softcap", mutates_args=())
def softcap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Keep x between -cap and cap, as PyTorch runs it."""
    return cap * torch.tanh(x / cap)


@softcap.register_fake
def softcap_shape(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Say what the result's shape and dtype are, for a trace."""
    return torch.empty_like(x)


def keep(ctx, inputs, output):
    """Keep what PyTorch's own gradient needs."""
    _, ctx.cap = inputs
    ctx.save_for_backward(output)


def gradient(ctx, arriving):
    """Return PyTorch's own gradient; plans derive theirs from the converter's operators."""
    (output,) = ctx.saved_tensors
    return arriving * (1 - (output / ctx.cap) ** 2), None


softcap.register_autograd(gradient, setup_context=keep)


@converter("examples.softcap.default")
def softcap_converter(t: Translation, call: TracedCall) -> Value:
    """Write it as two scalings around tanh."""
    cap = call.number("cap")
    return unary(t, "scale", unary(t, "tanh", unary(t, "scale", call["x"], factor=1 / cap)), factor=cap)


class Capped(nn.Module):
    """Two layers, whose results are kept between -5 and 5."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(64, 128), nn.Linear(128, 10)

    def forward(self, x):
        """Return logits [batch, 10]."""
        return softcap(self.head(torch.relu(self.hidden(x))), 5.0)


def make(batch: int = 32):
    """Return the module, an example batch, the loss and its targets."""
    return Capped(), torch.randn(batch, 64), nn.functional.cross_entropy, torch.zeros(batch, dtype=torch.long)
