"""Oracles of ONNX's operators, for the compositions that other tables do not have."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import special

from tests.results.operator_coverage import oracles as o
from tests.results.operator_coverage.oracles import below, of, positive, real
from tests.results.operator_coverage.oracles_aten import by

torch = pytest.importorskip("torch")
F = torch.nn.functional

X = real(3, 4)
CUBE = real(2, 4, 3)
IMAGE = real(2, 3, 4, 5)


def quantize(x, scale, zero):
    return np.clip(np.rint(x / scale) + zero, 0, 255)


def dynamic_quantize(x):
    high, low = max(x.max(), 0), min(x.min(), 0)
    scale = (high - low) / 255
    return quantize(x, scale, np.rint(-low / scale))


ELEMENTS = {
    "Celu": by(lambda x: F.celu(x, 2.0), X),
    "Selu": of(lambda x: 1.0507010 * np.where(x > 0, x, 1.6732632 * np.expm1(x)), X),
    "HardSigmoid": by(F.hardsigmoid, 3 * X),
    "HardSwish": by(F.hardswish, 3 * X),
    "Softplus": by(F.softplus, X),
    "Softsign": by(F.softsign, X),
    "Swish": by(F.silu, X),
    "Mish": by(F.mish, X),
    "ThresholdedRelu": of(lambda x: np.where(x > 1, x, 0), X),
    "Shrink": of(lambda x: np.where(x < -0.5, x + 0.1, np.where(x > 0.5, x - 0.1, 0)), X),
    "PRelu": of(lambda x, s: np.where(x > 0, x, s * x), X, real(3, 4)),
    "BitShift": of(np.left_shift, below(9, 3, 4), below(4, 3, 4)),
    "SwiGLU": of(lambda x: x[:, :2] * special.expit(x[:, :2]) * x[:, 2:], X),
    "DequantizeLinear": of(lambda x, z, s: (x - z[:, None]) * s[:, None], X, real(3), positive(3)),
    "QuantizeLinear": of(quantize, 20 * X, np.array(0.5), np.array(100.0)),
    "Max": of(lambda a, b, c: np.maximum(np.maximum(a, b), c), X, real(3, 4), real(3, 4)),
    "Min": of(lambda a, b, c: np.minimum(np.minimum(a, b), c), X, real(3, 4), real(3, 4)),
    "Mean": of(lambda a, b, c: (a + b + c) / 3, X, real(3, 4), real(3, 4)),
}

STEP = np.arange(8) * 2 * np.pi / 8
CREATION = {
    "EyeLike": of(lambda: np.eye(3, 4)),
    "HannWindow": of(lambda: 0.5 - 0.5 * np.cos(STEP)),
    "HammingWindow": of(lambda: 0.54347826 - 0.45652174 * np.cos(STEP)),
    "BlackmanWindow": of(lambda: 0.42 - 0.5 * np.cos(STEP) + 0.08 * np.cos(2 * STEP)),
}


def scattered(x, index, values):
    out = x.copy()
    for row, own in zip(index, values, strict=True):
        out[row] = own
    return out


def roi_align(x, rois, images):
    out = np.zeros((len(rois), x.shape[1], 2, 2))
    for r, (left, top, right, bottom) in enumerate(rois - 0.5):
        for py, px, sy, sx in product(range(2), repeat=4):
            row = top + (py + (sy + 0.5) / 2) * (bottom - top) / 2
            column = left + (px + (sx + 0.5) / 2) * (right - left) / 2
            if -1 <= row <= x.shape[2] and -1 <= column <= x.shape[3]:
                row, column = np.clip(row, 0, x.shape[2] - 1), np.clip(column, 0, x.shape[3] - 1)
                for c in range(x.shape[1]):
                    out[r, c, py, px] += o.interpolate(x[images[r], c], row, column) / 4
    return out


def unpooled(values, index):
    out = np.zeros((*values.shape[:2], 20))
    for n, c in np.ndindex(*values.shape[:2]):
        np.add.at(out[n, c], index[n, c].ravel(), values[n, c].ravel())
    return out


INDEXING = {
    "GatherND": of(lambda a, i: a[i], CUBE, below(2, 5)),
    "ScatterND": of(scattered, real(5, 3), below(5, 4), real(4, 3)),
    "RoiAlign": of(roi_align, IMAGE, o.ROIS[:, 1:], o.ROIS[:, 0].astype(np.int32)),
    "MaxUnpool": of(unpooled, real(1, 2, 2, 2), below(20, 1, 2, 2, 2)),
}

MATRIX = {
    "Einsum": of(lambda a, b: np.einsum("bhd,khd->bhk", a, b), real(2, 3, 4), real(5, 3, 4)),
    "MatMulInteger": of(lambda x, z, w: (x - z[:, None]) @ w, below(9, 3, 4), below(3, 3), below(9, 4, 2)),
    "QLinearMatMul": of(
        lambda x, z, w, s, scale, zero: quantize((x - z[:, None]) @ w * s, scale, zero),
        below(9, 3, 4) * 1.0, below(3, 3) * 1.0, below(9, 4, 2) * 1.0, positive(2), np.array(0.7), np.array(3.0),
    ),
    "Det": of(np.linalg.det, real(2, 3, 3)),
}  # fmt: skip


def attention(q, k, mask, v):
    return special.softmax(np.einsum("bhqd,bhkd->bhqk", q, k) / 2 + mask, axis=-1) @ v


def rotary(x, cosine, sine):
    half = np.concatenate([-x[..., 2:], x[..., :2]], -1)
    return x * cosine + half * sine


LABELS = below(4, 3)
QKV = real(2, 2, 3, 4), real(2, 2, 3, 4), real(2, 2, 3, 4)
LAYERS = {
    "Attention": of(attention, QKV[0], QKV[1], real(3, 3), QKV[2]),
    "RotaryEmbedding": of(rotary, real(2, 2, 3, 4), real(3, 4), real(3, 4)),
    "SoftmaxCrossEntropyLoss": by(F.cross_entropy, X, LABELS),
    "NegativeLogLikelihoodLoss": by(F.nll_loss, X, LABELS),
    "Hardmax": of(lambda x: np.eye(4)[x.argmax(1)], X),
    "InstanceNormalization": by(lambda x, w, b: F.instance_norm(x, None, None, w, b), IMAGE, positive(3), real(3)),
    "MeanVarianceNormalization": of(
        lambda x: (x - x.mean((0, 2, 3), keepdims=True)) / (x.std((0, 2, 3), keepdims=True) + 1e-9), IMAGE
    ),
    "RMSNormalization": by(lambda x, w: F.rms_norm(x, (4,), w, 1e-5), real(2, 3, 4), positive(4)),
    "LpNormalization": of(lambda x: x / np.linalg.norm(x, axis=1, keepdims=True), X),
    "DynamicQuantizeLinear": of(dynamic_quantize, X + 0.1),
    "CausalConvWithState": by(
        lambda s, x, w: F.conv1d(torch.cat([s, x], 2), w[:, None], groups=4), real(2, 4, 2), real(2, 4, 6), real(4, 3)
    ),
    "ConvInteger": by(lambda x, w: F.conv2d(x - 3, w, padding=1), IMAGE, real(2, 3, 3, 3)),
    "QLinearConv": of(
        lambda x, w, s, scale, zero: quantize(o.convolve(x - 3, w) * s[:, None, None], scale, zero),
        IMAGE, real(2, 3, 3, 3), positive(2), np.array(0.7), np.array(90.0),
    ),
    "ConvTranspose": of(lambda x, w: o.deconvolve(x, w, (5, 7)), real(1, 2, 3, 4), real(2, 2, 3, 3)),
    "LpPool": of(lambda x: np.sqrt(9 * o.pool(x * x, (3, 3), (2, 2), (1, 1), np.mean)), IMAGE),
    "GlobalAveragePool": of(lambda x: x.mean((2, 3)), IMAGE),
    "GlobalMaxPool": of(lambda x: x.max((2, 3)), IMAGE),
    "GlobalLpPool": of(lambda x: np.sqrt((x * x).sum((2, 3))), IMAGE),
}  # fmt: skip

REDUCTIONS = {
    "ReduceL1": of(lambda x: np.abs(x).sum(1), CUBE),
    "ReduceL2": of(lambda x: np.sqrt((x * x).sum(1)), CUBE),
    "ReduceSumSquare": of(lambda x: (x * x).sum(1), CUBE),
    "ReduceLogSum": of(lambda x: np.log(x.sum(1)), positive(2, 4, 3)),
    "ReduceLogSumExp": of(lambda x: special.logsumexp(x, 1), X),
    "CumProd": of(lambda x: x.cumprod(1), CUBE),
}


def depth_to_space(x):
    n, c, h, w = x.shape
    return x.reshape(n, 2, 2, c // 4, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(n, c // 4, 2 * h, 2 * w)


def space_to_depth(x):
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 3, 5, 1, 2, 4).reshape(n, 4 * c, h // 2, w // 2)


def framed(x):
    return o.interleave(np.fft.fft(np.stack([x[:, start : start + 6] for start in (0, 2, 4)], 1)))


SHAPE = {
    "CenterCropPad": of(lambda x: np.pad(x[:, 1:3], ((1, 1), (0, 0))), X),
    "Trilu": of(np.tril, CUBE),
    "DepthToSpace": of(depth_to_space, real(2, 8, 2, 3)),
    "SpaceToDepth": of(space_to_depth, real(2, 2, 4, 6)),
    "STFT": of(framed, real(2, 10)),
}


def adam(w, g, m, v, t):
    mean, square = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    step = (mean / (1 - 0.9**t)) / (np.sqrt(square / (1 - 0.999**t)) + 1e-8)
    return w - 0.1 * step, mean, square


PREVIEW = {
    "Adam": of(adam, X, real(3, 4), real(3, 4), positive(3, 4), np.array(3.0)),
    "Momentum": of(lambda w, g, v: (w - 0.1 * (0.9 * v + g), 0.9 * v + g), X, real(3, 4), real(3, 4)),
    "Adagrad": of(
        lambda w, g, s: (w - 0.1 * g / (np.sqrt(s + g * g) + 1e-8), s + g * g), X, real(3, 4), positive(3, 4)
    ),
    "FlexAttention": of(lambda q, k, v: attention(q, k, 0, v), *QKV),
}


CLASSICAL = {
    "Binarizer": of(lambda x: x > 0.5, X),
    "Scaler": of(lambda x, f, s: (x - f) * s, X, real(4), real(4)),
    "LinearRegressor": of(lambda x, w, b: x @ w.T + b, X, real(2, 4), real(2)),
    "Imputer": of(lambda x: np.where(np.isnan(x), 0.5, x), o.with_nan(X)),
    "ArrayFeatureExtractor": of(lambda x, i: x[:, i], X, below(4, 2)),
    "LinearClassifier": of(lambda x, w, b: (x @ w.T + b).argmax(1), X, real(5, 4), real(5)),
    "SVMRegressor": of(lambda x, s, w: np.exp(-0.5 * ((x[:, None] - s) ** 2).sum(2)) @ w + 0.5, X, real(5, 4), real(5)),
}

ORACLES = {
    **ELEMENTS, **CREATION, **INDEXING, **MATRIX, **LAYERS, **REDUCTIONS, **SHAPE, **PREVIEW, **CLASSICAL,
}  # fmt: skip
