"""What PyTorch computes for operators of the catalog: one row per operator, a function of tensors and attributes."""
# ruff: noqa: PLW0108, PLR0917 (attributes come by name, so lambdas say which there are)

from functools import wraps
from itertools import chain
from math import prod

import torch
from torch.nn import functional

from tdl.catalog.elementwise import BINARY, BITS, MASKS, OPERATORS, UNARY
from tdl.operator import named


def spread(b, a, dims):
    """`b` with its dimension j as dimension dims[j] of `a`."""
    if dims is None:
        return b
    order = sorted(range(len(dims)), key=lambda j: dims[j])
    shape = [1] * a.ndim
    for size, dim in zip(b.shape, dims, strict=True):
        shape[dim] = size
    return b.permute(order).reshape(shape)


def alike(a, b, dims, a_dims):
    """Both with all dimensions of the result: dimension j of `a` is its a_dims[j], of `b` dims[j]."""
    dims_of_both = (*(a_dims or ()), *(dims or ()), *((b.ndim - 1,) if dims is None else ()))
    rank = a.ndim if a_dims is None else max(dims_of_both) + 1
    whole = torch.empty([1] * rank)
    return spread(a, whole, a_dims), spread(b, whole, dims)


def spreading(function):
    return lambda a, b, dims=None, a_dims=None: function(*alike(a, b, dims, a_dims))


def scalar(name):
    """The function `name` of a tensor and the attribute `value`."""
    function = getattr(torch, name)
    return lambda x, value: function(x, value)


def gradient_of(forward, places):
    """The oracle of a backward operator: autograd's gradient of `forward` with respect to the operands `places`."""

    def oracle(grad, *operands, **attributes):
        operands = [operand.clone().requires_grad_(place in places) for place, operand in enumerate(operands)]
        result = forward(*operands, **attributes)
        return torch.autograd.grad(result, [operands[place] for place in places], grad)

    return oracle


def binary_gradient_of(forward):
    """Gradients of both operands, before they are summed over what these are spread over."""

    def oracle(grad, a, b, dims=None, a_dims=None):
        wide = (operand.expand(grad.shape) for operand in alike(a, b, dims, a_dims))
        return gradient_of(forward, (0, 1))(grad, *wide)

    return oracle


FUNCTIONAL = ("gelu", "hardsigmoid", "hardswish", "leaky_relu", "silu", "softplus", "softsign")
UNARY_ORACLES = {
    **{name: getattr(torch, name) for name in UNARY if hasattr(torch, name)},
    "cbrt": lambda x: torch.sign(x) * torch.abs(x) ** (1 / 3),
    "clamp": lambda x, min=None, max=None: torch.clamp(x, min, max),
    "elu": lambda x, alpha=1.0, scale=1.0: torch.ops.aten.elu(x, alpha, scale),
    **{name: getattr(functional, name) for name in FUNCTIONAL},
    "hardtanh": lambda x, min=-1.0, max=1.0: functional.hardtanh(x, min, max),
    "log_sigmoid": functional.logsigmoid,
}
SCALAR_ORACLES = {
    "add_scalar": lambda a, value: a + value,
    "rsub_scalar": scalar("rsub"),
    "rpow_scalar": lambda a, value: torch.pow(value, a),
    **{f"{name}_scalar": scalar(name) for name in ("pow", "fmod", "remainder", "eq", "ne", "lt", "le", "gt", "ge")},
}
BINARY_ORACLES = {name: getattr(torch, name) for name in BINARY if name != "prelu"}
BINARY_ORACLES["prelu"] = lambda a, b: torch.where(a > 0, a, a * b)


def attention(query, key, value, bias=None, *, scale, causal, dims=()):
    """PyTorch's, and the logarithms of its sums; both are zero where every key is hidden, as of its flash kernel."""
    key, value = (x.repeat_interleave(query.shape[1] // key.shape[1], 1) for x in (key, value))
    scores = query @ key.mT * scale
    mask = torch.zeros_like(scores) if bias is None else spread(bias, scores, dims).expand_as(scores)
    if causal:
        mask = mask.masked_fill(torch.ones(scores.shape[2:]).triu(1) > 0, -torch.inf)
    total = torch.logsumexp(scores + mask, -1)
    attended = functional.scaled_dot_product_attention(query, key, value, mask, scale=scale)
    return attended, torch.where(total == -torch.inf, 0, total)


def rotary(x, cos, sin, half, inverse):
    """As in Hugging Face's `apply_rotary_pos_emb`; its inverse is its gradient."""
    if inverse:
        return gradient_of(rotary, (0,))(x, x, cos, sin, half=half, inverse=False)
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def expert_slots(indices, capacity):
    """By counting, choice after choice."""
    slots = torch.full_like(indices, -1)
    for b, sample in enumerate(indices):
        free = dict.fromkeys(sample.flatten().tolist(), 0)
        for s, row in enumerate(sample.tolist()):
            for k, expert in enumerate(row):
                if free[expert] < capacity:
                    slots[b, s, k] = expert * capacity + free[expert]
                    free[expert] += 1
    return slots


def places(slots, experts, capacity):
    """One where a choice has a place: [b, s, k, experts, capacity]."""
    one_hot = functional.one_hot(slots.long() + 1, experts * capacity + 1)[..., 1:]
    return one_hot.reshape(*slots.shape, experts, capacity).double()


def rms_norm(x, square, weight, eps):
    return x * torch.rsqrt(square + eps).unsqueeze(-1) * weight


def rms_norm_backward(grad, x, square, weight, inner, eps, count):
    inverse = torch.rsqrt(square + eps).unsqueeze(-1)
    return inverse * grad * weight - inverse**3 * x * inner.unsqueeze(-1) / count


def normalize(x, mean, var, weight, bias, statistics, weights, eps):
    mean, var = (spread(own, x, statistics) for own in (mean, var))
    weight, bias = (spread(own, x, weights) for own in (weight, bias))
    return (x - mean) / torch.sqrt(var + eps) * weight + bias


def normalize_backward_weights(grad, x, mean, var, statistics, weights, eps):
    shape = [x.shape[dim] for dim in weights]
    operands = (x, mean, var, torch.ones(shape, dtype=x.dtype), torch.zeros(shape, dtype=x.dtype))
    forward = gradient_of(normalize, (3, 4))
    return forward(grad, *operands, statistics=statistics, weights=weights, eps=eps)


def _others(x, dims):
    return tuple(dim for dim in range(x.ndim) if dim not in dims)


def over(function):
    return lambda x, dims: function(x, dims)


def products(x, dims):
    for dim in sorted(dims, reverse=True):
        x = x.prod(dim)
    return x


def extreme_backward(grad, x, extreme, dims, chosen=False):
    grad, extreme = (spread(own, x, tuple(dim for dim in range(x.ndim) if dim not in dims)) for own in (grad, extreme))
    return grad * (x == extreme)


def index_of(x, value, dim):
    equal = x == value.unsqueeze(dim)
    places = torch.arange(x.shape[dim]).reshape([-1 if own == dim else 1 for own in range(x.ndim)])
    return torch.where(equal, places, 2**31 - 1).amin(dim)


def pad(x, low, high, value, sizes):
    return functional.pad(x, [own for ends in reversed(list(zip(low, high, strict=True))) for own in ends], value=value)


def backward_into(forward):
    """The oracle of a scattering gradient: autograd's of `forward` at an operand with the given extent."""

    def oracle(grad, *operands, extents, **attributes):
        dim = attributes["dim"]
        shape = list(grad.shape)
        shape[dim:dim] = [] if len(shape) > dim and forward is not torch.select else [1]
        shape[dim] = next(iter(extents.values()))
        x = torch.zeros(shape, dtype=grad.dtype, requires_grad=True)
        return torch.autograd.grad(forward(x, *operands, **attributes), x, grad)

    return oracle


def sliced(x, dim, start, step, skip=0):
    return x.narrow(dim, start, x.shape[dim] - start - skip)[(slice(None),) * dim + (slice(None, None, step),)]


def slice_backward(grad, dim, start, step, extents):
    shape, length = list(grad.shape), grad.shape[dim]
    shape[dim] = extents[f"i{dim}"]
    zeros = torch.zeros(shape, dtype=grad.dtype)
    return torch.slice_scatter(zeros, grad, dim, start, start + (length - 1) * step + 1, step)


LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div")
LOSS_ORACLES = {name: getattr(functional, name) for name in LOSSES}


def loss(function):
    return lambda x, target, count: function(x, target, reduction="sum") / count


def long(function):
    """Call with int64 indices, which PyTorch wants."""

    @wraps(function)
    def call(*operands, **attributes):
        return function(*(own.long() if own.dtype == torch.int32 else own for own in operands), **attributes)

    return call


def grouped_product(rows, matrices, indices, transpose):
    count = rows.dim() - indices.dim()
    matrices = torch.cat([matrices, torch.zeros_like(matrices[:1])])[indices.flatten()]
    columns = matrices.shape[1:-count] if transpose else matrices.shape[1 + count :]
    flat = matrices.flatten(-count).flatten(1, -2).mT if transpose else matrices.flatten(1, count).flatten(2)
    rows = rows.flatten(indices.dim()).flatten(0, -2)
    return torch.bmm(rows.unsqueeze(1), flat).reshape(*indices.shape, *columns)


def grouped_outer_product(first, second, indices, extents):
    flat = (rows.flatten(indices.dim()).flatten(0, -2) for rows in (first, second))
    outer = torch.einsum("rk,rn->rkn", *flat)
    sums = first.new_zeros(extents["g"] + 1, *outer.shape[1:]).index_add(0, indices.flatten(), outer)[:-1]
    return sums.reshape(-1, *first.shape[indices.dim() :], *second.shape[indices.dim() :])


def embedding_backward(grad, indices, extents):
    return torch.ops.aten.embedding_dense_backward(grad, indices, extents["v"], -1, False)


def diagonal_backward(grad, dim1, dim2, extents):
    shape = list(grad.shape[:-1])
    for dim in sorted((dim1, dim2)):
        shape.insert(dim, grad.shape[-1])
    return torch.ops.aten.diagonal_backward(grad, shape, 0, dim1, dim2)


def convolution_backward(operand):
    """Autograd's gradient of one operand of a convolution; the other is given."""

    def oracle(grad, other, stride, padding, extents, dilation=(1, 1), groups=1):
        size = list(extents.values())
        if operand == 0:
            shape = [grad.shape[0], other.shape[1] * groups, *size]
        else:
            shape = [grad.shape[1], other.shape[1] // groups, *size]
        own = torch.zeros(shape, dtype=grad.dtype, requires_grad=True)
        operands = (own, other) if operand == 0 else (other, own)
        y = functional.conv2d(*operands, None, stride, padding, dilation, groups)
        return torch.autograd.grad(y, own, grad)

    return oracle


def im2col(image, stride, padding, extents, dilation=(1, 1)):
    size = [extents[name] for name in ("dy", "dx")]
    columns = functional.unfold(image, size, dilation, padding, stride)
    return columns.reshape(*image.shape[:2], *extents.values())


def col2im(columns, stride, padding, extents, dilation=(1, 1)):
    n, c, dy, dx, y, x = columns.shape
    size = [extents[name] for name in "yx"]
    return functional.fold(columns.reshape(n, c * dy * dx, y * x), size, (dy, dx), dilation, padding, stride)


def windows(image, stride, padding, kernel, dilation=(1, 1), fill=0.0):
    """[n, c, y, x, taps]: every window of an image."""
    (py, px), (sy, sx), (ky, kx), (ty, tx) = padding, stride, kernel, dilation
    padded = functional.pad(image, (px, px, py, py), value=fill)
    rows = padded.unfold(2, (ky - 1) * ty + 1, sy)[..., ::ty]
    return rows.unfold(3, (kx - 1) * tx + 1, sx)[..., ::tx].flatten(-2)


def pool_backward(pooled):
    """The oracle of a pooling gradient: autograd's of `pooled`, a function of windows and further operands."""

    def oracle(grad, *operands, extents, **window):
        image = torch.zeros([*grad.shape[:2], extents["y"], extents["x"]], dtype=grad.dtype, requires_grad=True)
        return torch.autograd.grad(pooled(windows(image, **window), *operands), image, grad)

    return oracle


def expand(x, dims, extents, factor=1.0):
    for place, dim in enumerate(sorted(dims)):
        x = x.unsqueeze(dim).repeat_interleave(extents[f"e{place}"], dim)
    return x * factor


def reshape(x, source, target, extents=None):
    extents = dict(extents or {})
    for group, size in zip(source, x.shape, strict=True):
        for name in set(group) - set(extents):
            extents[name] = size // prod(extents.get(other, 1) for other in group)
    names = list(chain(*source))
    digits = x.reshape([extents[name] for name in names]).permute([names.index(name) for name in chain(*target)])
    return digits.reshape([prod(extents[name] for name in group) for group in target])


def classes(labels, depth, dim):
    """One at every label among `depth` classes along a dimension, zero elsewhere."""
    return functional.one_hot(labels.long(), depth).movedim(-1, dim)


def nll_loss(x, labels, count, dim):
    """PyTorch's own, whose classes are in the second dimension."""
    rows = x.movedim(dim, -1).reshape(-1, x.shape[dim])
    return functional.nll_loss(rows, labels.flatten(), reduction="sum") / count


def stepped(optimizer, states, **names):
    """The oracle of an optimizer: one step of PyTorch's from given states; `names` are ours of its options."""

    def oracle(w, grad, *given, **attributes):
        w = torch.nn.Parameter(w.clone())
        w.grad = grad
        own = optimizer([w], **{names.get(name, name): value for name, value in attributes.items()})
        own.state[w] = {name: value.clone() for name, value in zip(states, given, strict=True)}
        own.state[w]["step"] = given[-1] - 1 if "step" in states else torch.tensor(1.0)
        own.step()
        return w.detach(), *(own.state[w][name] for name in states if name != "step")

    return oracle


def adam_like(optimizer, **names):
    step = stepped(lambda w, beta1, beta2, **how: optimizer(w, betas=(beta1, beta2), **how), ADAM, **names)
    return lambda *operands, **attributes: step(*operands, **attributes)


ADAM = ("exp_avg", "exp_avg_sq", "step")

ORACLES = {
    **named(expand, attention, reshape, im2col, col2im, extreme_backward, normalize, normalize_backward_weights),
    **named(rms_norm, rms_norm_backward, rotary, expert_slots, slice_backward, diagonal_backward, index_of),
    **{name: getattr(torch, name) for name in ("relu", "sigmoid", "tanh", "exp", "log", "neg")},
    **{name: spreading(getattr(torch, name)) for name in ("add", "sub", "mul", "div")},
    **{name: getattr(torch.ops.aten, name) for name in ("sigmoid_backward", "tanh_backward")},
    "threshold_backward": lambda grad, result: torch.ops.aten.threshold_backward(grad, result, 0),
    "add_n": lambda *tensors: sum(tensors),
    "scale": lambda x, factor: x * factor,
    "increment": lambda t: t + 1,
    "sgd": stepped(torch.optim.SGD, ()),
    "sgd_momentum": stepped(torch.optim.SGD, ("momentum_buffer",)),
    "adam": adam_like(torch.optim.Adam),
    "mm": lambda a, b, transpose_a, transpose_b: torch.mm(a.mT if transpose_a else a, b.mT if transpose_b else b),
    "einsum": lambda *operands, equation: torch.einsum(equation, *operands),
    "max_pool2d_with_indices": lambda x, **window: tuple(windows(x, **window, fill=-torch.inf).max(-1)),
    "max_pool2d_with_indices_backward": pool_backward(lambda x, i: x.gather(-1, i[..., None].long())[..., 0]),
    "avg_pool2d": lambda x, **window: windows(x, **window).mean(-1),
    "avg_pool2d_backward": pool_backward(lambda x: x.mean(-1)),
    "mean": lambda x, dims, count: torch.mean(x, dims),
    "batch_norm_var": lambda x, mean, count: torch.square(x - spread(mean, x, (1,))).sum((0, 2, 3)) / count,
    "batch_norm": lambda x, mean, var, w, b, eps: functional.batch_norm(x, mean, var, w, b, eps=eps),
    "batch_norm_backward_reduce": lambda *operands, eps: normalize_backward_weights(*operands, (1,), (1,), eps),
    "sum_exp": lambda x, maximum, dim: torch.exp(x - maximum.unsqueeze(dim)).sum(dim),
    "biased_attention": lambda query, key, value, bias, **how: attention(query, key, value, bias, **how),
    "cross_entropy": lambda x, maximum, total, labels, count, dim: (
        (torch.log(total) + maximum - (x * classes(labels, x.shape[dim], dim)).sum(dim)).sum() / count
    ),
    "cross_entropy_backward": lambda x, maximum, total, labels, factor, dim: (
        (torch.exp(x - maximum.unsqueeze(dim)) / total.unsqueeze(dim) - classes(labels, x.shape[dim], dim)) * factor
    ),
    "unbind": lambda x, dim, n: torch.unbind(x, dim),
    "stack": lambda *tensors, dim: torch.stack(tensors, dim),
    "cast": lambda x, dtype: x.to(getattr(torch, dtype)).double(),
    "convolution": lambda x, w, stride, padding, dilation=(1, 1), groups=1: functional.conv2d(
        x, w, None, stride, padding, dilation, groups
    ),
    "convolution_backward_input": convolution_backward(0),
    "convolution_backward_weight": convolution_backward(1),
    "adamw": adam_like(torch.optim.AdamW, decay="weight_decay"),
    "rmsprop": stepped(torch.optim.RMSprop, ("square_avg",)),
    "adagrad": stepped(torch.optim.Adagrad, ("sum",)),
    "bmm": lambda a, b, transpose_a, transpose_b: torch.bmm(a.mT if transpose_a else a, b.mT if transpose_b else b),
    "grouped_mm": long(grouped_product),
    "grouped_mm_backward": long(grouped_outer_product),
    "prod": products,
    "var": lambda x, mean, dims, count: ((x - spread(mean, x, _others(x, dims))) ** 2).sum(dims) / count,
    "var_backward": lambda grad, x, mean, dims, count: gradient_of(
        lambda x, mean: ((x - spread(mean, x, _others(x, dims))) ** 2).sum(dims) / count, (0,)
    )(grad, x, mean),
    "count_extremes": lambda x, extreme, dims: (x == spread(extreme, x, _others(x, dims))).sum(dims),
    "cumsum": lambda x, dim, reverse: x.flip(dim).cumsum(dim).flip(dim) if reverse else x.cumsum(dim),
    "mean_square": lambda x, count: x.square().mean(-1),
    "rms_norm_backward_weight": lambda grad, x, square, eps: gradient_of(rms_norm, (2,))(
        grad, x, square, torch.ones(x.shape[-1:], dtype=x.dtype), eps=eps
    ),
    "rms_norm_backward_sum": lambda grad, x, weight: (grad * weight * x).sum(-1),
    "dispatch": lambda x, slots, capacity, extents: torch.einsum(
        "bskh,bskec->bech", x, places(slots, extents["e"], capacity)
    ),
    "collect": lambda x, slots, capacity: torch.einsum("bech,bskec->bskh", x, places(slots, x.shape[1], capacity)),
    "softmax": lambda x, maximum, total, dim: torch.softmax(x, dim),
    "log_softmax": lambda x, maximum, total, dim: torch.log_softmax(x, dim),
    "softmax_backward_sum": lambda grad, result, dim: (grad * result).sum(dim),
    "softmax_backward": lambda grad, result, inner, dim: result * (grad - inner.unsqueeze(dim)),
    "log_softmax_backward": lambda grad, result, inner, dim: grad - torch.exp(result) * inner.unsqueeze(dim),
    "nll_loss": long(nll_loss),
    "nll_loss_backward": lambda grad, labels, count, dim, extents: -grad / count * classes(labels, extents["c"], dim),
    **{name: loss(function) for name, function in LOSS_ORACLES.items()},
    **{f"{name}_backward": gradient_of(loss(function), (0, 1)) for name, function in LOSS_ORACLES.items()},
    "permute": lambda x, dims: x.permute(dims),
    "cat": lambda *tensors, dim, sizes: torch.cat(tensors, dim),
    "select_backward": backward_into(torch.select),
    "slice": sliced,
    "constant_pad_nd": pad,
    "flip": lambda x, dims, sizes: torch.flip(x, dims),
    "diagonal": lambda x, dim1, dim2: torch.diagonal(x, 0, dim1, dim2),
    "embedding": long(lambda weight, indices: functional.embedding(indices, weight)),
    "embedding_dense_backward": long(embedding_backward),
    "index_select": long(lambda x, indices, dim: torch.index_select(x, dim, indices)),
    "index_select_backward": long(backward_into(lambda x, indices, dim: torch.index_select(x, dim, indices))),
    "gather": long(lambda x, indices, dim: torch.gather(x, dim, indices)),
    "gather_backward": long(backward_into(lambda x, indices, dim: torch.gather(x, dim, indices))),
    "arange": lambda start, step, extents: start + step * torch.arange(extents["i"]),
    **UNARY_ORACLES,
    **SCALAR_ORACLES,
    **{name: spreading(function) for name, function in BINARY_ORACLES.items()},
    **{
        f"{name}_backward": gradient_of(function, (0,))
        for name, function in {**UNARY_ORACLES, **SCALAR_ORACLES}.items()
        if f"{name}_backward" in OPERATORS
    },
    **{
        f"{name}_backward": binary_gradient_of(function)
        for name, function in BINARY_ORACLES.items()
        if f"{name}_backward" in OPERATORS
    },
    **{name: getattr(torch, name) for name in ("select", "lerp", "tril", "triu")},
    **{name: over(getattr(torch, name)) for name in ("sum", "amax", "amin", "any", "all")},
    **{name: getattr(torch, name) for name in (*MASKS, *BITS) if not name.endswith("_scalar")},
    **{f"bitwise_{name}_scalar": scalar(f"bitwise_{name}") for name in ("and", "or", "xor")},
    "where": lambda mask, a, b, dims=None: torch.where(spread(mask, a if a.ndim else b, dims) != 0, a, b),
    "one_hot": lambda x, depth, dtype="int32": functional.one_hot(x.long(), depth),
    "sort": lambda x, dim, descending=False: tuple(torch.sort(x, dim=dim, descending=descending, stable=True)),
    "stop_gradient": lambda x: x,
    "topk": lambda x, k, dim, largest=True, nan_first=False: tuple(torch.topk(x, k, dim, largest)),
    "masked_fill": lambda x, mask, value, dims=None: x.masked_fill(spread(mask, x, dims) != 0, value),
    "causal_mask": lambda x, value: x.masked_fill(torch.ones(x.shape[-2:]).triu(1) != 0, value),
}
