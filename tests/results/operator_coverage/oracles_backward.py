"""Oracles of MXNet's gradients: central differences of what the forward operators compute, contracted with `grad`."""

from __future__ import annotations

import numpy as np
from scipy import special

from tests.results.operator_coverage import oracles as o
from tests.results.operator_coverage import oracles_mxnet as forward
from tests.results.operator_coverage.oracles import below, of, positive, real, table

STEP = 1e-5
X = real(3, 4) / 2


def slopes(function, number, grad, *operands):
    """Gradient of operand `number`: sum(grad * (function(x + h) - function(x - h))) / 2h, element by element."""
    grad, operand = np.asarray(grad), operands[number]
    found = np.zeros(operand.shape)
    for at in np.ndindex(*operand.shape):
        ends = []
        for step in (STEP, -STEP):
            moved = operand.copy()
            moved[at] += step
            ends.append(function(*operands[:number], moved, *operands[number + 1 :]))
        found[at] = (grad * (ends[0] - ends[1])).sum() / (2 * STEP)
    return found


def differences(function, *operands, at=0, order=None):
    """Oracle of the gradient of operand `at` of a function, for a random gradient of its result.

    `order` says in which order the composition takes (grad, *operands); those it does not take are left out.
    """
    operands = tuple(np.asarray(operand) for operand in operands)
    grad = real(*np.shape(function(*operands)))
    every = (grad, *operands)
    order = range(len(every)) if order is None else order
    return of(lambda *_: slopes(function, at, *every), *(every[number] for number in order))


def by_result(function, *operands, at=0, extra=()):
    """Oracle of a gradient that is computed from (grad, the function's own result, some operands)."""
    operands = tuple(np.asarray(operand) for operand in operands)
    result = function(*operands)
    grad = real(*np.shape(result))
    return of(lambda *_: slopes(function, at, grad, *operands), grad, result, *(operands[number] for number in extra))


def pairs(function, a, b, at=None):
    """Oracle of both gradients of a binary function (`at`: of that one only, in the order grad, a, b)."""
    grad = real(*np.shape(function(a, b)))
    if at is not None:
        return of(lambda g, x, y: slopes(function, at, g, x, y), grad, a, b)
    return of(lambda g, x, y: (slopes(function, 0, g, x, y), slopes(function, 1, g, x, y)), grad, a, b)


UNARY = table(
    "_backward_abs=abs _backward_arccos=arccos _backward_arcsin=arcsin _backward_arctan=arctan "
    "_backward_arctanh=arctanh _backward_cos=cos _backward_cosh=cosh _backward_expm1=expm1 _backward_log1p=log1p "
    "_backward_sin=sin _backward_sinh=sinh _backward_square=square _backward_reciprocal=reciprocal "
    "_backward_arcsinh=arcsinh",
    lambda name: differences(getattr(np, name), X),
) | {
    "_backward_arccosh": differences(np.arccosh, 1 + positive(3, 4)),
    "_backward_rsqrt": differences(lambda x: x**-0.5, positive(3, 4)),
    "_backward_gamma": differences(special.gamma, positive(3, 4)),
    "_backward_gammaln": differences(special.gammaln, positive(3, 4)),
    "_backward_log": differences(np.log, positive(3, 4)),
    "_backward_relu": by_result(lambda x: np.maximum(x, 0), X),
    "_backward_sigmoid": by_result(special.expit, X),
    "_backward_tanh": by_result(np.tanh, X),
    "_backward_sqrt": by_result(np.sqrt, positive(3, 4)),
    "_backward_tan": of(lambda y, g: slopes(np.tan, 0, g, np.arctan(y)), np.tan(X), real(3, 4)),
    "_backward_sign": of(lambda: np.zeros((3, 4))),
    "_backward_degrees": differences(np.degrees, X, order=[0]),
    "_backward_radians": differences(np.radians, X, order=[0]),
    "_backward_smooth_l1": differences(lambda x: np.where(np.abs(x) < 1, x * x / 2, np.abs(x) - 0.5), 2 * X),
    "_backward_clip": differences(lambda x: np.clip(x, -1, 1), 2 * X),
    "_backward_copy": of(lambda g: g, X),
}

A, B = positive(3, 4), positive(3, 4) + 0.1
CUBE, VECTOR = positive(2, 3, 4), positive(3) + 0.1


def spread(function):
    return lambda a, b: function(a, b[:, None])


BINARY = (
    table(
        "_backward_mod=mod _backward_power=power _backward_hypot=hypot _backward_maximum=maximum "
        "_backward_minimum=minimum",
        lambda name: pairs(getattr(np, name), A, B),
    )
    | table(
        "_backward_broadcast_mod=mod _backward_broadcast_power=power _backward_broadcast_hypot=hypot "
        "_backward_broadcast_maximum=maximum _backward_broadcast_minimum=minimum",
        lambda name: pairs(spread(getattr(np, name)), CUBE, VECTOR, at=1),
    )
    | {
        "_backward_add": differences(np.add, A, B, at=1, order=[0]),
        "_backward_sub": differences(np.subtract, A, B, at=1, order=[0]),
        "_backward_mul": differences(np.multiply, A, B, at=1, order=[0, 2, 1]),
        "_backward_div": differences(np.divide, A, B, at=1, order=[0, 2, 1]),
        "_backward_broadcast_add": differences(spread(np.add), CUBE, VECTOR, at=1, order=[0]),
        "_backward_broadcast_sub": differences(spread(np.subtract), CUBE, VECTOR, at=1, order=[0]),
        "_backward_broadcast_mul": differences(spread(np.multiply), CUBE, VECTOR, at=1, order=[0, 2, 1]),
        "_backward_broadcast_div": differences(spread(np.divide), CUBE, VECTOR, at=1, order=[0, 2, 1]),
        "_broadcast_backward": of(lambda g: g.sum((0, 2)), real(2, 3, 4)),
        "_backward_hypot_scalar": differences(lambda x: np.hypot(x, 2), X),
        "_backward_maximum_scalar": differences(lambda x: np.maximum(x, 0.5), X, order=[1, 0]),
        "_backward_minimum_scalar": differences(lambda x: np.minimum(x, 0.5), X, order=[1, 0]),
        "_backward_mod_scalar": differences(lambda x: np.mod(x, 2), X, order=[0]),
        "_backward_rmod_scalar": differences(lambda x: np.mod(2, x), B),
        "_backward_power_scalar": differences(lambda x: x**2, X),
        "_backward_rpower_scalar": differences(lambda x: 2**x, X),
        "_backward_rdiv_scalar": differences(lambda x: 2 / x, B),
        "_backward_where": of(lambda c, g: np.where(c != 0, 0, g), below(2, 3, 4), real(3, 4)),
    }
)

ALONG = {
    "_backward_sum": differences(lambda x: x.sum(1), CUBE.swapaxes(1, 2), order=[0]),
    "_backward_mean": differences(lambda x: x.mean(1), CUBE.swapaxes(1, 2), order=[0]),
    "_backward_prod": by_result(lambda x: x.prod(1), CUBE.swapaxes(1, 2), extra=[0]),
    "_backward_softmax": by_result(o.softmax, X),
}


def nan_gradient(function):
    """Gradient where some elements are not numbers, and have none."""
    x = o.with_nan(CUBE.swapaxes(1, 2))
    result = function(x)
    grad = real(*result.shape)
    expected = np.where(np.isnan(x), 0, np.nan_to_num(slopes(function, 0, grad, x)))
    return x, result, grad, expected


X_SUM, _, G_SUM, E_SUM = nan_gradient(lambda x: np.nansum(x, 1))
X_PROD, R_PROD, G_PROD, E_PROD = nan_gradient(lambda x: np.nanprod(x, 1))
LOG = by_result(lambda x: special.log_softmax(x, axis=1), X)
LABELS = below(4, 3)


def extreme(function):
    x = real(2, 4, 3)
    grad = real(2, 3)
    return of(lambda g, x, _: slopes(function, 0, g, x), grad, x, function(x))


ALONG |= {
    "_backward_log_softmax": LOG,
    "_backward_nansum": of(lambda *_: E_SUM, G_SUM, X_SUM),
    "_backward_nanprod": of(lambda *_: E_PROD, G_PROD, R_PROD, X_PROD),
    "_backward_softmax_cross_entropy": of(
        lambda x, i: slopes(lambda x: -special.log_softmax(x, axis=1)[np.arange(3), i].sum(), 0, 1.0, x), X, LABELS
    ),
    "_backward_max": extreme(lambda x: x.max(1)),
    "_backward_min": extreme(lambda x: x.min(1)),
}


def added(grad, index, size):
    """Rows of a gradient added where they were read."""
    out = np.zeros((size, *grad.shape[index.ndim :]))
    np.add.at(out, index, grad)
    return out


def spread_out(grad, index, size=5):
    out = np.zeros((len(grad), size))
    for row, column in np.ndindex(*grad.shape):
        out[row, index[row, column]] += grad[row, column]
    return out


def picked(grad, index):
    out = np.zeros((2, 4, 3))
    np.put_along_axis(out, index[:, None], grad[:, None], 1)
    return out


INDEXING = {
    "_backward_Embedding": of(lambda g, i: added(g, i, 5), real(2, 4, 3), below(5, 2, 4)),
    "_backward_take": of(lambda g, i: added(g, i, 5), real(4, 3), below(5, 4)),
    "_backward_pick": of(picked, real(2, 3), below(4, 2, 3)),
    "_backward_topk": of(spread_out, real(3, 2), below(5, 3, 2)),
    "_backward_sample_multinomial": of(
        lambda g, i, w: spread_out(g, i) / w, real(3, 2), below(5, 3, 2), positive(3, 5)
    ),
    "_backward_SequenceLast": differences(
        lambda x, n: x[n - 1, np.arange(2)], real(4, 2, 3), forward.LENGTH, order=[0, 2]
    ),
    "_backward_SequenceMask": forward.ORACLES["SequenceMask"],
    "_backward_SequenceReverse": differences(o.reverse_sequences, real(4, 2, 3), forward.LENGTH, order=[0, 2]),
    "_backward__contrib_count_sketch": differences(
        o.sketch, real(2, 5), below(3, 5), np.array([1.0, -1, 1, 1, -1]), order=[0, 2, 3]
    ),
}

LEFT, RIGHT = real(2, 3, 4), real(2, 4, 5)
LOWER = o.triangles(2, 3, 3)
SOLVED = 2 * np.linalg.solve(LOWER, real(2, 3, 4))


def symmetric(function):
    """Gradient of a function of symmetric matrices, each of a pair of elements having half."""
    return lambda a: function((a + a.swapaxes(1, 2)) / 2)


def cholesky_gradient():
    a = o.definite(2, 3, 3)
    grad = np.tril(real(2, 3, 3))
    expected = slopes(symmetric(np.linalg.cholesky), 0, grad, a)
    return of(lambda *_: expected, np.linalg.cholesky(a), grad)


def inverse(factor):
    factor = np.tril(factor)
    return np.linalg.inv(factor @ factor.swapaxes(1, 2))


MATRIX = {
    "_backward_dot": differences(lambda a, b: a @ b, X, real(4, 2), at=1, order=[0, 2, 1]),
    "_backward_batch_dot": differences(lambda a, b: a @ b, LEFT, RIGHT, at=1, order=[0, 2, 1]),
    "_backward_linalg_gemm2": differences(lambda a, b: 2 * a @ b, LEFT, RIGHT, at=1, order=[0, 2, 1]),
    "_backward_linalg_gemm": differences(
        lambda a, b, c: 2 * a @ b + c / 2, LEFT, RIGHT, real(2, 3, 5), at=2, order=[0, 2, 1]
    ),
    "_backward_linalg_sumlogdiag": differences(lambda a: np.log(np.einsum("bii->bi", a)).sum(1), positive(2, 3, 3)),
    "_backward_linalg_trmm": differences(
        lambda a, b: 2 * np.tril(a) @ b, real(2, 3, 3), real(2, 3, 4), order=[1, 0, 2]
    ),
    "_backward_linalg_potrf": cholesky_gradient(),
    "_backward_linalg_potri": by_result(inverse, LOWER, extra=[0]),
}
_solve = differences(lambda a, b: 2 * np.linalg.solve(np.tril(a), b), LOWER, real(2, 3, 4), order=[1, 0, 2])
MATRIX["_backward_linalg_trsm"] = of(
    _solve.function, _solve.operands[0], _solve.operands[1],
    2 * np.linalg.solve(LOWER, _solve.operands[2]),
)  # fmt: skip
MATRIX["_backward_linalg_potri"] = of(
    MATRIX["_backward_linalg_potri"].function,
    *(MATRIX["_backward_linalg_potri"].operands[number] for number in (1, 0, 2)),
)

SHAPE = {
    "_backward_slice": differences(lambda x: x[1:3], real(4, 3), order=[0]),
    "_backward_stack": of(lambda g: (g[:, 0], g[:, 1]), real(3, 2, 4)),
    "_backward_reverse": of(lambda g: g[::-1], X),
    "_backward_repeat": differences(lambda x: x.repeat(3, 1), X, order=[0]),
    "_backward_tile": differences(lambda x: np.tile(x, (2, 3)), X, order=[0]),
    "_backward_Concat": of(lambda g: g[:, 4:], real(3, 7)),
    "_backward_SliceChannel": of(lambda a, b: np.concatenate([a, b], 1), X, real(3, 3)),
    "_backward_Crop": of(lambda g: np.pad(g, ((0, 0), (0, 0), (1, 1), (1, 2))), real(2, 3, 2, 2)),
    "_backward_Pad": of(lambda g: g[:, :, 1:3, 1:3], real(2, 3, 4, 5)),
    "_backward_SwapAxis": of(lambda g: g.swapaxes(1, 2), CUBE),
    "_backward__contrib_fft": differences(lambda x: o.interleave(np.fft.fft(x)), real(2, 6), order=[0]),
    "_backward__contrib_ifft": differences(
        lambda x: 6 * np.fft.ifft(x[:, ::2] + 1j * x[:, 1::2]).real, real(2, 12), order=[0]
    ),
}

IMAGE = real(1, 2, 4, 5)
HIDDEN = IMAGE.mean((2, 3)), IMAGE.var((2, 3))
PLACES = o.max_pool(real(2, 2, 4, 5))[1].astype(np.int32)


def svm(x, labels, margin=1.0):
    side = np.where(np.arange(4) == labels[:, None], 1, -1)
    return np.maximum(margin - side * x, 0)


def penalty(rho):
    """Slope of the divergence from a mean activation of 0.1."""
    return 0.001 * (-0.1 / rho + 0.9 / (1 - rho))


def unpool(grad, places):
    out = np.zeros((2, 2, 4, 5))
    for n, c, y, x in np.ndindex(*grad.shape):
        row, column = y * 2 - 1 + places[n, c, y, x] // 3, x * 2 - 1 + places[n, c, y, x] % 3
        out[n, c, row, column] += grad[n, c, y, x]
    return out


def l2(x):
    return x / np.sqrt((x * x).sum((1, 2), keepdims=True))


GRID = real(1, 2, 3, 2) * 0.6
NEAR = 2 + 0.5 * sum(np.pad(IMAGE**2, ((0, 0), (1, 1), (0, 0), (0, 0)))[:, d : d + 2] for d in range(3))
WON = below(20, 3, 2, 2, 2)


def won(grad, winner, rois):
    out = np.zeros((2, 2, 20))
    for r, c, py, px in np.ndindex(*grad.shape):
        out[int(rois[r, 0]), c, winner[r, c, py, px]] += grad[r, c, py, px]
    return out.reshape(2, 2, 4, 5)


def normalized(axes, eps):
    return lambda x, w: o.batch_norm(x, w, np.zeros_like(w), eps, axes)


def through(axes, eps, statistics):
    weight, grad = positive(2), real(*IMAGE.shape)
    function = normalized(axes, eps)
    return of(lambda g, x, m, v, w: slopes(function, 0, g, x, w), grad, IMAGE, *statistics, weight)


BATCH_NORM_IMAGE = real(2, 2, 4, 5)
LAYERS = {
    "_backward_Convolution": of(lambda g, w, x: g.sum((0, 2, 3)), real(1, 2, 4, 5), real(2, 3, 3, 3), real(1, 3, 4, 5)),
    "_backward_Deconvolution": of(
        lambda g, w, x: g.sum((0, 2, 3)), real(1, 2, 5, 7), real(2, 2, 3, 3), real(1, 2, 3, 4)
    ),
    "_backward_FullyConnected": of(lambda g, w, x: g.sum(0), real(3, 5), real(5, 4), X),
    "_backward_Pooling": of(unpool, real(2, 2, 2, 3), PLACES),
    "_backward_BatchNorm": of(
        lambda g, x, m, v, w: slopes(normalized((0, 2, 3), 1e-5), 0, g, x, w),
        real(2, 2, 4, 5), BATCH_NORM_IMAGE, BATCH_NORM_IMAGE.mean((0, 2, 3)), BATCH_NORM_IMAGE.var((0, 2, 3)),
        positive(2),
    ),
    "_backward_InstanceNorm": through((2, 3), 1e-3, HIDDEN),
    "_backward_L2Normalization": of(
        lambda g, *_: slopes(l2, 0, g, CUBE), real(2, 3, 4), l2(CUBE), np.sqrt((CUBE * CUBE).sum((1, 2)))
    ),
    "_backward_LRN": of(
        lambda k, g, r, x: slopes(o.lrn, 0, g, x), NEAR, real(*IMAGE.shape), IMAGE * NEAR**-0.75, IMAGE
    ),
    "_backward_LinearRegressionOutput": of(lambda y, label: y - label, X, real(3, 4)),
    "_backward_MAERegressionOutput": of(lambda y, label: np.sign(y - label), X, real(3, 4)),
    "_backward_SoftmaxOutput": of(lambda i, y: y - np.eye(4)[i], LABELS, o.softmax(X)),
    "_backward_SVMOutput": of(lambda x, i: slopes(lambda x: svm(x, i), 0, 1.0, x), X, LABELS),
    "_backward_IdentityAttachKLSparseReg": of(lambda rho, g: g + penalty(rho), positive(4) / 4, X),
    "_backward_LeakyReLU": differences(lambda x: np.where(x > 0, x, x / 4), X),
    "_backward_MakeLoss": of(lambda: np.ones((3, 4))),
    "_backward_BilinearSampler": of(
        lambda g, grid, x: slopes(lambda grid: o.sample(x, grid), 0, g, grid), real(1, 2, 3, 2), GRID, IMAGE
    ),
    "_backward_GridGenerator": differences(lambda theta: o.affine_grid(theta, 3, 2), real(2, 6), order=[0]),
    "_backward_SpatialTransformer": of(
        lambda g, grid, x: np.einsum(
            "ncyx,kyx->nck",
            slopes(lambda grid: o.sample(x, grid), 0, g, grid),
            np.stack([*np.meshgrid(np.linspace(-1, 1, 2), np.linspace(-1, 1, 3)), np.ones((3, 2))]),
        ).reshape(1, 6),
        real(1, 2, 3, 2), GRID, IMAGE,
    ),
    "_backward_ROIPooling": of(won, real(3, 2, 2, 2), WON, o.ROIS),
    "_backward__contrib_PSROIPooling": of(
        lambda g, rois: slopes(lambda x: o.psroi_pool(x, rois), 0, g, np.zeros((2, 8, 4, 5))), real(3, 2, 2, 2), o.ROIS
    ),
    "_backward_Correlation": of(
        lambda g, b, a: slopes(o.correlation, 1, g, a, b), real(1, 9, 2, 3), real(1, 2, 6, 7), real(1, 2, 6, 7)
    ),
    "_backward_UpSampling": differences(lambda x: x.repeat(2, 2).repeat(2, 3), real(1, 2, 2, 3), order=[0]),
}  # fmt: skip


ORACLES = {**UNARY, **BINARY, **ALONG, **INDEXING, **MATRIX, **SHAPE, **LAYERS}
