"""Oracles of MXNet's operators."""

from __future__ import annotations

import numpy as np
from scipy import special

from tests.results.operator_coverage import oracles as o
from tests.results.operator_coverage.oracles import below, of, positive, real, table

X = real(3, 4)
UNARY = (
    table(
        "abs arccos arcsin arctan arctanh ceil cos cosh exp expm1 fix floor log1p negative reciprocal "
        "rint sign sin sinh square tan tanh trunc degrees radians",
        lambda name: of(getattr(np, name), X / 2),
    )
    | table("log log10 log2 sqrt", lambda name: of(getattr(np, name), positive(3, 4)))
    | {
        "arccosh": of(np.arccosh, 1 + positive(3, 4)),
        "arcsinh": of(np.arcsinh, X),
        "gamma": of(special.gamma, X),
        "gammaln": of(special.gammaln, X),
        "round": of(lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5), np.array([[-2.5, -1.2, -0.5], [0.5, 1.5, 2.4]])),
        "rsqrt": of(lambda x: x**-0.5, positive(3, 4)),
        "relu": of(lambda x: np.maximum(x, 0), X),
        "sigmoid": of(special.expit, X),
        "smooth_l1": of(lambda x: np.where(np.abs(x) < 1, x * x / 2, np.abs(x) - 0.5), X),
        "clip": of(lambda x: np.clip(x, -1, 1), X),
        "Activation": of(lambda x: np.maximum(x, 0), X),
        "LeakyReLU": of(lambda x: np.where(x > 0, x, x / 4), X),
        "LogisticRegressionOutput": of(special.expit, X),
    }
    | table(
        "BlockGrad _copy Cast make_loss MakeLoss _CrossDeviceCopy LinearRegressionOutput MAERegressionOutput SVMOutput "
        "_identity_with_attr_like_rhs IdentityAttachKLSparseReg",
        lambda _: of(lambda x: x, X),
    )
)

FUNCTIONS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "mod": np.mod, "power": np.power,
    "hypot": np.hypot, "maximum": np.maximum, "minimum": np.minimum, "equal": np.equal, "not_equal": np.not_equal,
    "greater": np.greater, "greater_equal": np.greater_equal, "lesser": np.less, "lesser_equal": np.less_equal,
}  # fmt: skip
WHOLE = np.array([[1.0, 2.0, 3.0], [4.0, 0.5, 2.0]])
OTHER = np.array([[1.0, 3.0, 2.0], [4.0, 2.5, 2.0]])
LOGIC = "equal not_equal greater greater_equal lesser lesser_equal"

BINARY = (
    table(
        "_mod=mod _power=power _hypot=hypot _maximum=maximum _minimum=minimum _sub=sub _mul=mul _div=div "
        "elemwise_add=add _grad_add=add " + " ".join(f"_{name}={name}" for name in LOGIC.split()),
        lambda name: of(FUNCTIONS[name], WHOLE, OTHER),
    )
    | table(
        " ".join(f"broadcast_{name}={name}" for name in FUNCTIONS),
        lambda name: of(lambda a, b: FUNCTIONS[name](a, b[:, None]), positive(2, 3, 4), positive(3)),
    )
    | table(
        " ".join(f"_{name}_scalar={name}" for name in LOGIC.split()),
        lambda name: of(lambda x: FUNCTIONS[name](x, 2.0), WHOLE),
    )
    | {
        "add_n": of(lambda a, b, c: a + b + c, X, X * X, -X),
        "where": of(lambda c, a, b: np.where(c != 0, a, b), below(2, 3, 4), X, -X),
        "_plus_scalar": of(lambda x: x + 2, X),
        "_minus_scalar": of(lambda x: x - 2, X),
        "_rminus_scalar": of(lambda x: 2 - x, X),
        "_mul_scalar": of(lambda x: x * 2, X),
        "_div_scalar": of(lambda x: x / 2, X),
        "_rdiv_scalar": of(lambda x: 2 / x, X),
        "_mod_scalar": of(lambda x: np.mod(x, 2), X),
        "_rmod_scalar": of(lambda x: np.mod(2, x), positive(3, 4)),
        "_power_scalar": of(lambda x: x**2, X),
        "_rpower_scalar": of(lambda x: 2**x, X),
        "_hypot_scalar": of(lambda x: np.hypot(x, 2), X),
        "_maximum_scalar": of(lambda x: np.maximum(x, 2), WHOLE),
        "_minimum_scalar": of(lambda x: np.minimum(x, 2), WHOLE),
    }
)


def momentum(w, g, m):
    step = 0.9 * m - 0.1 * 0.01 * w - 0.1 * g
    return w + step, step


def adam(w, g, m, v):
    mean, square = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return w - 0.1 * mean / (np.sqrt(square) + 1e-8), mean, square


def rmsprop(w, g, n):
    square = 0.05 * g * g + 0.95 * n
    return w - 0.1 * g / np.sqrt(square + 1e-8), square


def rmsprop_centered(w, g, n, mean, delta):
    square, first = 0.05 * g * g + 0.95 * n, 0.05 * g + 0.95 * mean
    step = 0.9 * delta - 0.1 * g / np.sqrt(square - first**2 + 1e-8)
    return w + step, square, first, step


OPTIMIZERS = {
    "sgd_update": of(lambda w, g: w - 0.1 * (g + 0.01 * w), X, -X),
    "mp_sgd_update": of(lambda w, g: w - 0.1 * (g + 0.01 * w), X, -X),
    "sgd_mom_update": of(momentum, X, real(3, 4), real(3, 4)),
    "mp_sgd_mom_update": of(lambda *a: momentum(*a)[0], X, real(3, 4), real(3, 4)),
    "adam_update": of(adam, X, real(3, 4), real(3, 4), positive(3, 4)),
    "rmsprop_update": of(rmsprop, X, real(3, 4), positive(3, 4)),
    "rmspropalex_update": of(rmsprop_centered, X, real(3, 4), 9 + positive(3, 4), real(3, 4), real(3, 4)),
}

PIXELS = [(y, x, k) for y in range(3) for x in range(4) for k in range(2)]
CREATION = (
    table("_zeros zeros_like", lambda _: of(lambda: np.zeros((3, 4))))
    | table("_ones ones_like", lambda _: of(lambda: np.ones((3, 4))))
    | {
        "_arange": of(lambda: np.arange(1, 4, 0.5)),
        "_contrib_MultiBoxPrior": of(
            lambda: np.array(
                [
                    [
                        [(x + 0.5) / 4 - w, (y + 0.5) / 3 - h, (x + 0.5) / 4 + w, (y + 0.5) / 3 + h]
                        for y, x, k in PIXELS
                        for w, h in [((0.25, 0.25), (0.5, 0.125))[k]]
                    ]
                ]
            )
        ),
    }
)

LENGTH = np.array([2, 4], np.int32)
IMAGE = real(2, 3, 4, 5)
INDEX = below(4, 2, 5)
INDEXING = {
    "Embedding": of(lambda w, i: w[i], real(6, 3), below(6, 2, 4)),
    "take": of(lambda a, i: a[i], real(6, 3), below(6, 4)),
    "batch_take": of(lambda a, i: a[np.arange(5), i], real(5, 4), below(4, 5)),
    "pick": of(lambda x, i: np.take_along_axis(x, i[:, None], 1)[:, 0], real(2, 4, 5), INDEX),
    "one_hot": of(lambda i: np.eye(5)[i], below(5, 4)),
    "SequenceLast": of(lambda x, n: x[n - 1, np.arange(2)], real(4, 2, 3), LENGTH),
    "SequenceMask": of(lambda x, n: np.where((np.arange(4)[:, None] < n)[..., None], x, 0), real(4, 2, 3), LENGTH),
    "SequenceReverse": of(o.reverse_sequences, real(4, 2, 3), LENGTH),
    "_contrib_count_sketch": of(o.sketch, real(2, 5), below(3, 5), np.array([1.0, -1, 1, 1, -1])),
    "BilinearSampler": of(o.sample, IMAGE, real(2, 2, 3, 2) * 0.6),
    "GridGenerator": of(lambda theta: o.affine_grid(theta, 4, 5), real(2, 6)),
    "SpatialTransformer": of(lambda theta, x: o.sample(x, o.affine_grid(theta, 3, 2)), real(2, 6), IMAGE),
    "ROIPooling": of(o.roi_pool, IMAGE, o.ROIS),
    "_contrib_PSROIPooling": of(o.psroi_pool, real(2, 8, 4, 5), o.ROIS),
    "_contrib_DeformableConvolution": of(o.deformable_convolution, IMAGE, real(2, 18, 4, 5), real(2, 3, 3, 3)),
    "_contrib_DeformablePSROIPooling": of(o.deformable_psroi, real(2, 8, 4, 5), o.ROIS, real(3, 2, 2, 2)),
}

MATRIX = {
    "dot": of(lambda a, b: a @ b, X, real(4, 2)),
    "batch_dot": of(lambda a, b: a @ b, real(2, 3, 4), real(2, 4, 5)),
    "FullyConnected": of(lambda x, w, b: x @ w.T + b, X, real(5, 4), real(5)),
    "linalg_gemm": of(lambda a, b, c: 2 * a @ b + c / 2, real(2, 3, 4), real(2, 4, 5), real(2, 3, 5)),
    "linalg_gemm2": of(lambda a, b: 2 * a @ b, real(2, 3, 4), real(2, 4, 5)),
    "linalg_trmm": of(lambda a, b: 2 * np.tril(a) @ b, real(2, 3, 3), real(2, 3, 4)),
    "linalg_sumlogdiag": of(lambda a: np.log(np.einsum("bii->bi", a)).sum(1), positive(2, 3, 3)),
    "linalg_potrf": of(np.linalg.cholesky, o.definite(2, 3, 3)),
    "linalg_potri": of(lambda a: np.linalg.inv(a @ a.swapaxes(1, 2)), o.triangles(2, 3, 3)),
    "linalg_trsm": of(lambda a, b: 2 * np.linalg.solve(a, b), o.triangles(2, 3, 3), real(2, 3, 4)),
}

CONVOLVED = of(lambda x, w, b: o.convolve(x, w) + b[:, None, None], IMAGE, real(2, 3, 3, 3), real(2))
WINDOWS = {
    "Convolution": CONVOLVED,
    "Convolution_v1": CONVOLVED,
    "Deconvolution": of(
        lambda x, w, b: o.deconvolve(x, w, (5, 7)) + b[:, None, None], real(1, 2, 3, 4), real(2, 2, 3, 3), real(2)
    ),
    "Pooling": of(o.max_pool, IMAGE),
    "Pooling_v1": of(o.max_pool, IMAGE),
    "Correlation": of(o.correlation, real(1, 2, 6, 7), real(1, 2, 6, 7)),
    "UpSampling": of(lambda x: x.repeat(2, 2).repeat(2, 3), IMAGE),
}


def instance_norm(x, weight, bias):
    return o.batch_norm(x, weight, bias, 1e-3, (2, 3))


NORMALIZATION = (
    table("BatchNorm BatchNorm_v1 CuDNNBatchNorm", lambda _: of(o.batch_norm, IMAGE, positive(3), real(3)))
    | table("Softmax SoftmaxActivation SoftmaxOutput softmax", lambda _: of(o.softmax, X))
    | {
        "log_softmax": of(lambda x: special.log_softmax(x, axis=1), X),
        "softmax_cross_entropy": of(
            lambda x, i: -special.log_softmax(x, axis=1)[np.arange(3), i].sum(), X, below(4, 3)
        ),
        "InstanceNorm": of(instance_norm, IMAGE, positive(3), real(3)),
        "L2Normalization": of(lambda x: x / np.sqrt((x * x).sum((1, 2), keepdims=True) + 1e-10), real(2, 3, 4)),
        "LRN": of(o.lrn, IMAGE),
    }
)

CUBE = real(2, 4, 3)
REDUCTIONS = table("sum mean prod max min argmax argmin", lambda name: of(lambda x: getattr(np, name)(x, 1), CUBE)) | {
    "nansum": of(lambda x: np.nansum(x, 1), o.with_nan(CUBE)),
    "nanprod": of(lambda x: np.nanprod(x, 1), o.with_nan(CUBE)),
    "norm": of(lambda x: np.sqrt((x * x).sum()), X),
    "argmax_channel": of(lambda x: x.argmax(1), X),
}

ORDERING = table("sort argsort", lambda _: of(lambda x: (np.sort(x), np.argsort(x)), X)) | {
    "topk": of(lambda x: (-np.sort(-x)[:, :2], np.argsort(-x)[:, :2]), X),
    "_contrib_fft": of(lambda x: o.interleave(np.fft.fft(x)), real(2, 6)),
    "_contrib_ifft": of(lambda x: 6 * np.fft.ifft(x[:, ::2] + 1j * x[:, 1::2]).real, real(2, 12)),
}

SHAPE = (
    table("broadcast_to broadcast_axis", lambda _: of(lambda x: np.broadcast_to(x, (3, 4)), real(1, 4)))
    | table("Flatten Reshape", lambda _: of(lambda x: x.reshape(2, 12), CUBE))
    | {
        "Concat": of(lambda a, b: np.concatenate([a, b], 1), X, real(3, 3)),
        "stack": of(lambda a, b: np.stack([a, b], 1), X, -X),
        "SliceChannel": of(lambda x: tuple(x[:, k] for k in range(4)), CUBE),
        "slice": of(lambda x: x[1:3, 1::2], X),
        "slice_axis": of(lambda x: x[1:3], X),
        "Crop": of(lambda x: x[:, :, 1:3, 1:3], IMAGE),
        "Pad": of(lambda x: np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 2))), IMAGE),
        "expand_dims": of(lambda x: x[:, None], X),
        "SwapAxis": of(lambda x: x.swapaxes(1, 2), CUBE),
        "transpose": of(lambda x: x.transpose(2, 0, 1), CUBE),
        "repeat": of(lambda x: x.repeat(3, 1), X),
        "tile": of(lambda x: np.tile(x, (2, 3)), X),
        "reverse": of(lambda x: x[::-1], X),
        "_slice_assign": of(o.assigned, X, real(2, 3)),
        "_crop_assign_scalar": of(lambda x: o.assigned(x, 1.5), X),
    }
)

QUANTIZED = {
    "_contrib_quantize": of(
        lambda x, low, high: np.floor((x - low) * (255 / (high - low)) + 0.5), X, np.array(-2.0), np.array(2.0)
    ),
    "_contrib_dequantize": of(
        lambda x, low, high: x * ((high - low) / 255) + low, below(255, 3, 4) * 1.0, np.array(-2.0), np.array(2.0)
    ),
}

ORACLES = {
    **UNARY, **BINARY, **OPTIMIZERS, **CREATION, **INDEXING, **MATRIX, **WINDOWS, **NORMALIZATION, **REDUCTIONS,
    **ORDERING, **SHAPE, **QUANTIZED,
}  # fmt: skip
