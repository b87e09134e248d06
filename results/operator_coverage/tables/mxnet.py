"""The operators that Apache MXNet 0.11.0 registers, and how each is described.

The names were read from its sources (tag 0.11.0): the operators registered in `src/` (their gradients are in
`mxnet_backward`), those of its imperative interface only, and those of its plugins. The ranks, attributes and extents
of an entry are an example of what the operator takes.
"""

from __future__ import annotations

from results.operator_coverage.tables.entry import described, each, left_out, table

PASSED = "the values pass unchanged; what is special is the gradient, the dtype or the device"
SELECTED = "an index read from a tensor, as a selection by value"
GENERATOR = "same distribution; the numbers are a function of seed, step and global index"

UNARY = each(
    "abs arccos=acos arccosh=acosh arcsin=asin arcsinh=asinh arctan=atan arctanh=atanh ceil cos cosh exp expm1 "
    "fix=trunc floor gamma gammaln=lgamma log log10 log1p log2 negative=neg reciprocal relu rint=round rsqrt sigmoid "
    "sign sin sinh sqrt square tan tanh trunc round=round_away degrees radians",
    "{}(x[2])",
) | {
    "smooth_l1": described("smooth_l1(x[2], scalar=1.0)"),
    "clip": described("clamp(x[2], min=-1.0, max=1.0)"),
    "Activation": described("relu(x[2])", "or sigmoid, tanh, softplus"),
    "LeakyReLU": described("leaky_relu(x[2], negative_slope=0.25)", "or elu; or rectified, by a tensor of slopes"),
    "Dropout": described("dropout(x[2], step[0], p=0.5)", GENERATOR),
    "LogisticRegressionOutput": described("sigmoid(x[2])"),
    "_identity_with_attr_like_rhs": described("clone(x[2])", "the second operand only lends its shape"),
    "IdentityAttachKLSparseReg": described("clone(x[2])", "the penalty enters the gradient only"),
} | each(
    "BlockGrad _copy Cast make_loss MakeLoss _CrossDeviceCopy LinearRegressionOutput MAERegressionOutput SVMOutput",
    "clone(x[2])", PASSED,
)  # fmt: skip

BINARY = (
    each("elemwise_add=add _grad_add=add _sub=sub _mul=mul _div=div", "{}(a[2], b[2])")
    | each("_mod=remainder _power=pow _hypot=hypot _maximum=maximum _minimum=minimum", "{}(a[2], b[2])")
    | each("_equal=eq _not_equal=ne _greater=gt _greater_equal=ge _lesser=lt _lesser_equal=le", "{}(a[2], b[2])")
    | {"add_n": described("add_n(a[2], b[2], c[2])"), "where": described("where(condition[2], a[2], b[2])")}
)

BROADCAST = each(
    "broadcast_add=add broadcast_sub=sub broadcast_mul=mul broadcast_div=div broadcast_mod=remainder "
    "broadcast_power=pow broadcast_hypot=hypot broadcast_maximum=maximum broadcast_minimum=minimum "
    "broadcast_equal=eq "
    "broadcast_not_equal=ne broadcast_greater=gt broadcast_greater_equal=ge broadcast_lesser=lt "
    "broadcast_lesser_equal=le",
    "{}(a[3], b[1], dims=(1,))",
    "extents of 1 are dropped from the smaller operand; where both broadcast, one is expanded first",
)  # fmt: skip

SCALAR = {
    "_plus_scalar": described("add_scalar(x[2], value=2.0)"),
    "_minus_scalar": described("add_scalar(x[2], value=-2.0)"),
    "_rminus_scalar": described("rsub_scalar(x[2], value=2.0)"),
    "_mul_scalar": described("scale(x[2], factor=2.0)"),
    "_div_scalar": described("scale(x[2], factor=0.5)"),
    "_rdiv_scalar": described("r = reciprocal(x[2]); scale(r, factor=2.0)"),
    "_mod_scalar": described("remainder_scalar(x[2], value=2.0)"),
    "_rmod_scalar": described("remainder_by(x[2], scalar=2.0)"),
    "_power_scalar": described("pow_scalar(x[2], value=2.0)"),
    "_rpower_scalar": described("rpow_scalar(x[2], value=2.0)"),
    "_hypot_scalar": described("hypotenuse_scalar(x[2], scalar=2.0)"),
    "_maximum_scalar": described("clamp(x[2], min=2.0)"),
    "_minimum_scalar": described("clamp(x[2], max=2.0)"),
} | each(
    "_equal_scalar=eq _not_equal_scalar=ne _greater_scalar=gt _greater_equal_scalar=ge _lesser_scalar=lt "
    "_lesser_equal_scalar=le",
    "{}_scalar(x[2], value=2.0)",
)  # fmt: skip

OPTIMIZERS = {
    "sgd_update": described("sgd_update(w[2], grad[2], lr=0.1, wd=0.01)"),
    "sgd_mom_update": described("sgd_momentum_update(w[2], grad[2], moved[2], lr=0.1, momentum=0.9, wd=0.01)"),
    "mp_sgd_update": described(
        "v = sgd_update(w32[2], grad[2], lr=0.1, wd=0.01); clone(v)", "the copy is the half precision weight"
    ),
    "mp_sgd_mom_update": described(
        "v, m = sgd_momentum_update(w32[2], grad[2], moved[2], lr=0.1, momentum=0.9, wd=0.01); clone(v)",
        "the copy is the half precision weight",
    ),
    "adam_update": described("adam_update(w[2], grad[2], m[2], v[2], lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8)"),
    "rmsprop_update": described("rmsprop_update(w[2], grad[2], n[2], lr=0.1, decay=0.95, eps=1e-8)"),
    "rmspropalex_update": described(
        "rmsprop_centered_update(w[2], grad[2], n[2], g[2], delta[2], lr=0.1, decay=0.95, momentum=0.9, eps=1e-8)"
    ),
}

CREATION = {
    "_zeros": described('filled(value=0.0, rank=2, extents={"i0": 3, "i1": 4})'),
    "_ones": described('filled(value=1.0, rank=2, extents={"i0": 3, "i1": 4})'),
    "zeros_like": described(
        'filled(value=0.0, rank=2, extents={"i0": 3, "i1": 4})', "only the operand's shape is used"
    ),
    "ones_like": described('filled(value=1.0, rank=2, extents={"i0": 3, "i1": 4})', "only the operand's shape is used"),
    "_arange": described('i = arange(extents={"i": 6}); s = scale(i, factor=0.5); add_scalar(s, value=1.0)'),
    "_contrib_MultiBoxPrior": described(
        "multibox_prior(widths=(0.25, 0.5), heights=(0.25, 0.125), size=(3, 4))",
        "only the operand's shape is used; half widths and heights follow from sizes and ratios",
    ),
}

RANDOM = {
    "random_uniform": described(
        'u = rand(step[0], rank=2, extents={"i0": 3, "i1": 4}); s = scale(u, factor=2.0); add_scalar(s, value=-1.0)',
        GENERATOR,
    ),
    "random_normal": described(
        'z = randn(step[0], rank=2, extents={"i0": 3, "i1": 4}); s = scale(z, factor=2.0); add_scalar(s, value=-1.0)',
        GENERATOR,
    ),
    "random_exponential": described('random_exponential(rate=2.0, rank=2, extents={"i0": 3, "i1": 4})', GENERATOR),
    "random_gamma": described(
        'random_rejection(distribution="gamma", parameters=(2.0, 0.5), rank=2, extents={"i0": 3, "i1": 4})', GENERATOR
    ),
    "random_poisson": described(
        'random_rejection(distribution="poisson", parameters=(2.0,), rank=2, extents={"i0": 3, "i1": 4})', GENERATOR
    ),
    "random_negative_binomial": described(
        'random_rejection(distribution="negative_binomial", parameters=(3, 0.5), rank=2, extents={"i0": 3, "i1": 4})',
        GENERATOR,
    ),
    "random_generalized_negative_binomial": described(
        'random_rejection(distribution="generalized_negative_binomial", parameters=(2.0, 0.5), rank=2, '
        'extents={"i0": 3, "i1": 4})',
        GENERATOR,
    ),
    "sample_uniform": described("sample_uniform(low[1], high[1], draws=4)", GENERATOR),
    "sample_normal": described("sample_normal(mean[1], deviation[1], draws=4)", GENERATOR),
    "sample_exponential": described("sample_exponential(rate[1], draws=4)", GENERATOR),
    "sample_gamma": described('sample_rejection(shape[1], scale[1], distribution="gamma", draws=4)', GENERATOR),
    "sample_poisson": described('sample_rejection(mean[1], distribution="poisson", draws=4)', GENERATOR),
    "sample_negative_binomial": described(
        'sample_rejection(count[1], chance[1], distribution="negative_binomial", draws=4)', GENERATOR
    ),
    "sample_generalized_negative_binomial": described(
        'sample_rejection(mean[1], dispersion[1], distribution="generalized_negative_binomial", draws=4)', GENERATOR
    ),
    "sample_multinomial": described("sample_choice(weights[2], draws=4)", GENERATOR),
}  # fmt: skip

INDEXING = {
    "Embedding": described("embedding(weight[2], indices[2])", SELECTED),
    "take": described("index_select(a[2], indices[1], dim=0)", SELECTED),
    "batch_take": described("pick(a[2], indices[1], axis=1)", SELECTED),
    "pick": described("pick(a[3], indices[2], axis=1)", SELECTED),
    "one_hot": described("one_hot(indices[1], depth=5)", SELECTED),
    "SequenceLast": described("sequence_last(x[3], length[1])", SELECTED),
    "SequenceMask": described("sequence_mask(x[3], length[1])", SELECTED),
    "SequenceReverse": described('sequence_reverse(x[3], length[1], extents={"i0": 4})', SELECTED),
    "_contrib_count_sketch": described("count_sketch(x[2], bucket[1], sign[1], buckets=3)", SELECTED),
    "BilinearSampler": described(
        "bilinear_sampler(x[4], grid[4], size=(4, 5))", "a sum over all pixels, weighted by distance"
    ),
    "GridGenerator": described("affine_grid(theta[2], size=(4, 5))", "or warp_grid, for an optical flow"),
    "SpatialTransformer": described(
        "grid = affine_grid(theta[2], size=(3, 2)); bilinear_sampler(x[4], grid, size=(4, 5))"
    ),
    "ROIPooling": described(
        "m = roi_max(x[4], rois[2], pooled=(2, 2), scale=1.0); clear_empty(m)",
        "a maximum over all pixels, selected by region",
    ),
    "_contrib_PSROIPooling": described(
        "position_sensitive_roi(x[4], rois[2], pooled=(2, 2), size=(4, 5), scale=1.0)",
        "a sum over all pixels, selected by region",
    ),
    "_contrib_DeformableConvolution": described(
        'deformable_convolution(x[4], offset[4], weight[4], stride=(1, 1), padding=(1, 1), extents={"y": 4, "x_": 5})',
        "a sum over all pixels, weighted by distance from the moved taps",
    ),
    "_contrib_DeformablePSROIPooling": described(
        "deformable_roi(x[4], rois[2], trans[4], pooled=(2, 2), size=(4, 5), scale=1.0, reach=0.1, samples=2)",
        "a sum over all pixels, weighted by distance from the moved samples",
    ),
}

MATRIX = {
    "dot": described("mm(a[2], b[2])"),
    "batch_dot": described("bmm(a[3], b[3])"),
    "FullyConnected": described("y = mm(x[2], weight[2], transpose_b=True); add(y, bias[1], dims=(1,))"),
    "linalg_gemm": described("p = bmm(a[3], b[3]); q = scale(p, factor=2.0); r = scale(c[3], factor=0.5); add(q, r)"),
    "linalg_gemm2": described("p = bmm(a[3], b[3]); scale(p, factor=2.0)"),
    "linalg_trmm": described("trmm(a[3], b[3], alpha=2.0)"),
    "linalg_sumlogdiag": described("sum_log_diagonal(a[3])"),
    "linalg_potrf": described("potrf(a[3])"),
    "linalg_potri": described("potri(a[3])"),
    "linalg_trsm": described("trsm(a[3], b[3], alpha=2.0)"),
}

CONVOLVED = "y = convolution(x[4], weight[4], stride=(1, 1), padding=(1, 1)); add(y, bias[1], dims=(1,))"
POOLED = 'max_pool2d_with_indices(x[4], stride=(2, 2), padding=(1, 1), kernel=(3, 3), extents={"dy": 3, "dx": 3})'

WINDOWS = {
    "Convolution": described(CONVOLVED, "in any number of dimensions, with groups and dilation"),
    "Convolution_v1": described(CONVOLVED),
    "Deconvolution": described(
        'y = convolution_backward_input(x[4], weight[4], stride=(2, 2), padding=(1, 1), extents={"y": 5, "x": 7}); '
        "add(y, bias[1], dims=(1,))",
        "the convolution's gradient for its input",
    ),
    "Pooling": described(POOLED, "or avg_pool2d, or a sum"),
    "Pooling_v1": described(POOLED, "or avg_pool2d, or a sum"),
    "Correlation": described("correlation(a[4], b[4], kernel=3, reach=1, stride=1, count=18.0)"),
    "UpSampling": described(
        "r = repeat_each(x[4], axis=2, times=2); repeat_each(r, axis=3, times=2)",
        "nearest; bilinear is a deconvolution",
    ),
}

MOMENTS = "m = mean(x[4], dims=(0, 2, 3), count=40); v = batch_norm_var(x, m, count=40); "
SOFTMAX = "m = amax(x[2], dims=(1,)); t = sum_exp(x, m); softmax(x, m, t)"
LOG_SOFTMAX = "m = amax(x[2], dims=(1,)); t = sum_exp(x, m); log_softmax(x, m, t)"

NORMALIZATION = (
    each("BatchNorm BatchNorm_v1 CuDNNBatchNorm", MOMENTS + "batch_norm(x, m, v, weight[1], bias[1], eps=1e-5)")
    | each("Softmax SoftmaxActivation SoftmaxOutput softmax", SOFTMAX)
    | {
        "log_softmax": described(LOG_SOFTMAX),
        "softmax_cross_entropy": described(
            "m = amax(x[2], dims=(1,)); t = sum_exp(x, m); cross_entropy(x, m, t, labels[1], count=1)"
        ),
        "InstanceNorm": described(
            "m = mean(x[4], dims=(2, 3), count=20); v = var(x, m, dims=(2, 3), count=20); "
            "normalize(x, m, v, weight[1], bias[1], statistics=(0, 1), weights=(1,), eps=1e-3)"
        ),
        "L2Normalization": described(
            "q = square(x[3]); s = sum(q, dims=(1, 2)); e = add_scalar(s, value=1e-10); r = sqrt(e); "
            "div(x, r, dims=(0,))"
        ),
        "LRN": described(
            "q = square(x[4]); s = channel_window(q, reach=1); t = scale(s, factor=0.5); "
            "k = add_scalar(t, value=2.0); "
            "p = pow_scalar(k, value=-0.75); mul(x, p)"
        ),
    }
)

REDUCTIONS = {
    "sum": described("sum(x[3], dims=(1,))"),
    "mean": described("mean(x[3], dims=(1,), count=4)"),
    "prod": described("prod(x[3], dims=(1,))"),
    "nansum": described("n = isnan(x[3]); z = masked_fill(x, n, value=0.0); sum(z, dims=(1,))"),
    "nanprod": described("n = isnan(x[3]); z = masked_fill(x, n, value=1.0); prod(z, dims=(1,))"),
    "max": described("amax(x[3], dims=(1,))"),
    "min": described("amin(x[3], dims=(1,))"),
    "norm": described("q = square(x[2]); s = sum(q, dims=(0, 1)); sqrt(s)"),
    "argmax": described("m = amax(x[3], dims=(1,)); index_of(x, m, dim=1)", "the first index at which the maximum is"),
    "argmin": described("m = amin(x[3], dims=(1,)); index_of(x, m, dim=1)", "the first index at which the minimum is"),
    "argmax_channel": described("m = amax(x[2], dims=(1,)); index_of(x, m, dim=1)"),
}

ORDERING = {
    "sort": described("sort(x[2], dim=1)", "whole along the sorted dimension"),
    "argsort": described("sort(x[2], dim=1)", "the second output"),
    "topk": described("topk(x[2], k=2, dim=1)", "whole along the sorted dimension"),
    "_contrib_fft": described("fft_last(x[2], length=6)", "whole along the transformed dimension"),
    "_contrib_ifft": described("ifft_last(x[2], length=6)", "whole along the transformed dimension"),
}

SLICED = 'slice(x[2], dim=0, start=1, extents={"i0": 2})'

SHAPE = {
    "broadcast_to": described('broadcast_axes(x[2], dims=(0,), extents={"i0": 3})'),
    "broadcast_axis": described('broadcast_axes(x[2], dims=(0,), extents={"i0": 3})'),
    "Concat": described("cat(a[2], b[2], dim=1, sizes=(4, 3))"),
    "stack": described("stack(a[2], b[2], dim=1)"),
    "SliceChannel": described("unbind(x[3], dim=1, n=4)", "or one slice for each part"),
    "Crop": described(
        'a = slice(x[4], dim=2, start=1, extents={"i2": 2}); slice(a, dim=3, start=1, extents={"i3": 2})'
    ),
    "Pad": described("constant_pad_nd(x[4], low=(0, 0, 1, 1), high=(0, 0, 1, 2))", "or pad_mirror"),
    "Flatten": described('reshape(x[3], source=(("v0",), ("v1",), ("v2",)), target=(("v0",), ("v1", "v2")))'),
    "Reshape": described('reshape(x[3], source=(("v0",), ("v1",), ("v2",)), target=(("v0",), ("v1", "v2")))'),
    "expand_dims": described('expand(x[2], dims=(1,), extents={"e0": 1})'),
    "SwapAxis": described("permute(x[3], dims=(0, 2, 1))"),
    "transpose": described("permute(x[3], dims=(2, 0, 1))"),
    "repeat": described("repeat_each(x[2], axis=1, times=3)"),
    "tile": described('tile(x[2], extents={"r0": 2, "r1": 3})'),
    "reverse": described("flip(x[2], dims=(0,), sizes=(3,))"),
    "slice": described('a = slice(x[2], dim=0, start=1, extents={"i0": 2}); slice(a, dim=1, start=1, step=2)'),
    "slice_axis": described(SLICED),
    "_slice_assign": described("strided_assign(x[2], y[2], begin=(1, 0), step=(1, 1), count=(2, 3))"),
    "_crop_assign_scalar": described("strided_fill(x[2], begin=(1, 0), step=(1, 1), count=(2, 3), value=1.5)"),
}

QUANTIZED = {
    "_contrib_quantize": described("quantize_linear(x[2], low[0], high[0], levels=255)"),
    "_contrib_dequantize": described("dequantize_linear(x[2], low[0], high[0], levels=255)"),
}

CUSTOM = left_out(
    "Custom _CustomFunction _NDArray _Native",
    "code of the user's own, called back on the host: nothing is known of what it reads or writes",
)
HOST = left_out("_cvimdecode _cvimread _cvimresize _cvcopyMakeBorder", "image files and buffers on the host, by OpenCV")
SEQUENTIAL = left_out(
    "_contrib_MultiBoxDetection _contrib_MultiBoxTarget _contrib_MultiProposal _contrib_Proposal",
    "ordering: boxes are sorted by score, then kept or matched greedily, each decision depending on those before",
)
RECURRENT = left_out(
    "RNN",
    "recurrence: every step of the one fused operator needs the step before; "
    "unrolled, a cell is mm, add, sigmoid, tanh",
) | left_out("_contrib_CTCLoss", "recurrence: a dynamic program over time steps")
PLACEHOLDER = left_out("_NoGradient", "a placeholder without operands or value, for gradients that do not exist")

FORWARD = table(
    UNARY, BINARY, BROADCAST, SCALAR, OPTIMIZERS, CREATION, RANDOM, INDEXING, MATRIX, WINDOWS, NORMALIZATION,
    REDUCTIONS, ORDERING, SHAPE, QUANTIZED, CUSTOM, HOST, SEQUENTIAL, RECURRENT, PLACEHOLDER,
)  # fmt: skip
"""Forward operators registered in `src/`."""

IMPERATIVE = table(
    {
        "_copyto": described("clone(x[2])"),
        "_set_value": described('filled(value=1.0, rank=2, extents={"i0": 3, "i1": 4})'),
        "_onehot_encode": described("one_hot(indices[1], depth=5)", SELECTED),
        "choose_element_0index": described("pick(a[2], indices[1], axis=1)", SELECTED),
        "fill_element_0index": described("fill_element(x[2], values[1], indices[1])", SELECTED),
    },
    left_out("_imdecode", "image files and buffers on the host, by OpenCV"),
)
"""Functions of the imperative interface that are no operators of graphs."""

PLUGINS = table(
    left_out("CaffeLoss CaffeOp TorchCriterion TorchModule", "a layer of another framework, called whole"),
    left_out("WarpCTC", "recurrence: a dynamic program over time steps"),
)
"""Operators of the plugins, which are not built by default."""
