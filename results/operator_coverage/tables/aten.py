"""PyTorch's core ATen operators (those that `native_functions.yaml` of 2.11.0 tags "core"), and how each is described.

An entry stands for all overloads of a name: an operand that is a number is an attribute, an operand that broadcasts
names the dimensions that it has.
"""

from __future__ import annotations

from results.operator_coverage.tables.entry import described, each, left_out, table

SELECTED = "an index read from a tensor, as a selection by value"
GENERATOR = "same distribution; the numbers are a function of seed, step and global index"
MASKS = "of truth values or bits"

UNARY = (
    each(
        "abs acos acosh asin asinh atan atanh ceil cos cosh elu erf exp expm1 floor gelu isinf isnan leaky_relu "
        "log log10 "
        "log1p log2 neg reciprocal relu round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc clone",
        "{}(x[2])",
    )
    | each("alias=clone copy=clone _to_copy=clone", "{}(x[2])", "the values pass unchanged")
    | each("logical_not bitwise_not", "{}(x[2])", MASKS)
    | {
        "clamp": described("clamp(x[2], min=-1.0, max=1.0)", "or minimum and maximum, where the bounds are tensors"),
        "hardtanh": described("clamp(x[2], min=-1.0, max=1.0)"),
    }
)

BINARY = (
    each("add sub mul div atan2 eq ne lt le gt ge fmod maximum minimum pow remainder", "{}(a[2], b[2])")
    | each("logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor", "{}(a[2], b[2])", MASKS)
    | {"where": described("where(condition[2], a[2], b[2])")}
)

FILLED = 'filled(value=1.0, rank=2, extents={"i0": 3, "i1": 4})'

CREATION = each("empty empty_strided", FILLED, "any values will do") | {
    "full": described(FILLED),
    "full_like": described(FILLED, "only the operand's shape is used"),
    "fill": described(FILLED, "only the operand's shape is used"),
    "scalar_tensor": described("filled(value=1.0, rank=0)"),
    "arange": described('arange(start=1, step=2, extents={"i": 6})', "whole numbers"),
    "rand": described('rand(step[0], rank=2, extents={"i0": 3, "i1": 4})', GENERATOR),
    "randn": described('randn(step[0], rank=2, extents={"i0": 3, "i1": 4})', GENERATOR),
    "randperm": described(
        'u = rand(step[0], rank=1, extents={"i0": 5}); sort(u, dim=0)', "the second output: the order of random keys"
    ),
    "native_dropout": described("dropout(x[2], step[0], p=0.5)", GENERATOR),
}

REDUCTIONS = {
    "sum": described("sum(x[3], dims=(1,))"),
    "mean": described("mean(x[3], dims=(1,), count=4)"),
    "prod": described("prod(x[3], dims=(1,))"),
    "amax": described("amax(x[3], dims=(1,))"),
    "amin": described("amin(x[3], dims=(1,))"),
    "any": described("any(mask[3], dims=(1,))"),
    "max": described("m = amax(x[3], dims=(1,)); index_of(x, m, dim=1)", "both outputs"),
    "min": described("m = amin(x[3], dims=(1,)); index_of(x, m, dim=1)", "both outputs"),
    "argmax": described("m = amax(x[3], dims=(1,)); index_of(x, m, dim=1)", "the first index at which the maximum is"),
    "argmin": described("m = amin(x[3], dims=(1,)); index_of(x, m, dim=1)", "the first index at which the minimum is"),
    "var": described("m = mean(x[3], dims=(1,), count=4); var(x, m, dims=(1,), count=4)"),
    "cumsum": described('cumsum(x[3], dim=1, extents={"i1": 4})', "a sum over the elements before"),
}

MATRIX = {
    "mm": described("mm(a[2], b[2])"),
    "bmm": described("bmm(a[3], b[3])"),
    "addmm": described("p = mm(a[2], b[2]); add(p, c[1], dims=(1,))"),
    "_pdist_forward": described(
        "d = distance(a[2], a, p=3.0); e = pow_scalar(d, value=0.3333333333333333); upper_pairs(e, n=4)"
    ),
    "_cdist_forward": described("d = distance(a[2], b[2], p=3.0); pow_scalar(d, value=0.3333333333333333)"),
}

SOFTMAX = "m = amax(x[2], dims=(1,)); t = sum_exp(x, m); softmax(x, m, t)"
LOG_SOFTMAX = "m = amax(x[2], dims=(1,)); t = sum_exp(x, m); log_softmax(x, m, t)"
LAYER_NORM = (
    "m = mean(x[3], dims=(2,), count=4); v = var(x, m, dims=(2,), count=4); "
    "normalize(x, m, v, weight[1], bias[1], statistics=(0, 1), weights=(2,), eps=1e-5)"
)
GROUPED = (
    '{} = reshape({}, source=(("v0",), ("v1", "v2"), ("v3",), ("v4",)), '
    'target=(("v0",), ("v1",), ("v2",), ("v3",), ("v4",)), extents={"v1": 2}); '
)
UNGROUPED = (
    'reshape(y, source=(("v0",), ("v1",), ("v2",), ("v3",), ("v4",)), target=(("v0",), ("v1", "v2"), ("v3",), ("v4",)))'
)

NORMALIZATION = {
    "_softmax": described(SOFTMAX),
    "_log_softmax": described(LOG_SOFTMAX),
    "_native_batch_norm_legit": described(
        "m = mean(x[4], dims=(0, 2, 3), count=40); v = batch_norm_var(x, m, count=40); "
        "batch_norm(x, m, v, weight[1], bias[1], eps=1e-5)"
    ),
    "_native_batch_norm_legit_no_training": described("batch_norm(x[4], m[1], v[1], weight[1], bias[1], eps=1e-5)"),
    "native_layer_norm": described(LAYER_NORM),
    "native_layer_norm_backward": described(
        "dw, db = normalize_backward_weights(grad[3], x[3], m[2], v[2], statistics=(0, 1), weights=(2,), eps=1e-5); "
        "p, s = normalize_backward_statistics(grad, x, m, v, w[1], statistics=(0, 1), weights=(2,), eps=1e-5); "
        "normalize_backward(grad, x, m, v, w, p, s, statistics=(0, 1), weights=(2,), eps=1e-5, count=4)",
        "all three outputs",
    ),
    "native_group_norm": described(
        GROUPED.replace("{}", "x", 1).replace("{}", "image[4]")
        + 'w = reshape(weight[1], source=(("v1", "v2"),), target=(("v1",), ("v2",)), extents={"v1": 2}); '
        'b = reshape(bias[1], source=(("v1", "v2"),), target=(("v1",), ("v2",)), extents={"v1": 2}); '
        "m = mean(x, dims=(2, 3, 4), count=40); v = var(x, m, dims=(2, 3, 4), count=40); "
        "y = normalize(x, m, v, w, b, statistics=(0, 1), weights=(1, 2), eps=1e-5); " + UNGROUPED
    ),
    "native_group_norm_backward": described(
        GROUPED.replace("{}", "g", 1).replace("{}", "grad[4]")
        + GROUPED.replace("{}", "x", 1).replace("{}", "image[4]")
        + 'w = reshape(weight[1], source=(("v1", "v2"),), target=(("v1",), ("v2",)), extents={"v1": 2}); '
        "dw, db = normalize_backward_weights(g, x, m[2], v[2], statistics=(0, 1), weights=(1, 2), eps=1e-5); "
        "p, s = normalize_backward_statistics(g, x, m, v, w, statistics=(0, 1), weights=(1, 2), eps=1e-5); "
        "y = normalize_backward(g, x, m, v, w, p, s, statistics=(0, 1), weights=(1, 2), eps=1e-5, count=40); "
        + UNGROUPED,
        "all three outputs",
    ),
}

INDEXING = {
    "embedding": described("embedding(weight[2], indices[2])", SELECTED),
    "embedding_dense_backward": described('embedding_dense_backward(grad[3], indices[2], extents={"v": 5})', SELECTED),
    "index_select": described("index_select(a[2], indices[1], dim=0)", SELECTED),
    "gather": described("gather(x[2], index[2], dim=1)", SELECTED),
    "scatter": described("scatter(x[2], index[2], source[2], dim=1)", SELECTED + "; the last of equal indices wins"),
    "scatter_add": described('s = scatter_last(source[2], index[2], extents={"i1": 5}); add(x[2], s)', SELECTED),
    "scatter_reduce": described(
        's = scatter_last(source[2], index[2], extents={"i1": 5}); add(x[2], s)', "as a sum; likewise Max, Min, Prod"
    ),
    "_embedding_bag": described(
        "e = embedding(weight[2], indices[2]); sum(e, dims=(1,))", "bags of one size; " + SELECTED
    ),
    "index": described(
        "index_select(a[2], indices[1], dim=0)", SELECTED + "; with a mask for an index the shape is dynamic"
    ),
    "index_put": described(
        's = index_select_backward(values[2], indices[1], dim=0, extents={"i0": 5}); add(x[2], s)',
        "accumulating; " + SELECTED,
    ),
    "masked_scatter": described(
        'p = cumsum(mask[1], dim=0, extents={"i0": 5}); '
        "q = add_scalar(p, value=-1); t = index_select(source[1], q, dim=0); where(mask, t, x[1])",
        "of vectors: the place that is read is a sum over the mask",
    ),
    "grid_sampler_2d": described(
        "bilinear_sampler(x[4], grid[4], size=(4, 5))", "corners aligned, zeros outside: a sum over all pixels"
    ),
}

CONVOLVED = "y = convolution(x[4], weight[4], stride=(1, 1), padding=(1, 1)); add(y, bias[1], dims=(1,))"
AVERAGED = 'extents={"dy": 3, "dx": 3}'

WINDOWS = {
    "convolution": described(CONVOLVED),
    "convolution_backward": described(
        "dx = convolution_backward_input(grad[4], weight[4], stride=(1, 1), padding=(1, 1), "
        'extents={"y": 4, "x": 5}); '
        'dw = convolution_backward_weight(grad, x[4], stride=(1, 1), padding=(1, 1), extents={"dy": 3, "dx": 3}); '
        "sum(grad, dims=(0, 2, 3))",
        "all three outputs",
    ),
    "max_pool2d_with_indices": described(
        "max_pool2d_with_indices(x[4], stride=(2, 2), padding=(1, 1), kernel=(3, 3))",
        "the indices count within the window",
    ),
    "max_pool2d_with_indices_backward": described(
        "max_pool2d_with_indices_backward(grad[4], indices[4], stride=(2, 2), padding=(1, 1), kernel=(3, 3), "
        'extents={"y": 4, "x": 5})'
    ),
    "max_pool3d_with_indices": described(
        'max_pool(x[5], kernel=(2, 2, 2), stride=(2, 2, 2), padding=(0, 0, 0), extents={"dz": 2, "dy": 2, "dx": 2})',
        "the values; the indices as in two dimensions",
    ),
    "avg_pool1d": described('average_pool(x[3], kernel=(3,), stride=(2,), padding=(1,), extents={"dx": 3})'),
    "avg_pool2d": described("avg_pool2d(x[4], stride=(2, 2), padding=(1, 1), kernel=(3, 3))"),
    "avg_pool2d_backward": described(
        'avg_pool2d_backward(grad[4], stride=(2, 2), padding=(1, 1), kernel=(3, 3), extents={"y": 4, "x": 5})'
    ),
    "avg_pool3d": described(
        'average_pool(x[5], kernel=(2, 2, 2), stride=(2, 2, 2), padding=(0, 0, 0), extents={"dz": 2, "dy": 2, "dx": 2})'
    ),
    "adaptive_avg_pool1d": described('adaptive_average(x[3], size=(5,), bins=(3,), extents={"x": 3})'),
    "_adaptive_avg_pool2d": described('adaptive_average(x[4], size=(4, 5), bins=(2, 3), extents={"y": 2, "x": 3})'),
    "_adaptive_avg_pool2d_backward": described(
        'adaptive_average_backward(grad[4], size=(4, 5), bins=(2, 3), extents={"y": 4, "x": 5})'
    ),
    "_adaptive_avg_pool3d": described(
        'adaptive_average(x[5], size=(4, 5, 3), bins=(2, 3, 2), extents={"z": 2, "y": 3, "x": 2})'
    ),
    "upsample_nearest2d": described("nearest(x[4], size=(4, 5), bins=(6, 7))"),
    "upsample_bilinear2d": described("bilinear_resize(x[4], size=(4, 5), bins=(6, 7))", "a sum over all pixels"),
    "col2im": described(
        'r = reshape(columns[3], source=(("n",), ("c", "dy", "dx"), ("y", "x")), '
        'target=(("n",), ("c",), ("dy",), ("dx",), ("y",), ("x",)), extents={"dy": 3, "dx": 3, "y": 4}); '
        'col2im(r, stride=(1, 1), padding=(1, 1), extents={"y": 4, "x": 5})'
    ),
}

SHAPE = {
    "expand": described('broadcast_axes(x[2], dims=(0,), extents={"i0": 3})'),
    "cat": described("cat(a[2], b[2], dim=1, sizes=(4, 3))"),
    "constant_pad_nd": described("constant_pad_nd(x[2], low=(1, 0), high=(2, 1), sizes=(3, 4), value=1.5)"),
    "diagonal": described("s = slice(x[2], dim=1, start=1); diagonal(s)"),
    "flip": described("flip(x[2], dims=(0,), sizes=(3,))"),
    "permute": described("permute(x[3], dims=(2, 0, 1))"),
    "reflection_pad1d": described("pad_mirror(x[3], dim=2, low=2, high=1, size=5)"),
    "reflection_pad2d": described(
        "r = pad_mirror(x[4], dim=2, low=1, high=1, size=4); pad_mirror(r, dim=3, low=2, high=1, size=5)"
    ),
    "reflection_pad3d": described(
        "r = pad_mirror(x[5], dim=2, low=1, high=1, size=4); s = pad_mirror(r, dim=3, low=2, high=1, size=5); "
        "pad_mirror(s, dim=4, low=1, high=1, size=3)"
    ),
    "replication_pad2d": described(
        "r = pad_mirror(x[4], dim=2, low=1, high=1, size=4, edge=True); "
        "pad_mirror(r, dim=3, low=2, high=1, size=5, edge=True)"
    ),
    "replication_pad3d": described(
        "r = pad_mirror(x[5], dim=2, low=1, high=1, size=4, edge=True); "
        "s = pad_mirror(r, dim=3, low=2, high=1, size=5, edge=True); "
        "pad_mirror(s, dim=4, low=1, high=1, size=3, edge=True)"
    ),
    "repeat": described('tile(x[2], extents={"r0": 2, "r1": 3})'),
    "select": described("select(x[3], dim=1, index=2)"),
    "select_scatter": described("select_scatter(x[3], y[2], dim=1, index=2)"),
    "slice": described('slice(x[2], dim=0, start=1, extents={"i0": 2})'),
    "slice_scatter": described("strided_assign(x[2], y[2], begin=(1, 0), step=(1, 1), count=(2, 3))"),
    "split_with_sizes": described(
        "a = select(x[2], dim=1, index=0); slice(x, dim=1, start=1)", "one slice, or selection, for each part"
    ),
    "squeeze": described("select(x[3], dim=1, index=0)"),
    "unsqueeze": described('expand(x[2], dims=(1,), extents={"e0": 1})'),
    "view": described('reshape(x[3], source=(("v0",), ("v1",), ("v2",)), target=(("v0",), ("v1", "v2")))'),
    "as_strided": described(
        'window_of(storage[1], strides=(4, 1), offset=2, extents={"i0": 2, "i1": 3})', "of a storage that is a vector"
    ),
}

ORDERING = {
    "sort": described("sort(x[2], dim=1)", "whole along the sorted dimension"),
    "topk": described("topk(x[2], k=2, dim=1)", "whole along the sorted dimension"),
    "_fft_r2c": described("rfft_last(x[2], length=6)", "whole along the transformed dimension"),
    "_fft_c2r": described("irfft_last(x[2], length=6)", "whole along the transformed dimension"),
}

LEFT_OUT = (
    left_out("nonzero", "dynamic shape: how many elements are not zero is known only when they are")
    | left_out("_local_scalar_dense", "host: it returns a number to Python")
    | left_out(
        "sym_is_contiguous sym_numel sym_size sym_storage_offset sym_stride",
        "host: a property of the tensor's shape or storage, not of its elements",
    )
    | left_out("resize_", "host: it changes the storage of a tensor in place, leaving elements undefined")
)

ATEN = table(UNARY, BINARY, CREATION, REDUCTIONS, MATRIX, NORMALIZATION, INDEXING, WINDOWS, SHAPE, ORDERING, LEFT_OUT)
