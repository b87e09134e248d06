"""Oracles of MXNet's operators."""

from __future__ import annotations

import numpy as np
from scipy import special

from tests.results.operator_coverage import oracles as o
from tests.results.operator_coverage.oracles import below, of, positive, real

X = real(3, 4)
ELEMENTS = {
    "degrees": of(np.degrees, X),
    "radians": of(np.radians, X),
    "gamma": of(special.gamma, X),
    "gammaln": of(special.gammaln, X),
    "round": of(lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5), np.array([[-2.5, -1.2, -0.5], [0.5, 1.5, 2.4]])),
    "smooth_l1": of(lambda x: np.where(np.abs(x) < 1, x * x / 2, np.abs(x) - 0.5), X),
    "_rmod_scalar": of(lambda x: np.mod(2, x), positive(3, 4)),
    "_hypot_scalar": of(lambda x: np.hypot(x, 2), X),
}


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
    "sgd_mom_update": of(momentum, X, real(3, 4), real(3, 4)),
    "mp_sgd_mom_update": of(lambda *a: momentum(*a)[0], X, real(3, 4), real(3, 4)),
    "adam_update": of(adam, X, real(3, 4), real(3, 4), positive(3, 4)),
    "rmsprop_update": of(rmsprop, X, real(3, 4), positive(3, 4)),
    "rmspropalex_update": of(rmsprop_centered, X, real(3, 4), 9 + positive(3, 4), real(3, 4), real(3, 4)),
}

PIXELS = [(y, x, k) for y in range(3) for x in range(4) for k in range(2)]


def boxes():
    """Boxes of two sizes around every pixel of 3 x 4."""
    sizes = ((0.25, 0.25), (0.5, 0.125))
    centres = [((x + 0.5) / 4, (y + 0.5) / 3, *sizes[k]) for y, x, k in PIXELS]
    return np.array([[[x - w, y - h, x + w, y + h] for x, y, w, h in centres]])


CREATION = {
    "_zeros": of(lambda: np.zeros((3, 4))),
    "_ones": of(lambda: np.ones((3, 4))),
    "_contrib_MultiBoxPrior": of(boxes),
}

LENGTH = np.array([2, 4], np.int32)
IMAGE = real(2, 3, 4, 5)
INDEX = below(4, 2, 5)
INDEXING = {
    "batch_take": of(lambda a, i: a[np.arange(5), i], real(5, 4), below(4, 5)),
    "pick": of(lambda x, i: np.take_along_axis(x, i[:, None], 1)[:, 0], real(2, 4, 5), INDEX),
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
    "linalg_trmm": of(lambda a, b: 2 * np.tril(a) @ b, real(2, 3, 3), real(2, 3, 4)),
    "linalg_sumlogdiag": of(lambda a: np.log(np.einsum("bii->bi", a)).sum(1), positive(2, 3, 3)),
    "linalg_potrf": of(np.linalg.cholesky, o.definite(2, 3, 3)),
    "linalg_potri": of(lambda a: np.linalg.inv(a @ a.swapaxes(1, 2)), o.triangles(2, 3, 3)),
    "linalg_trsm": of(lambda a, b: 2 * np.linalg.solve(a, b), o.triangles(2, 3, 3), real(2, 3, 4)),
}

OTHERS = {
    "Correlation": of(o.correlation, real(1, 2, 6, 7), real(1, 2, 6, 7)),
    "UpSampling": of(lambda x: x.repeat(2, 2).repeat(2, 3), IMAGE),
    "LRN": of(o.lrn, IMAGE),
    "_contrib_fft": of(lambda x: o.interleave(np.fft.fft(x)), real(2, 6)),
    "_contrib_ifft": of(lambda x: 6 * np.fft.ifft(x[:, ::2] + 1j * x[:, 1::2]).real, real(2, 12)),
    "broadcast_to": of(lambda x: np.broadcast_to(x, (3, 4)), real(1, 4)),
    "repeat": of(lambda x: x.repeat(3, 1), X),
    "tile": of(lambda x: np.tile(x, (2, 3)), X),
    "_slice_assign": of(o.assigned, X, real(2, 3)),
    "_crop_assign_scalar": of(lambda x: o.assigned(x, 1.5), X),
    "_contrib_quantize": of(
        lambda x, low, high: np.floor((x - low) * (255 / (high - low)) + 0.5), X, np.array(-2.0), np.array(2.0)
    ),
    "_contrib_dequantize": of(
        lambda x, low, high: x * ((high - low) / 255) + low, below(255, 3, 4) * 1.0, np.array(-2.0), np.array(2.0)
    ),
}

ORACLES = {**ELEMENTS, **OPTIMIZERS, **CREATION, **INDEXING, **MATRIX, **OTHERS}
