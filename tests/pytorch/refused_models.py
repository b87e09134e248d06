"""Modules that cannot be taken, each as a user would write it, and what is said of it."""

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class DoubledInPlace(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(context, gradient):
        return 2 * gradient


class Model(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.fc, self.function = nn.Linear(6, 6), function

    def forward(self, x):
        return self.function(self, self.fc(x)).sum()


def with_function(function, x=None):
    return Model(function), (torch.ones(4, 6) if x is None else x,)


def no_loss():
    return nn.Linear(6, 6), (torch.ones(4, 6),)


def a_module_alone():
    return nn.Linear(6, 6)


def hooks():
    model, inputs = with_function(lambda self, x: x)
    model.fc.register_full_backward_hook(lambda *_: None)
    return model, inputs


def hooks_of_forward_passes():
    model, inputs = with_function(lambda self, x: x)
    model.fc.register_forward_hook(lambda layer, given, result: result * 2)
    model.register_forward_pre_hook(lambda layer, given: (given[0] + 1,))
    return model, inputs


class Table(nn.Module):
    """Keeps a table in a buffer, in no file, that is made when another number of columns comes."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.register_buffer("table", torch.zeros(1, 3), persistent=False)

    def forward(self, x):
        if self.table.shape[1] != x.shape[1]:
            self.table = torch.arange(6, dtype=x.dtype)[None]
        return (self.fc(x) * self.table).sin().sum()


def counted(self, x):
    self.fc.calls = getattr(self.fc, "calls", 0) + 1
    return x * self.fc.calls


def asserted():
    def function(self, x):
        assert x.isfinite().all()
        return x

    return with_function(function)


def table_of_positions():
    return Table(), (torch.ones(4, 6),)


def trained_in_forward():
    def function(self, x):
        with torch.no_grad():
            self.fc.weight.mul_(0.9)
        return x

    return with_function(function)


def parameter_hooks():
    model, inputs = with_function(lambda self, x: x)
    model.fc.weight.register_hook(lambda gradient: 2 * gradient)
    return model, inputs


def parts(self, x):
    mask = torch.zeros(4, 6)
    first, _ = mask.chunk(2)
    first.fill_(1)
    return mask * x


def hooked(self, x):
    x.register_hook(lambda gradient: 2 * gradient)
    return x


def penalized(self, x):
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(self.fc(x).sum(), x, create_graph=True)
    return gradient.square().sum()


def wrong_width():
    return nn.Sequential(nn.Linear(6, 6)), (torch.ones(4, 7),), F.mse_loss, (torch.ones(4, 6),)


control_flow = partial(with_function, lambda self, x: x if x.sum() > 0 else -x)
fails = partial(with_function, lambda self, x: x.view(5, 5))
complex_input = partial(with_function, lambda self, x: x, torch.ones(4, 6, dtype=torch.complex64))
unsupported = partial(with_function, lambda self, x: torch.special.erfcx(x) + torch.special.erfcx(x))
another_device = partial(with_function, lambda self, x: x, torch.ones(4, 6, device="meta"))
changed_operand = partial(with_function, lambda self, x: DoubledInPlace.apply(x))
a_number_of_the_data = partial(with_function, lambda self, x: x * x.sum().item())
changed_parts = partial(with_function, parts)
whole_numbers_too_large = partial(with_function, lambda self, x: x * torch.tensor([2**40, 1]).repeat(3))
activation_hook = partial(with_function, hooked)
penalty = partial(with_function, penalized)
tangent = partial(with_function, lambda self, x: torch.func.jvp(torch.sin, (x,), (x,))[1])
weighted = partial(with_function, lambda self, x: torch.cov(x.T, aweights=torch.ones(4)))
an_array = partial(with_function, lambda self, x: x * float(x.detach().numpy().max()))
lengths = partial(with_function, lambda self, x: x * len(set((x > 0).sum(1).tolist())))
counted_anew = partial(with_function, counted)
floored = partial(with_function, lambda self, x: torch.div(x, 3, rounding_mode="floor"))
rounded_quotient = partial(with_function, lambda self, x: x // 2 + x)


def memory():
    def function(self, x):
        before, self.memory = self.memory, x.detach()
        return x + before

    model, inputs = with_function(function)
    model.memory = 0
    return model, inputs


SAID = {
    "control_flow": (
        r"refused_models\.py:\d+: control flow depends on tensors \(.*x\.sum\(\) > 0.*\): use torch\.where.*<lambda>"
    ),
    "fails": r"refused_models\.py:\d+: PyTorch cannot export the module: RuntimeError: shape '\[5, 5\]' is invalid",
    "complex_input": r"complex64|Complex",
    "unsupported": r"special_erfcx is not supported \(or --opaque-unknown\) .2 times, first.*models\.py:\d+\)",
    "another_device": r"input x is on meta, the module on cpu: move one",
    "no_loss": r"expected a module that returns its loss, a scalar, found a result of shape \(4, 6\)",
    "a_module_alone": r"found a module alone",
    "changed_operand": r"refused_models\.py:\d+: DoubledInPlace, a torch\.autograd\.Function, changes its inputs",
    "hooks": r"fc: has gradient hooks, which would not run",
    "counted_anew": r"refused_models\.py:\d+: forward computes mul\(.*1\) in its first call but mul\(.*2\) in the next",
    "asserted": r"refused_models\.py:\d+: control flow depends on tensors \(assert x\.isfinite\(\)\.all\(\)\)",
    "trained_in_forward": r"refused_models\.py:\d+: forward changes the parameter fc\.weight after it was read",
    "parameter_hooks": r"fc\.weight: has gradient hooks, which would not run",
    "a_number_of_the_data": r"item\(\) converts .* to a Python number.* \(1 times, first at .*refused_models\.py:\d+\)",
    "changed_parts": r"refused_models\.py:\d+: aten\.fill_\.Scalar changes memory .* read through chunk: copy",
    "floored": r"rounding_mode",
    "rounded_quotient": r"refused_models\.py:\d+: floor_divide has no gradient, .*: detach\(\) its operands",
    "whole_numbers_too_large": r"32 bits.*refused_models\.py:\d+",
    "activation_hook": r"refused_models\.py:\d+: register_hook: hooks of tensors would not run",
    "weighted": r"refused_models\.py:\d+: .*comparison of whole tensors.*write it with element-wise operators",
    "an_array": r"refused_models\.py:\d+: .*numpy\(\) converts a tensor to an array.*keep it a tensor",
    "lengths": r"refused_models\.py:\d+: .*tolist\(\) or item\(\) converts a tensor to .*keep it a tensor",
    "penalty": r"refused_models\.py:\d+: torch\.autograd\.grad .* in forward: .*remove the penalty",
    "tangent": r"refused_models\.py:\d+: torch\.autograd\.grad .* in forward: .*write the derivative as operators",
    "wrong_width": r"wrong_width\(\): PyTorch cannot export the module: RuntimeError",
}
"""By the function above."""


def frozen():
    model, inputs = with_function(lambda self, x: x * x)
    model.fc.bias.requires_grad_(False)
    return model, inputs


rounded_quotient_alone = partial(with_function, lambda self, x: torch.where(x // 2 > 0, x, x.detach() // 2 * x))
TAKEN = ("frozen", "hooks_of_forward_passes", "rounded_quotient_alone", "table_of_positions")
"""Functions above whose modules train as in PyTorch."""
