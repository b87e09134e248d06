"""ATen operators of traced training steps, each translated into operators of the catalog and run by their kernels.

A translation takes an ATen call's arguments, tensors as NumPy arrays, and returns its results. `USED` notes the
operators of the catalog that ran.
"""

import math

import numpy as np

from tdl import TDLError
from tests.kernels.calls import apply as run_kernel
from tests.tdl.reshaping import reshape_attributes

USED = set()
ONE = np.asarray(1.0)


def apply(name, *operands, **attributes):
    USED.add(name)
    results = run_kernel(name, *operands, **attributes)
    return results[0] if len(results) == 1 else results


def reshape(x, shape):
    shape = tuple(int(extent) for extent in shape)
    shape = tuple(x.size // -math.prod(shape) if extent == -1 else extent for extent in shape)
    try:
        return apply("reshape", x, **reshape_attributes(x.shape, shape))
    except TDLError:
        flat = apply("reshape", x, **reshape_attributes(x.shape, (x.size,)))
        return apply("reshape", flat, **reshape_attributes((x.size,), shape))


def full(shape, value):
    extents = {f"e{dim}": extent for dim, extent in enumerate(shape)}
    return apply("expand", ONE, dims=tuple(range(len(shape))), factor=float(value), extents=extents)


def expand(x, shape):
    """Repeat along the dimensions of size 1 and the new ones in front."""
    shape = [x.shape[place - len(shape)] if extent == -1 else extent for place, extent in enumerate(shape)]
    padded = (1,) * (len(shape) - x.ndim) + x.shape
    new = tuple(dim for dim, extent in enumerate(shape) if padded[dim] != extent)
    x = reshape(x, [own for dim, own in enumerate(padded) if dim not in new])
    extents = {f"e{place}": shape[dim] for place, dim in enumerate(new)}
    return apply("expand", x, dims=new, extents=extents) if new else x


def permuted(x, first, second):
    dims = list(range(x.ndim))
    dims[first], dims[second] = dims[second], dims[first]
    return apply("permute", x, dims=tuple(dims))


def narrow(b, a):
    """`b` without its dimensions of size 1 that `a` has larger, and the dimensions of `a` that it has."""
    offset = a.ndim - b.ndim
    kept = tuple(dim for dim in range(b.ndim) if b.shape[dim] == a.shape[dim + offset])
    return reshape(b, [b.shape[dim] for dim in kept]), tuple(dim + offset for dim in kept)


def spreading(name, a, b, **attributes):
    shape = np.broadcast_shapes(a.shape, b.shape)
    a = a if a.shape == shape else expand(a, shape)
    if b.shape == shape:
        return apply(name, a, b, **attributes)
    b, dims = narrow(b, a)
    return apply(name, a, b, dims=dims, **attributes)


def binary(name, scalar):
    def translation(a, b, alpha=1):
        if not isinstance(b, np.ndarray):
            return scalar(a, b * alpha)
        return spreading(name, a, b if alpha == 1 else apply("scale", b, factor=float(alpha)))

    return translation


def scaled(x, factor):
    return apply("scale", x, factor=float(factor))


def shifted(x, value):
    return apply("add_scalar", x, value=float(value))


def reduced(name, counted=False):
    def translation(x, dims, keepdim=False, **_):
        dims = tuple(sorted(dim % x.ndim for dim in dims))
        count = {"count": math.prod(x.shape[dim] for dim in dims)} if counted else {}
        found = apply(name, x, dims=dims, **count)
        return reshape(found, [1 if dim in dims else own for dim, own in enumerate(x.shape)]) if keepdim else found

    return translation


def rows(x, dim):
    maximum = apply("amax", x, dims=(dim % x.ndim,))
    return x, maximum, apply("sum_exp", x, maximum, dim=dim)


def softmax_backward(grad, result, dim):
    inner = apply("softmax_backward_sum", grad, result, dim=dim)
    return apply("softmax_backward", grad, result, inner, dim=dim)


def log_softmax_backward(grad, result, dim, _dtype):
    inner = apply("sum", grad, dims=(dim % grad.ndim,))
    return apply("log_softmax_backward", grad, result, inner, dim=dim)


def nll_loss(x, labels, *_):
    return apply("nll_loss", x, labels, count=len(labels)), full((), len(labels))


def nll_loss_backward(grad, x, labels, *_):
    return apply("nll_loss_backward", grad, labels, count=len(labels), extents={"c": x.shape[1]})


def addmm(bias, a, b):
    return apply("add", apply("mm", a, b), bias, dims=(1,))


def window(stride, padding, dilation, groups):
    return {"stride": tuple(stride), "padding": tuple(padding), "dilation": tuple(dilation), "groups": groups}


def convolution(x, weight, bias, *how):
    stride, padding, dilation, transposed, _, groups = how
    assert not transposed
    y = apply("convolution", x, weight, **window(stride, padding, dilation, groups))
    return y if bias is None else apply("add", y, bias, dims=(1,))


def convolution_backward(grad, x, weight, _bias, *how):
    stride, padding, dilation, _, _, groups, wanted = how
    attributes = window(stride, padding, dilation, groups)
    image, taps = dict(zip("yx", x.shape[2:], strict=True)), dict(zip(("dy", "dx"), weight.shape[2:], strict=True))
    return (
        apply("convolution_backward_input", grad, weight, **attributes, extents=image) if wanted[0] else None,
        apply("convolution_backward_weight", grad, x, **attributes, extents=taps) if wanted[1] else None,
        apply("sum", grad, dims=(0, 2, 3)) if wanted[2] else None,
    )


def pooling(kernel, stride, padding):
    return {"kernel": tuple(kernel), "stride": tuple(stride or kernel), "padding": tuple(padding)}


def flat_places(offsets, how, width):
    """Indices within windows as PyTorch counts them, within images."""
    (_, kx), (sy, sx), (py, px) = how["kernel"], how["stride"], how["padding"]
    y, x = np.arange(offsets.shape[2])[:, None] * sy - py, np.arange(offsets.shape[3]) * sx - px
    return (y + offsets // kx) * width + x + offsets % kx


def max_pool(x, kernel, stride=(), padding=(0, 0)):
    how = pooling(kernel, stride, padding)
    values, offsets = apply("max_pool2d_with_indices", x, **how, extents=dict(zip(("dy", "dx"), kernel, strict=True)))
    return values, flat_places(offsets, how, x.shape[3])


def max_pool_backward(grad, x, *rest):
    kernel, stride, padding, _, _, places = rest
    how = pooling(kernel, stride, padding)
    (_, kx), (sy, sx), (py, px) = how["kernel"], how["stride"], how["padding"]
    y, x_ = np.arange(grad.shape[2])[:, None] * sy - py, np.arange(grad.shape[3]) * sx - px
    offsets = ((places // x.shape[3] - y) * kx + places % x.shape[3] - x_).astype(np.int32)
    extents = dict(zip(("y", "x", "dy", "dx"), (*x.shape[2:], *kernel), strict=True))
    return apply("max_pool2d_with_indices_backward", grad, offsets, **how, extents=extents)


def statistics(x, dims):
    count = math.prod(x.shape[dim] for dim in dims)
    mean = apply("mean", x, dims=dims, count=count)
    return mean, apply("var", x, mean, dims=dims, count=count), count


def inverse_deviation(var, eps):
    return apply("rsqrt", apply("add_scalar", var, value=eps))


def batch_norm(x, weight, bias, *rest):
    *_, eps = rest
    mean, var, _ = statistics(x, (0, 2, 3))
    return apply("batch_norm", x, mean, var, weight, bias, eps=eps), mean, inverse_deviation(var, eps)


def batch_norm_backward(grad, x, weight, *rest):
    *_, eps, _wanted = rest
    mean, var, count = statistics(x, (0, 2, 3))
    sums = apply("batch_norm_backward_reduce", grad, x, mean, var, eps=eps)
    return apply("batch_norm_backward", grad, x, mean, var, weight, *sums, eps=eps, count=count), *sums


def layer_norm(x, shape, weight, bias, eps):
    split = x.ndim - len(shape)
    how = {"statistics": tuple(range(split)), "weights": tuple(range(split, x.ndim)), "eps": eps}
    mean, var, _ = statistics(x, how["weights"])
    kept = [*x.shape[:split], *(1 for _ in shape)]
    y = apply("normalize", x, mean, var, weight, bias, **how)
    return y, reshape(mean, kept), reshape(inverse_deviation(var, eps), kept)


def layer_norm_backward(grad, x, shape, *rest):
    _, _, weight, *_ = rest
    split = x.ndim - len(shape)
    how = {"statistics": tuple(range(split)), "weights": tuple(range(split, x.ndim)), "eps": 1e-5}
    mean, var, count = statistics(x, how["weights"])
    sums = apply("normalize_backward_statistics", grad, x, mean, var, weight, **how)
    parameters = apply("normalize_backward_weights", grad, x, mean, var, **how)
    return apply("normalize_backward", grad, x, mean, var, weight, *sums, **how, count=count), *parameters


def attention_weights(query, key, causal):
    products = apply("einsum", query, key, equation="bhqd,bhkd->bhqk")
    scores = scaled(products, query.shape[-1] ** -0.5)
    scores = apply("causal_mask", scores) if causal else scores
    _, maximum, total = rows(scores, -1)
    return apply("softmax", scores, maximum, total), apply("add", apply("log", total), maximum)


def attention(query, key, value, _dropout=0.0, causal=False, **_):
    weights, sums = attention_weights(query, key, causal)
    return apply("einsum", weights, value, equation="bhqk,bhkd->bhqd"), sums


def attention_backward(grad, query, key, value, *rest, **_):
    causal = rest[3]
    weights, _ = attention_weights(query, key, causal)
    grad_value = apply("einsum", weights, grad, equation="bhqk,bhqd->bhkd")
    grad_weights = apply("einsum", grad, value, equation="bhqd,bhkd->bhqk")
    grad_scores = scaled(softmax_backward(grad_weights, weights, -1), query.shape[-1] ** -0.5)
    return (
        apply("einsum", grad_scores, key, equation="bhqk,bhkd->bhqd"),
        apply("einsum", grad_scores, query, equation="bhqk,bhqd->bhkd"),
        grad_value,
    )


def cut(x, dim=0, start=0, end=None, step=1):
    size, dim = x.shape[dim], dim % x.ndim
    stop = min(size if end is None else end + size * (end < 0), size)
    return apply("slice", x, dim=dim, start=start, skip=size - stop, step=step)


def split(x, size, dim=0):
    shape, dim = x.shape, dim % x.ndim
    parts = reshape(x, [*shape[:dim], shape[dim] // size, size, *shape[dim + 1 :]])
    found = apply("unbind", parts, dim=dim, n=shape[dim] // size)
    return found if isinstance(found, tuple) else (found,)


def embedding_backward(grad, indices, count, *_):
    return apply("embedding_dense_backward", grad, indices, extents={"v": count})


def bernoulli(x, p):
    extents = {f"i{dim}": extent for dim, extent in enumerate(x.shape)}
    return apply("bernoulli", np.asarray(7.0), p=p, rank=x.ndim, extents=extents)


TRANSLATIONS = {
    "_log_softmax": lambda x, dim, _: apply("log_softmax", *rows(x, dim), dim=dim),
    "_log_softmax_backward_data": log_softmax_backward,
    "_scaled_dot_product_flash_attention_for_cpu": attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
    "_softmax": lambda x, dim, _: apply("softmax", *rows(x, dim), dim=dim),
    "_softmax_backward_data": lambda grad, result, dim, _: softmax_backward(grad, result, dim),
    "_unsafe_view": reshape,
    "add": binary("add", shifted),
    "addmm": addmm,
    "arange": lambda end, **_: apply("arange", extents={"i": end}),
    "bernoulli": bernoulli,
    "bmm": lambda a, b: apply("bmm", a, b),
    "cat": lambda tensors, dim=0: apply(
        "cat", *tensors, dim=dim % tensors[0].ndim, sizes=tuple(x.shape[dim] for x in tensors)
    ),
    "clone": lambda x, **_: apply("clone", x),
    "convolution": convolution,
    "convolution_backward": convolution_backward,
    "detach": lambda x: apply("clone", x),
    "div": binary("div", lambda x, value: scaled(x, 1 / value)),
    "embedding": lambda weight, indices, *_: apply("embedding", weight, indices),
    "embedding_dense_backward": embedding_backward,
    "empty": lambda shape, **_: full(shape, 0),
    "empty_like": lambda x, **_: full(x.shape, 0),
    "eq": lambda x, value: apply("eq_scalar", x, value=float(value)),
    "expand": expand,
    "gelu": lambda x, approximate="none": apply("gelu", x, approximate=approximate),
    "gelu_backward": lambda grad, x, approximate="none": apply("gelu_backward", grad, x, approximate=approximate),
    "lerp": lambda a, b, weight: apply("lerp", a, b, weight=weight),
    "masked_fill": lambda x, mask, value: spreading("masked_fill", x, mask, value=float(value)),
    "max_pool2d_with_indices": max_pool,
    "max_pool2d_with_indices_backward": max_pool_backward,
    "mean": reduced("mean", counted=True),
    "mm": lambda a, b: apply("mm", a, b),
    "mul": binary("mul", scaled),
    "native_batch_norm": batch_norm,
    "native_batch_norm_backward": batch_norm_backward,
    "native_layer_norm": layer_norm,
    "native_layer_norm_backward": layer_norm_backward,
    "nll_loss_backward": nll_loss_backward,
    "nll_loss_forward": nll_loss,
    "ones_like": lambda x, **_: full(x.shape, 1),
    "pow": lambda base, x: apply("rpow_scalar", x, value=float(base)),
    "relu": lambda x: apply("relu", x),
    "rsub": lambda x, value: apply("rsub_scalar", x, value=float(value)),
    "select": lambda x, dim, index: apply("select", x, dim=dim, index=index % x.shape[dim]),
    "sigmoid": lambda x: apply("sigmoid", x),
    "sigmoid_backward": lambda grad, result: apply("sigmoid_backward", grad, result),
    "slice": cut,
    "split": split,
    "sqrt": lambda x: apply("sqrt", x),
    "stack": lambda tensors, dim=0: apply("stack", *tensors, dim=dim),
    "sub": binary("sub", lambda x, value: shifted(x, -value)),
    "sum": reduced("sum"),
    "t": lambda x: permuted(x, 0, 1),
    "tanh": lambda x: apply("tanh", x),
    "tanh_backward": lambda grad, result: apply("tanh_backward", grad, result),
    "threshold_backward": lambda grad, result, _: apply("threshold_backward", grad, result),
    "transpose": permuted,
    "unbind": lambda x, dim=0: apply("unbind", x, dim=dim, n=x.shape[dim]),
    "unsafe_split": split,
    "view": reshape,
    "zeros": lambda shape, **_: full(shape, 0),
}
UNDEFINED = {"empty", "empty_like"}
"""Results whose elements may be anything."""

RANDOM = {"bernoulli"}
"""Results that are random, with a generator of our own."""
