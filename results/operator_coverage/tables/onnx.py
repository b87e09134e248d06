"""The operators of ONNX 1.23 (opset 28), and how each is described.

The preview domains and that of classical machine learning are included.

Operators that ONNX itself defines as functions of others are described directly where one description says it.
"""

from __future__ import annotations

from results.operator_coverage.tables.aten import ATEN
from results.operator_coverage.tables.entry import Entry, described, each, left_out, table

SELECTED = "an index read from a tensor, as a selection by value"
GENERATOR = "same distribution; the numbers are a function of seed, step and global index"


def as_in_aten(names: str) -> dict[str, Entry]:
    """Describe operators, written `theirs=aten's`, as PyTorch's of the same meaning."""
    return {theirs: ATEN[aten] for theirs, aten in (name.split("=") for name in names.split())}


UNARY = (
    each(
        "Abs=abs Acos=acos Acosh=acosh Asin=asin Asinh=asinh Atan=atan Atanh=atanh Ceil=ceil Cos=cos Cosh=cosh "
        "Elu=elu Erf=erf Exp=exp Floor=floor Gelu=gelu HardSigmoid=hardsigmoid HardSwish=hardswish IsInf=isinf "
        "IsNaN=isnan LeakyRelu=leaky_relu Log=log Neg=neg Reciprocal=reciprocal Relu=relu Round=round "
        "Sigmoid=sigmoid Sign=sign Sin=sin Sinh=sinh Softplus=softplus Softsign=softsign Sqrt=sqrt Swish=silu "
        "Tan=tan "
        "Tanh=tanh",
        "{}(x[2])",
    )
    | each("Identity=clone Cast=clone CastLike=clone", "{}(x[2])", "the values pass unchanged")
    | each("Not=logical_not BitwiseNot=bitwise_not", "{}(x[2])", "of truth values or bits")
    | {
        "Clip": described("clamp(x[2], min=-1.0, max=1.0)"),
        "Celu": described("d = scale(x[2], factor=0.5); e = elu(d); scale(e, factor=2.0)", "alpha = 2"),
        "Selu": described("elu(x[2], alpha=1.6732632, scale=1.0507010)"),
        "Mish": described("s = softplus(x[2]); t = tanh(s); mul(x, t)"),
        "ThresholdedRelu": described("m = gt_scalar(x[2], value=1.0); mul(x, m)"),
        "Shrink": described("shrink(x[2], threshold=0.5, bias=0.1)"),
        "PRelu": described("rectified(x[2], slope[2])"),
        "BitShift": described("shift_bits(x[2], bits[2])", "to the left; to the right is a floored quotient"),
        "SwiGLU": described(
            'h = reshape(x[2], source=(("b",), ("half", "h")), target=(("b",), ("half",), ("h",)), '
            'extents={"half": 2}); a, b = unbind(h, dim=1, n=2); '
            "s = silu(a); mul(s, b)"
        ),
        "DequantizeLinear": described("d = sub(x[2], zero[1], dims=(0,)); mul(d, scale_[1], dims=(0,))"),
        "QuantizeLinear": described("affine_quantize(x[2], scale_[0], zero[0], low=0, high=255)"),
    }
)

BINARY = (
    each(
        "Add=add Sub=sub Mul=mul Div=div Equal=eq Greater=gt GreaterOrEqual=ge Less=lt LessOrEqual=le "
        "Mod=remainder Pow=pow",
        "{}(a[3], b[1], dims=(1,))",
        "extents of 1 are dropped from the smaller operand",
    )
    | each("And=logical_and Or=logical_or Xor=logical_xor", "{}(a[2], b[2])", "of truth values")
    | each("BitwiseAnd=bitwise_and BitwiseOr=bitwise_or BitwiseXor=bitwise_xor", "{}(a[2], b[2])", "of bits")
    | {
        "Where": described("where(condition[2], a[2], b[2])"),
        "Max": described("m = maximum(a[2], b[2]); maximum(m, c[2])"),
        "Min": described("m = minimum(a[2], b[2]); minimum(m, c[2])"),
        "Sum": described("add_n(a[2], b[2], c[2])"),
        "Mean": described("s = add_n(a[2], b[2], c[2]); scale(s, factor=0.3333333333333333)"),
        "Expand": described('broadcast_axes(x[2], dims=(0,), extents={"i0": 3})'),
    }
)

CREATION = {
    "Constant": described('filled(value=1.0, rank=2, extents={"i0": 3, "i1": 4})', "or a tensor of the graph's own"),
    "ConstantOfShape": described('filled(value=1.0, rank=2, extents={"i0": 3, "i1": 4})'),
    "EyeLike": described('identity_matrix(extents={"i": 3, "j": 4})'),
    "Range": described('i = arange(extents={"i": 6}); s = scale(i, factor=0.5); add_scalar(s, value=1.0)'),
    "HannWindow": described('cosine_window(weights=(0.5, -0.5), period=8, extents={"i": 8})'),
    "HammingWindow": described('cosine_window(weights=(0.54347826, -0.45652174), period=8, extents={"i": 8})'),
    "BlackmanWindow": described('cosine_window(weights=(0.42, -0.5, 0.08), period=8, extents={"i": 8})'),
    "AffineGrid": described("affine_grid(theta[2], size=(4, 5))", "its axes permuted"),
}

RANDOM = each(
    "RandomUniform RandomUniformLike",
    'u = rand(step[0], rank=2, extents={"i0": 3, "i1": 4}); s = scale(u, factor=2.0); add_scalar(s, value=-1.0)',
    GENERATOR,
) | each(
    "RandomNormal RandomNormalLike",
    'z = randn(step[0], rank=2, extents={"i0": 3, "i1": 4}); s = scale(z, factor=2.0); add_scalar(s, value=-1.0)',
    GENERATOR,
) | {
    "Bernoulli": described("random_bernoulli(chance[2])", GENERATOR),
    "Multinomial": described("w = exp(logits[2]); sample_choice(w, draws=4)", GENERATOR),
    "Dropout": described("dropout(x[2], step[0], p=0.5)", GENERATOR),
}  # fmt: skip

INDEXING = as_in_aten("Gather=index_select GatherElements=gather ScatterElements=scatter Scatter=scatter") | {
    "GatherND": described(
        "index_select(a[3], indices[1], dim=0)", "with one index; several are merged into one; " + SELECTED
    ),
    "ScatterND": described("scatter_rows(x[2], indices[1], values[2])", "with one index; " + SELECTED),
    "TensorScatter": described("scatter_rows(x[2], indices[1], values[2])", SELECTED),
    "OneHot": described("one_hot(indices[1], depth=5)", SELECTED),
    "ReverseSequence": described('sequence_reverse(x[3], length[1], extents={"i0": 4})', SELECTED),
    "GridSample": ATEN["grid_sampler_2d"],
    "MaxRoiPool": described("m = roi_max(x[4], rois[2], pooled=(2, 2), scale=1.0); clear_empty(m)"),
    "RoiAlign": described(
        "roi_align(x[4], rois[2], images[1], pooled=(2, 2), size=(4, 5), scale=1.0, samples=2)",
        "a sum over all pixels, weighted by distance from the samples",
    ),
    "MaxUnpool": described(
        'r = reshape(values[4], source=(("n",), ("c",), ("y",), ("x",)), target=(("n",), ("c",), ("y", "x"))); '
        'i = reshape(index[4], source=(("n",), ("c",), ("y",), ("x",)), target=(("n",), ("c",), ("y", "x"))); '
        'scatter_last(r, i, extents={"i2": 20})',
        SELECTED,
    ),
}

MATRIX = as_in_aten("MatMul=bmm Gemm=addmm") | {
    "Einsum": described('einsum(a[3], b[3], equation="bhd,khd->bhk")'),
    "MatMulInteger": described("a = sub(x[2], zero[1], dims=(0,)); mm(a, w[2])"),
    "QLinearMatMul": described(
        "a = sub(x[2], x_zero[1], dims=(0,)); p = mm(a, w[2]); s = mul(p, scale_[1], dims=(1,)); "
        "affine_quantize(s, y_scale[0], y_zero[0], low=0, high=255)"
    ),
    "Det": described("determinant(a[3])"),
}

ATTENTION = (
    's = einsum(q[4], k[4], equation="bhqd,bhkd->bhqk"); t = scale(s, factor=0.5); {mask}'
    'm = amax(u, dims=(3,)); z = sum_exp(u, m); p = softmax(u, m, z); einsum(p, v[4], equation="bhqk,bhkd->bhqd")'
)
SOFTMAX_LOSS = "m = amax(x[2], dims=(1,)); t = sum_exp(x, m); cross_entropy(x, m, t, labels[1], count=3)"
RMS = "q = square(x[3]); s = mean(q, dims=(2,), count=4); e = add_scalar(s, value=1e-5); r = rsqrt(e); "

LAYERS = as_in_aten(
    "Softmax=_softmax LogSoftmax=_log_softmax BatchNormalization=_native_batch_norm_legit "
    "LayerNormalization=native_layer_norm GroupNormalization=native_group_norm Conv=convolution"
) | {
    "Attention": described(ATTENTION.replace("{mask}", "u = add(t, mask[2], dims=(2, 3)); ")),
    "RotaryEmbedding": described(
        "h = rotate_halves(x[4], half=2); c = mul(x, cosine[2], dims=(2, 3)); s = mul(h, sine[2], dims=(2, 3)); "
        "add(c, s)"
    ),
    "SoftmaxCrossEntropyLoss": described(SOFTMAX_LOSS),
    "NegativeLogLikelihoodLoss": described(
        "p = pick(x[2], labels[1], axis=1); s = sum(p, dims=(0,)); scale(s, factor=-0.3333333333333333)"
    ),
    "Hardmax": described("m = amax(x[2], dims=(1,)); i = index_of(x, m, dim=1); one_hot(i, depth=4)"),
    "InstanceNormalization": described(
        "m = mean(x[4], dims=(2, 3), count=20); v = var(x, m, dims=(2, 3), count=20); "
        "normalize(x, m, v, weight[1], bias[1], statistics=(0, 1), weights=(1,), eps=1e-5)"
    ),
    "MeanVarianceNormalization": described(
        "m = mean(x[4], dims=(0, 2, 3), count=40); d = sub(x, m, dims=(1,)); "
        "v = var(x, m, dims=(0, 2, 3), count=40); r = sqrt(v); e = add_scalar(r, value=1e-9); div(d, e, dims=(1,))"
    ),
    "RMSNormalization": described(RMS + "n = mul(x, r, dims=(0, 1)); mul(n, weight[1], dims=(2,))"),
    "LpNormalization": described(
        "q = square(x[2]); s = sum(q, dims=(1,)); r = sqrt(s); div(x, r, dims=(0,))", "p = 2; p = 1 likewise"
    ),
    "LRN": described(
        "q = square(x[4]); s = channel_window(q, reach=1); t = scale(s, factor=0.5); k = add_scalar(t, value=2.0); "
        "p = pow_scalar(k, value=-0.75); mul(x, p)"
    ),
    "DynamicQuantizeLinear": described(
        "h0 = amax(x[2], dims=(0, 1)); h = clamp(h0, min=0.0); l0 = amin(x, dims=(0, 1)); l = clamp(l0, max=0.0); "
        "r = sub(h, l); s = scale(r, factor=0.00392156862745098); z0 = div(l, s); z1 = neg(z0); z = round(z1); "
        "affine_quantize(x, s, z, low=0, high=255)"
    ),
    "CausalConvWithState": described(
        "joined = cat(state[3], x[3], dim=2, sizes=(2, 6)); "
        "depthwise_convolution(joined, weight[2])",
        "each channel's own filter, over the state and the sequence",
    ),
    "Adam": described("adam(w[2], grad[2], m[2], v[2], t[0], lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8)"),
    "Momentum": described("sgd_momentum(w[2], grad[2], velocity[2], lr=0.1, momentum=0.9)"),
    "Adagrad": described("adagrad(w[2], grad[2], squares[2], lr=0.1, eps=1e-8)"),
}  # fmt: skip

WINDOWS = as_in_aten("AveragePool=avg_pool2d MaxPool=max_pool2d_with_indices Col2Im=col2im") | {
    "ConvInteger": described(
        "a = add_scalar(x[4], value=-3); convolution(a, weight[4], stride=(1, 1), padding=(1, 1))"
    ),
    "QLinearConv": described(
        "a = add_scalar(x[4], value=-3); y = convolution(a, weight[4], stride=(1, 1), padding=(1, 1)); "
        "s = mul(y, scale_[1], dims=(1,)); affine_quantize(s, y_scale[0], y_zero[0], low=0, high=255)"
    ),
    "ConvTranspose": described(
        'convolution_backward_input(x[4], weight[4], stride=(2, 2), padding=(1, 1), extents={"y": 5, "x": 7})'
    ),
    "DeformConv": described(
        'deformable_convolution(x[4], offset[4], weight[4], stride=(1, 1), padding=(1, 1), extents={"y": 4, "x_": 5})'
    ),
    "LpPool": described(
        "q = square(x[4]); a = avg_pool2d(q, stride=(2, 2), padding=(1, 1), kernel=(3, 3)); "
        "s = scale(a, factor=9.0); sqrt(s)",
        "p = 2; others likewise",
    ),
    "Resize": described("bilinear_resize(x[4], size=(4, 5), bins=(6, 7))", "or nearest; cubic is a sum likewise"),
    "Upsample": described("nearest(x[4], size=(4, 5), bins=(6, 7))"),
    "GlobalAveragePool": described("mean(x[4], dims=(2, 3), count=20)"),
    "GlobalMaxPool": described("amax(x[4], dims=(2, 3))"),
    "GlobalLpPool": described("q = square(x[4]); s = sum(q, dims=(2, 3)); sqrt(s)", "p = 2; others likewise"),
}

REDUCTIONS = {
    "ReduceSum": described("sum(x[3], dims=(1,))"),
    "ReduceMean": described("mean(x[3], dims=(1,), count=4)"),
    "ReduceMax": described("amax(x[3], dims=(1,))"),
    "ReduceMin": described("amin(x[3], dims=(1,))"),
    "ReduceProd": described("prod(x[3], dims=(1,))"),
    "ReduceL1": described("a = abs(x[3]); sum(a, dims=(1,))"),
    "ReduceL2": described("q = square(x[3]); s = sum(q, dims=(1,)); sqrt(s)"),
    "ReduceSumSquare": described("q = square(x[3]); sum(q, dims=(1,))"),
    "ReduceLogSum": described("s = sum(x[3], dims=(1,)); log(s)"),
    "ReduceLogSumExp": described("m = amax(x[2], dims=(1,)); s = sum_exp(x, m); l = log(s); add(l, m)"),
    "ArgMax": ATEN["argmax"],
    "ArgMin": ATEN["argmin"],
    "CumSum": ATEN["cumsum"],
    "CumProd": described('prefix_product(x[3], dim=1, extents={"i1": 4})', "a product over the elements before"),
}

SHAPE = as_in_aten(
    "Concat=cat Pad=constant_pad_nd Reshape=view Flatten=view Slice=slice Split=split_with_sizes Squeeze=squeeze "
    "Unsqueeze=unsqueeze Tile=repeat Transpose=permute"
) | {
    "CenterCropPad": described(
        'c = slice(x[2], dim=1, start=1, extents={"i1": 2}); constant_pad_nd(c, low=(1, 0), high=(1, 0))'
    ),
    "Trilu": described("tril(x[3])", "or triu"),
    "DepthToSpace": described(
        'reshape(x[4], source=(("n",), ("by", "bx", "c"), ("y",), ("x",)), '
        'target=(("n",), ("c",), ("y", "by"), ("x", "bx")), extents={"by": 2, "bx": 2})'
    ),
    "SpaceToDepth": described(
        'reshape(x[4], source=(("n",), ("c",), ("y", "by"), ("x", "bx")), '
        'target=(("n",), ("by", "bx", "c"), ("y",), ("x",)), extents={"by": 2, "bx": 2})'
    ),
}

OPAQUE = as_in_aten("TopK=topk") | {
    "DFT": described("fft_last(x[2], length=6)", "whole along the transformed dimension"),
    "STFT": described("f = frames(x[2], step=2, length=6); fft_last(f, length=6)", "whole within a frame"),
}

CONTAINERS = "a sequence, map or optional value, which is no tensor"
STRINGS = "strings, which are no numbers"

LEFT_OUT = (
    left_out(
        "ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct "
        "SequenceEmpty "
        "SequenceErase SequenceInsert SequenceLength SplitToSequence SequenceMap",
        CONTAINERS,
    )
    | left_out("RegexFullMatch StringConcat StringNormalizer StringSplit", STRINGS)
    | left_out("TfIdfVectorizer", "dynamic: n-grams are looked up in a table of the model's own, as many as there are")
    | left_out("ImageDecoder", "host: a compressed image, whose shape is in its bytes")
    | left_out("If Loop Scan", "control flow: its body is a graph, of which every operator is described on its own")
    | left_out(
        "GRU LSTM RNN", "recurrence: every step needs the step before; unrolled, a cell is mm, add, sigmoid, tanh"
    )
    | left_out("LinearAttention", "recurrence: every step needs the state that the step before left")
    | left_out("Compress NonZero Unique", "dynamic shape: how many elements come out depends on their values")
    | left_out(
        "NonMaxSuppression",
        "dynamic shape, and ordering: boxes are kept greedily, each decision depending on those before",
    )
    | left_out("Shape Size", "host: a property of the tensor's shape, not of its elements")
    | left_out("BitCast", "bits: the same bits as another dtype, of which a description has no notion")
    | left_out("MelWeightMatrix", "a constant matrix, computed once on the host from numbers of the graph's own")
)

DEFAULT = table(
    UNARY,
    BINARY,
    CREATION,
    RANDOM,
    INDEXING,
    MATRIX,
    {name: entry for name, entry in LAYERS.items() if name not in {"Adam", "Momentum", "Adagrad"}},
    WINDOWS,
    REDUCTIONS,
    SHAPE,
    OPAQUE,
    LEFT_OUT,
)
"""The default domain."""

PREVIEW = table(
    {name: LAYERS[name] for name in ("Adam", "Momentum", "Adagrad")},
    {
        "FlexAttention": described(
            ATTENTION.replace("{mask}", "u = clone(t); "), "the scores' own functions are graphs of described operators"
        )
    },
    left_out("Gradient", "no operator on tensors: it asks for the gradient of a graph"),
)
"""The preview domains."""

CLASSICAL = table(
    {
        "Binarizer": described("m = gt_scalar(x[2], value=0.5); clone(m)"),
        "Scaler": described("d = sub(x[2], offset[1], dims=(1,)); mul(d, scale_[1], dims=(1,))"),
        "Normalizer": described(
            "q = square(x[2]); s = sum(q, dims=(1,)); r = sqrt(s); div(x, r, dims=(0,))", "or Max, L1"
        ),
        "LinearRegressor": described("p = mm(x[2], w[2], transpose_b=True); add(p, bias[1], dims=(1,))"),
        "OneHotEncoder": described("one_hot(indices[1], depth=5)", "of whole numbers"),
        "Imputer": described("m = isnan(x[2]); masked_fill(x, m, value=0.5)"),
        "ArrayFeatureExtractor": described("index_select(x[2], indices[1], dim=1)", SELECTED),
        "FeatureVectorizer": described("cat(a[2], b[2], dim=1, sizes=(4, 3))"),
        "LinearClassifier": described(
            "p = mm(x[2], w[2], transpose_b=True); s = add(p, bias[1], dims=(1,)); m = amax(s, dims=(1,)); "
            "index_of(s, m, dim=1)"
        ),
        "SVMRegressor": described(
            "d = distance(x[2], vectors[2], p=2.0); g = scale(d, factor=-0.5); k = exp(g); "
            'y = einsum(k, weights[1], equation="ns,s->n"); add_scalar(y, value=0.5)',
            "with a radial kernel; the others are products of matrices",
        ),
    },
    left_out("CastMap DictVectorizer ZipMap", CONTAINERS),
    left_out("CategoryMapper LabelEncoder", "strings, which are no numbers, looked up in a table"),
    left_out("SVMClassifier", "not written: votes of pairs of classes, of which every pair has vectors of its own"),
    left_out(
        "TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor",
        "data-dependent walk: the node visited next depends on the comparison at the node before",
    ),
)
"""The domain of classical machine learning."""
