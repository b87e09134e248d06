"""What PyTorch computes for operators of the catalog: one row per operator, a function of tensors and attributes."""

import torch
from torch.nn import functional

from tdl.catalog.pointwise import BINARY, BITS, MASKS, SCALAR, UNARY


def spread(b, a, dims):
    """`b` with its dimension j as dimension dims[j] of `a`."""
    if dims is None:
        return b
    order = sorted(range(len(dims)), key=lambda j: dims[j])
    shape = [1] * a.ndim
    for size, dim in zip(b.shape, dims, strict=True):
        shape[dim] = size
    return b.permute(order).reshape(shape)


def spreading(function):
    return lambda a, b, dims=None: function(a, spread(b, a, dims))


def scalar(name):
    """The function `name` of a tensor and the attribute `value`."""
    function = getattr(torch, name)
    return lambda x, value: function(x, value)  # noqa: PLW0108 (attributes come by name)


def gradient_of(forward, places):
    """The oracle of a backward operator: autograd's gradient of `forward` with respect to the operands `places`."""

    def oracle(grad, *operands, **attributes):
        operands = [operand.clone().requires_grad_(place in places) for place, operand in enumerate(operands)]
        result = forward(*operands, **attributes)
        return torch.autograd.grad(result, [operands[place] for place in places], grad)

    return oracle


def binary_gradient_of(forward):
    """Gradients of both operands, the second before it is summed over what it is spread over."""

    def oracle(grad, a, b, dims=None):
        wide = spread(b, a, dims).expand(a.shape)
        return gradient_of(forward, (0, 1))(grad, a, wide)

    return oracle


UNARY_ORACLES = {
    **{name: getattr(torch, name) for name in UNARY if hasattr(torch, name)},
    "cbrt": lambda x: torch.sign(x) * torch.abs(x) ** (1 / 3),
    "clamp": lambda x, min=None, max=None: torch.clamp(x, min, max),
    "elu": lambda x, alpha=1.0, scale=1.0: torch.ops.aten.elu(x, alpha, scale),
    "gelu": functional.gelu,
    "hardsigmoid": functional.hardsigmoid,
    "hardswish": functional.hardswish,
    "leaky_relu": functional.leaky_relu,
    "log_sigmoid": functional.logsigmoid,
    "silu": functional.silu,
    "softplus": functional.softplus,
    "softsign": functional.softsign,
}
SCALAR_ORACLES = {
    "add_scalar": lambda a, value: a + value,
    "rsub_scalar": scalar("rsub"),
    "rpow_scalar": lambda a, value: torch.pow(value, a),
    **{f"{name}_scalar": scalar(name) for name in ("pow", "fmod", "remainder", "eq", "ne", "lt", "le", "gt", "ge")},
}
BINARY_ORACLES = {name: getattr(torch, name) for name in BINARY}

ORACLES = {
    **UNARY_ORACLES,
    **SCALAR_ORACLES,
    **{name: spreading(function) for name, function in BINARY_ORACLES.items()},
    **{
        f"{name}_backward": gradient_of(function, (0,))
        for name, function in {**UNARY_ORACLES, **SCALAR_ORACLES}.items()
        if {**UNARY, **SCALAR}[name][1] is not None
    },
    **{
        f"{name}_backward": binary_gradient_of(function)
        for name, function in BINARY_ORACLES.items()
        if None not in BINARY[name]
    },
    **{name: getattr(torch, name) for name in (*MASKS, *BITS) if not name.endswith("_scalar")},
    **{f"bitwise_{name}_scalar": scalar(f"bitwise_{name}") for name in ("and", "or", "xor")},
    "where": lambda mask, a, b, dims=None: torch.where(spread(mask, a, dims) != 0, a, b),
    "masked_fill": lambda x, mask, value, dims=None: x.masked_fill(spread(mask, x, dims) != 0, value),
    "lerp": torch.lerp,
    "tril": torch.tril,
    "triu": torch.triu,
    "causal_mask": lambda x, value: x.masked_fill(torch.ones(x.shape[-2:]).triu(1) != 0, value),
}
