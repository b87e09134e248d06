"""The gradients that Apache MXNet 0.11.0 registers as operators of their own, and how each is described.

The last statement of an entry is one of the gradients, those before it are the others or what it is made from.
"""

from __future__ import annotations

from results.operator_coverage.tables.entry import described, each, left_out, table

UNARY = (
    each(
        "_backward_abs=abs _backward_arccos=acos _backward_arccosh=acosh _backward_arcsin=asin "
        "_backward_arcsinh=asinh _backward_arctan=atan _backward_arctanh=atanh _backward_cos=cos _backward_cosh=cosh "
        "_backward_expm1=expm1 _backward_log1p=log1p _backward_sin=sin _backward_sinh=sinh _backward_square=square "
        "_backward_reciprocal=reciprocal _backward_rsqrt=rsqrt _backward_gamma=gamma _backward_gammaln=lgamma",
        "{}_backward(grad[2], x[2])",
    )
    | each("_backward_cast _backward_copy", "clone(grad[2])")
    | {
        "_backward_log": described("div(grad[2], x[2])"),
        "_backward_relu": described("threshold_backward(grad[2], result[2])"),
        "_backward_sigmoid": described("sigmoid_backward(grad[2], result[2])"),
        "_backward_tanh": described("tanh_backward(grad[2], result[2])"),
        "_backward_sqrt": described("h = scale(grad[2], factor=0.5); div(h, result[2])"),
        "_backward_tan": described("s = square(result[2]); t = add_scalar(s, value=1.0); mul(grad[2], t)"),
        "_backward_sign": described('filled(value=0.0, rank=2, extents={"i0": 3, "i1": 4})'),
        "_backward_degrees": described("degrees(grad[2])"),
        "_backward_radians": described("radians(grad[2])"),
        "_backward_smooth_l1": described("smooth_l1_backward(grad[2], x[2], scalar=1.0)"),
        "_backward_clip": described("clamp_backward(grad[2], x[2], min=-1.0, max=1.0)"),
    }
)

BINARY = each(
    "_backward_mod=remainder _backward_power=pow _backward_hypot=hypot _backward_maximum=maximum "
    "_backward_minimum=minimum",
    "{}_backward(grad[2], a[2], b[2])",
) | {
    "_backward_add": described("da = clone(grad[2]); clone(grad)"),
    "_backward_sub": described("da = clone(grad[2]); neg(grad)"),
    "_backward_mul": described("da = mul(grad[2], b[2]); mul(grad, a[2])"),
    "_backward_div": described("da = div(grad[2], b[2]); r = div(a[2], b); p = mul(da, r); neg(p)"),
    "_backward_hypot_scalar": described("hypotenuse_scalar_backward(grad[2], x[2], scalar=2.0)"),
    "_backward_maximum_scalar": described("m = lt_scalar(x[2], value=0.5); masked_fill(grad[2], m, value=0.0)"),
    "_backward_minimum_scalar": described("m = gt_scalar(x[2], value=0.5); masked_fill(grad[2], m, value=0.0)"),
    "_backward_mod_scalar": described("clone(grad[2])"),
    "_backward_rmod_scalar": described("remainder_by_backward(grad[2], x[2], scalar=2.0)"),
    "_backward_power_scalar": described("pow_scalar_backward(grad[2], x[2], value=2.0)"),
    "_backward_rpower_scalar": described("rpow_scalar_backward(grad[2], x[2], value=2.0)"),
    "_backward_rdiv_scalar": described("r = reciprocal_backward(grad[2], x[2]); scale(r, factor=2.0)"),
    "_backward_where": described(
        "n = logical_not(condition[2]); da = masked_fill(grad[2], n, value=0.0); "
        "masked_fill(grad, condition, value=0.0)"
    ),
}  # fmt: skip

BROADCAST = each(
    "_backward_broadcast_mod=remainder _backward_broadcast_power=pow _backward_broadcast_hypot=hypot "
    "_backward_broadcast_maximum=maximum _backward_broadcast_minimum=minimum",
    "da, db = {}_backward(grad[3], a[3], b[1], dims=(1,)); sum(db, dims=(0, 2))",
) | {
    "_backward_broadcast_add": described("da = clone(grad[3]); sum(grad, dims=(0, 2))"),
    "_backward_broadcast_sub": described("da = clone(grad[3]); s = sum(grad, dims=(0, 2)); neg(s)"),
    "_backward_broadcast_mul": described(
        "da = mul(grad[3], b[1], dims=(1,)); p = mul(grad, a[3]); sum(p, dims=(0, 2))"
    ),
    "_backward_broadcast_div": described(
        "da = div(grad[3], b[1], dims=(1,)); p = mul(da, a[3]); q = div(p, b, dims=(1,)); "
        "s = sum(q, dims=(0, 2)); neg(s)"
    ),
    "_broadcast_backward": described("sum(grad[3], dims=(0, 2))"),
}  # fmt: skip

REDUCTIONS = {
    "_backward_sum": described('expand(grad[2], dims=(1,), extents={"e0": 4})'),
    "_backward_mean": described('expand(grad[2], dims=(1,), factor=0.25, extents={"e0": 4})'),
    "_backward_prod": described(
        'p = mul(grad[2], result[2]); e = expand(p, dims=(1,), extents={"e0": 4}); div(e, x[3])'
    ),
    "_backward_nansum": described(
        'e = expand(grad[2], dims=(1,), extents={"e0": 4}); m = isnan(x[3]); masked_fill(e, m, value=0.0)'
    ),
    "_backward_nanprod": described(
        'p = mul(grad[2], result[2]); e = expand(p, dims=(1,), extents={"e0": 4}); q = div(e, x[3]); m = isnan(x); '
        "masked_fill(q, m, value=0.0)"
    ),
    "_backward_softmax": described(
        "t = softmax_backward_sum(grad[2], result[2]); softmax_backward(grad, result, t)"
    ),
    "_backward_log_softmax": described(
        "t = sum(grad[2], dims=(1,)); log_softmax_backward(grad, result[2], t)"
    ),
    "_backward_softmax_cross_entropy": described(
        "m = amax(x[2], dims=(1,)); t = sum_exp(x, m); cross_entropy_backward(x, m, t, labels[1], factor=1.0)"
    ),
} | each("_backward_max _backward_min", "extreme_backward(grad[2], x[3], result[2], dims=(1,))")  # fmt: skip

INDEXING = {
    "_backward_Embedding": described('embedding_dense_backward(grad[3], indices[2], extents={"v": 5})'),
    "_backward_take": described('index_select_backward(grad[2], indices[1], dim=0, extents={"i0": 5})'),
    "_backward_pick": described('pick_backward(grad[2], index[2], axis=1, extents={"i1": 4})'),
    "_backward_topk": described('scatter_last(grad[2], index[2], extents={"i1": 5})'),
    "_backward_sample_multinomial": described(
        's = scatter_last(grad[2], index[2], extents={"i1": 5}); div(s, weights[2])', "of the logarithms of the chances"
    ),
}

MATRIX = {
    "_backward_dot": described("da = mm(grad[2], b[2], transpose_b=True); mm(a[2], grad, transpose_a=True)"),
    "_backward_batch_dot": described(
        'da = bmm(grad[3], b[3], transpose_b=True); bmm(a[3], grad, transpose_a=True)'
    ),
    "_backward_linalg_gemm": described(
        'p = bmm(grad[3], b[3], transpose_b=True); da = scale(p, factor=2.0); '
        'q = bmm(a[3], grad, transpose_a=True); db = scale(q, factor=2.0); scale(grad, factor=0.5)'
    ),
    "_backward_linalg_gemm2": described(
        'p = bmm(grad[3], b[3], transpose_b=True); da = scale(p, factor=2.0); '
        'q = bmm(a[3], grad, transpose_a=True); scale(q, factor=2.0)'
    ),
    "_backward_linalg_sumlogdiag": described("diagonal_quotient(grad[1], a[3])"),
    "_backward_linalg_trmm": described(
        "db = trmm_transposed(a[3], grad[3], alpha=2.0); "
        'p = bmm(grad, b[3], transpose_b=True); t = tril(p); scale(t, factor=2.0)'
    ),
    "_backward_linalg_trsm": described(
        'd = trsm(a[3], grad[3], transpose=True); db = scale(d, factor=2.0); '
        'p = bmm(d, result[3], transpose_b=True); t = tril(p); scale(t, factor=-1.0)'
    ),
    "_backward_linalg_potrf": described(
        'p = bmm(l[3], grad[3], transpose_a=True); m = mirror_lower(p); x = trsm(l, m, transpose=True); '
        'y = permute(x, dims=(0, 2, 1)); z = trsm(l, y, transpose=True); scale(z, factor=0.5)',
        "half of the symmetric gradient",
    ),
    "_backward_linalg_potri": described(
        'p = bmm(result[3], grad[3]); s = bmm(p, result); '
        't = permute(s, dims=(0, 2, 1)); u = add(s, t); v = bmm(u, l[3]); w = tril(v); '
        "scale(w, factor=-1.0)"
    ),
}  # fmt: skip

SLICE_BACKWARD = 'slice_backward(grad[2], dim=0, start=1, extents={"i0": 4})'

SHAPE = {
    "_backward_slice": described(SLICE_BACKWARD),
    "_backward_slice_axis": described(SLICE_BACKWARD),
    "_backward_stack": described("unbind(grad[3], dim=1, n=2)"),
    "_backward_reverse": described("flip(grad[2], dims=(0,), sizes=(3,))"),
    "_backward_repeat": described("repeat_each_backward(grad[2], axis=1, times=3)"),
    "_backward_tile": described(
        'g = reshape(grad[2], source=(("r0", "i0"), ("r1", "i1")), target=(("r0",), ("i0",), ("r1",), ("i1",)), '
        'extents={"r0": 2, "r1": 3}); tile_backward(g)'
    ),
}

CUSTOM = "code of the user's own, called back on the host: nothing is known of what it reads or writes"

EXPLICIT = table(
    UNARY, BINARY, BROADCAST, REDUCTIONS, INDEXING, MATRIX, SHAPE,
    left_out("_backward_Custom _backward_CustomFunction", CUSTOM),
)  # fmt: skip
"""Gradients that are registered by name."""

CONVOLUTION = (
    "dx = convolution_backward_input(grad[4], weight[4], stride=(1, 1), padding=(1, 1), "
    'extents={"y": 4, "x": 5}); '
    'dw = convolution_backward_weight(grad, x[4], stride=(1, 1), padding=(1, 1), extents={"dy": 3, "dx": 3}); '
    "sum(grad, dims=(0, 2, 3))"
)
POOLING = (
    "max_pool2d_with_indices_backward(grad[4], indices[4], stride=(2, 2), padding=(1, 1), kernel=(3, 3), "
    'extents={"y": 4, "x": 5, "dy": 3, "dx": 3})'
)
SAMPLER = (
    "dx = bilinear_sampler_backward(grad[4], grid[4], size=(4, 5)); "
    "dg = bilinear_sampler_backward_grid(grad, x[4], grid, size=(4, 5))"
)
BATCH_NORM = (
    "dw, db = batch_norm_backward_reduce(grad[4], x[4], m[1], v[1], eps=1e-5); "
    "batch_norm_backward(grad, x, m, v, weight[1], dw, db, eps=1e-5, count=40)"
)
ZERO = 'filled(value=0.0, rank=2, extents={"i0": 3, "i1": 4})'

LAYERS = (
    each(
        "_backward__contrib_MultiBoxDetection _backward__contrib_MultiBoxTarget _backward__contrib_MultiBoxPrior "
        "_backward__contrib_MultiProposal _backward__contrib_Proposal",
        ZERO,
        "no gradient passes: zeros",
    )
    | each("_backward_Convolution _backward_Convolution_v1", CONVOLUTION)
    | each("_backward_Pooling _backward_Pooling_v1", POOLING, "or avg_pool2d_backward")
    | each("_backward_BatchNorm _backward_BatchNorm_v1 _backward_CuDNNBatchNorm", BATCH_NORM)
    | each(
        "_backward_LinearRegressionOutput _backward_LogisticRegressionOutput",
        "d = sub(result[2], label[2]); scale(d, factor=1.0)",
    )
    | each("_backward_Softmax _backward_SoftmaxOutput", "o = one_hot(label[1], depth=4); sub(result[2], o)")
    | {
        "_backward_SoftmaxActivation": REDUCTIONS["_backward_softmax"],
        "_backward_Activation": described("threshold_backward(grad[2], result[2])", "or sigmoid, tanh, softplus"),
        "_backward_LeakyReLU": described("leaky_relu_backward(grad[2], x[2], negative_slope=0.25)", "or elu"),
        "_backward_Dropout": described("dropout(grad[2], step[0], p=0.5)", "the same mask again"),
        "_backward_MakeLoss": described('filled(value=1.0, rank=2, extents={"i0": 3, "i1": 4})'),
        "_backward__CrossDeviceCopy": described("clone(grad[2])"),
        "_backward_MAERegressionOutput": described("d = sub(result[2], label[2]); s = sign(d); scale(s, factor=1.0)"),
        "_backward_SVMOutput": described("hinge_backward(x[2], label[1], margin=1.0, squared=False)"),
        "_backward_IdentityAttachKLSparseReg": described(
            "r = reciprocal(rho[1]); a = scale(r, factor=-0.1); o = rsub_scalar(rho, value=1.0); s = reciprocal(o); "
            "b = scale(s, factor=0.9); p = add(a, b); q = scale(p, factor=0.001); add(grad[2], q, dims=(1,))"
        ),
        "_backward_FullyConnected": described(
            "dx = mm(grad[2], weight[2]); dw = mm(grad, x[2], transpose_a=True); sum(grad, dims=(0,))"
        ),
        "_backward_Deconvolution": described(
            "dx = convolution(grad[4], weight[4], stride=(2, 2), padding=(1, 1)); "
            'dw = convolution_backward_weight(x[4], grad, stride=(2, 2), padding=(1, 1), extents={"dy": 3, "dx": 3}); '
            ''
            "sum(grad, dims=(0, 2, 3))"
        ),
        "_backward_InstanceNorm": described(
            "dw, db = normalize_backward_weights(grad[4], x[4], m[2], v[2], statistics=(0, 1), weights=(1,), "
            "eps=1e-3); "
            "p, s = normalize_backward_statistics(grad, x, m, v, w[1], statistics=(0, 1), weights=(1,), eps=1e-3); "
            "normalize_backward(grad, x, m, v, w, p, s, statistics=(0, 1), weights=(1,), eps=1e-3, count=20)"
        ),
        "_backward_L2Normalization": described(
            'p = einsum(grad[3], result[3], equation="ncx,ncx->n"); q = mul(result, p, dims=(0,)); d = sub(grad, q); '
            "div(d, length[1], dims=(0,))"
        ),
        "_backward_LRN": described(
            "p = pow_scalar(k[4], value=-0.75); a = mul(grad[4], p); g = mul(grad, result[4]); h = div(g, k); "
            "s = channel_window(h, reach=1); t = mul(x[4], s); u = scale(t, factor=-0.75); add(a, u)"
        ),
        "_backward_BilinearSampler": described(SAMPLER),
        "_backward_GridGenerator": described("affine_grid_backward(grad[4], size=(3, 2))"),
        "_backward_SpatialTransformer": described(SAMPLER + "; affine_grid_backward(dg, size=(3, 2))"),
        "_backward_ROIPooling": described(
            'roi_max_backward(grad[4], winner[4], rois[2], size=(4, 5), extents={"n": 2})'
        ),
        "_backward__contrib_PSROIPooling": described(
            "position_sensitive_roi_backward(grad[4], rois[2], pooled=(2, 2), size=(4, 5), scale=1.0, images=2)"
        ),
        "_backward_Correlation": described(
            "da = correlation_backward(grad[4], b[4], kernel=3, reach=1, stride=1, count=18.0, first=True, "
            "size=(6, 7)); "
            "correlation_backward(grad, a[4], kernel=3, reach=1, stride=1, count=18.0, first=False, size=(6, 7))"
        ),
        "_backward_UpSampling": described(
            "s = repeat_each_backward(grad[4], axis=2, times=2); repeat_each_backward(s, axis=3, times=2)"
        ),
        "_backward_SequenceLast": described('sequence_last_backward(grad[2], length[1], extents={"t": 4})'),
        "_backward_SequenceMask": described("sequence_mask(grad[3], length[1])"),
        "_backward_SequenceReverse": described('sequence_reverse(grad[3], length[1], extents={"i0": 4})'),
        "_backward_Concat": described("slice(grad[2], dim=1, start=4)", "one slice for each part"),
        "_backward_SliceChannel": described("cat(a[2], b[2], dim=1, sizes=(4, 3))"),
        "_backward_Crop": described(
            "constant_pad_nd(grad[4], low=(0, 0, 1, 1), high=(0, 0, 1, 2))"
        ),
        "_backward_Pad": described(
            'a = slice(grad[4], dim=2, start=1, extents={"i2": 2}); slice(a, dim=3, start=1, extents={"i3": 2})',
            "of zeros",
        ),
        "_backward_SwapAxis": described('permute(grad[3], dims=(0, 2, 1))'),
        "_backward__contrib_count_sketch": described("count_sketch_backward(grad[2], bucket[1], sign[1])"),
        "_backward__contrib_fft": described("ifft_last(grad[2], length=6)"),
        "_backward__contrib_ifft": described("fft_last(grad[2], length=6)"),
    }
)  # fmt: skip

LAYERS_BACKWARD = table(
    LAYERS,
    left_out("_backward__NDArray _backward__Native", CUSTOM),
    left_out(
        "_backward_CaffeLoss _backward_CaffeOp _backward_TorchCriterion _backward_TorchModule",
        "a layer of another framework, called whole",
    ),
    left_out(
        "_backward_RNN _backward__contrib_CTCLoss _backward_WarpCTC",
        "recurrence: every step needs the step after",
    ),
    left_out(
        "_backward__contrib_DeformableConvolution _backward__contrib_DeformablePSROIPooling",
        "not written: describable as the forward operator is, by a sum over pixels for each of its gradients",
    ),
)
"""Gradients that are registered for every operator of the older interface."""

BACKWARD = table(EXPLICIT, LAYERS_BACKWARD)
