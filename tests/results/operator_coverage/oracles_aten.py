"""Oracles of PyTorch's operators: PyTorch, where something is to be computed at all."""

from __future__ import annotations

import numpy as np
import pytest

from tests.results.operator_coverage.oracles import below, of, positive, real, table, with_nan

torch = pytest.importorskip("torch")
F = torch.nn.functional


def by(function, *operands):
    """Let PyTorch compute, on whole numbers of 64 bits where it indexes with them."""

    def call(*arrays):
        results = function(
            *(torch.as_tensor(np.array(a, dtype=a.dtype if a.dtype.kind == "f" else int)) for a in arrays)
        )
        results = results if isinstance(results, tuple) else (results,)
        return tuple(result.detach().numpy() for result in results)

    return of(call, *operands)


def gradient(function, *operands, of_operand):
    """Gradient of one operand of a function, the first operand here being the gradient of its result."""

    def call(grad, *others):
        leaf = others[of_operand].clone().requires_grad_()
        function(*others[:of_operand], leaf, *others[of_operand + 1 :]).backward(grad)
        return leaf.grad

    return by(call, *operands)


X = real(3, 4)
CUBE = real(2, 4, 3)
IMAGE = real(2, 4, 4, 5)
VOLUME = real(1, 2, 4, 5, 3)

ELEMENTS = (
    table("elu gelu leaky_relu", lambda name: by(getattr(F, name), X))
    | table("acos=acos asin=asin erf=erf", lambda name: by(getattr(torch, name), X / 2))
    | {"isinf": by(torch.isinf, np.array([[1.0, np.inf, -np.inf]])), "isnan": by(torch.isnan, with_nan(X))}
    | table("logical_not bitwise_not", lambda name: of(getattr(np, name), below(2, 3, 4)))
    | table(
        "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor",
        lambda name: of(getattr(np, name), below(4, 3, 4), below(4, 3, 4)),
    )
    | table("atan2 fmod", lambda name: by(getattr(torch, name), X, real(3, 4) + 0.01))
    | {
        "hardtanh": by(F.hardtanh, X),
        "scalar_tensor": of(lambda: np.ones(())),
        "arange": by(lambda: torch.arange(1, 13, 2)),
    }
)

REDUCED = {
    "any": by(lambda x: torch.any(x, 1).int(), below(2, 2, 4, 3)),
    "max": by(lambda x: torch.max(x, 1).indices, CUBE),
    "min": by(lambda x: torch.min(x, 1).indices, CUBE),
    "var": by(lambda x: torch.var(x, 1, correction=0), CUBE),
    "cumsum": by(lambda x: torch.cumsum(x, 1), CUBE),
    "addmm": by(lambda a, b, c: torch.addmm(c, a, b), X, real(4, 2), real(2)),
    "_pdist_forward": by(lambda a: torch.pdist(a, 3.0), real(4, 3)),
    "_cdist_forward": by(lambda a, b: torch.cdist(a, b, 3.0), X, real(2, 4)),
}


def statistics(x, dims):
    return x.mean(dims), x.var(dims)


LAYER, LAYER_GRAD = real(2, 3, 4), real(2, 3, 4)
GROUP_GRAD = real(2, 4, 4, 5)
NORMALIZATION = {
    "_native_batch_norm_legit_no_training": by(F.batch_norm, IMAGE, real(4), positive(4), positive(4), real(4)),
    "native_layer_norm": by(lambda x, w, b: F.layer_norm(x, (4,), w, b), LAYER, positive(4), real(4)),
    "native_layer_norm_backward": gradient(
        lambda x, m, v, w: F.layer_norm(x, (4,), w), LAYER_GRAD, LAYER, *statistics(LAYER, 2), positive(4), of_operand=0
    ),
    "native_group_norm": by(lambda x, w, b: F.group_norm(x, 2, w, b), IMAGE, positive(4), real(4)),
    "native_group_norm_backward": gradient(
        lambda x, w, m, v: F.group_norm(x, 2, w),
        GROUP_GRAD,
        IMAGE,
        positive(4),
        *statistics(IMAGE.reshape(2, 2, 40), 2),
        of_operand=0,
    ),
}


def deduplicated(x, index, source):
    """Scatter in order, so that the last of equal indices wins."""
    out = x.copy()
    for row, column in np.ndindex(*index.shape):
        out[row, index[row, column]] = source[row, column]
    return out


INDEXING = {
    "embedding_dense_backward": by(
        lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 5, -1, False), real(2, 4, 3), below(5, 2, 4)
    ),
    "gather": by(lambda x, i: torch.gather(x, 1, i), X, below(4, 3, 4)),
    "scatter": of(deduplicated, real(3, 4), below(4, 3, 4), real(3, 4)),
    "scatter_add": by(lambda s, i, x: x.scatter_add(1, i, s), real(3, 4), below(5, 3, 4), real(3, 5)),
    "scatter_reduce": by(lambda s, i, x: x.scatter_reduce(1, i, s, "sum"), real(3, 4), below(5, 3, 4), real(3, 5)),
    "_embedding_bag": by(lambda w, i: F.embedding_bag(i, w, mode="sum"), real(5, 3), below(5, 2, 4)),
    "index": by(lambda a, i: a[i], real(5, 3), below(5, 4)),
    "index_put": by(
        lambda v, i, x: x.index_put((i,), v, accumulate=True), real(4, 3), below(5, 4), real(5, 3)
    ),
    "masked_scatter": by(
        lambda m, s, x: x.masked_scatter(m != 0, s), np.array([0, 1, 1, 0, 1], np.int32), real(4), real(5)
    ),
    "grid_sampler_2d": by(
        lambda x, g: F.grid_sample(x, g.permute(0, 2, 3, 1), align_corners=True), IMAGE, real(2, 2, 3, 2) * 0.6
    ),
}  # fmt: skip


def within_window(indices, x):
    """Turn PyTorch's places in the image into places within windows of 3 x 3, stride 2, padding 1."""
    rows, columns = indices // x.shape[3], indices % x.shape[3]
    y = torch.arange(indices.shape[2])[:, None] * 2 - 1
    z = torch.arange(indices.shape[3])[None, :] * 2 - 1
    return (rows - y) * 3 + columns - z


def max_pool(x):
    values, indices = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    return values, within_window(indices, x)


POOL_GRAD = real(2, 4, 2, 3)
PLACES = by(lambda x: max_pool(x)[1], IMAGE).function(IMAGE)[0].astype(np.int32)

WINDOWS = {
    "convolution_backward": by(lambda g, w, x: g.sum((0, 2, 3)), IMAGE, real(4, 3, 3, 3), real(2, 3, 4, 5)),
    "max_pool2d_with_indices": by(max_pool, IMAGE),
    "max_pool2d_with_indices_backward": by(
        lambda g, _: torch.ops.aten.max_pool2d_with_indices_backward(
            g, torch.as_tensor(IMAGE), [3, 3], [2, 2], [1, 1], [1, 1], False,
            F.max_pool2d(torch.as_tensor(IMAGE), 3, 2, 1, return_indices=True)[1],
        ),
        POOL_GRAD,
        PLACES,
    ),
    "max_pool3d_with_indices": by(lambda x: F.max_pool3d(x, 2), VOLUME),
    "avg_pool1d": by(lambda x: F.avg_pool1d(x, 3, 2, 1), real(2, 3, 7)),
    "avg_pool2d": by(lambda x: F.avg_pool2d(x, 3, 2, 1), IMAGE),
    "avg_pool3d": by(lambda x: F.avg_pool3d(x, 2), VOLUME),
    "avg_pool2d_backward": by(
        lambda g: torch.ops.aten.avg_pool2d_backward(
            g, torch.as_tensor(IMAGE), [3, 3], [2, 2], [1, 1], False, True, None
        ),
        POOL_GRAD,
    ),
    "adaptive_avg_pool1d": by(lambda x: F.adaptive_avg_pool1d(x, 3), real(2, 3, 5)),
    "_adaptive_avg_pool2d": by(lambda x: F.adaptive_avg_pool2d(x, (2, 3)), IMAGE),
    "_adaptive_avg_pool2d_backward": by(
        lambda g: torch.ops.aten._adaptive_avg_pool2d_backward(g, torch.as_tensor(IMAGE)), real(2, 4, 2, 3)
    ),
    "_adaptive_avg_pool3d": by(lambda x: F.adaptive_avg_pool3d(x, (2, 3, 2)), VOLUME),
    "upsample_nearest2d": by(lambda x: F.interpolate(x, (6, 7)), IMAGE),
    "upsample_bilinear2d": by(lambda x: F.interpolate(x, (6, 7), mode="bilinear"), IMAGE),
    "col2im": by(lambda c: F.fold(c, (4, 5), 3, padding=1), real(2, 18, 20)),
}  # fmt: skip

SHAPE = {
    "constant_pad_nd": by(lambda x: F.pad(x, (0, 1, 1, 2), value=1.5), X),
    "diagonal": by(lambda x: torch.diagonal(x, 1), X),
    "reflection_pad1d": by(lambda x: F.pad(x, (2, 1), mode="reflect"), real(2, 3, 5)),
    "reflection_pad2d": by(lambda x: F.pad(x, (2, 1, 1, 1), mode="reflect"), IMAGE),
    "reflection_pad3d": by(lambda x: F.pad(x, (1, 1, 2, 1, 1, 1), mode="reflect"), VOLUME),
    "replication_pad2d": by(lambda x: F.pad(x, (2, 1, 1, 1), mode="replicate"), IMAGE),
    "replication_pad3d": by(lambda x: F.pad(x, (1, 1, 2, 1, 1, 1), mode="replicate"), VOLUME),
    "select": by(lambda x: x[:, 2], CUBE),
    "select_scatter": by(lambda x, y: torch.select_scatter(x, y, 1, 2), CUBE, real(2, 3)),
    "slice": by(lambda x: x[1:3], X),
    "slice_scatter": by(lambda x, y: torch.cat([x[:1], torch.cat([y, x[1:, 3:]], 1)]), X, real(2, 3)),
    "split_with_sizes": by(lambda x: x.split([1, 3], 1)[1], X),
    "squeeze": by(lambda x: x.squeeze(1), real(2, 1, 3)),
    "as_strided": by(lambda s: torch.as_strided(s, (2, 3), (4, 1), 2), real(12)),
    "flip": by(lambda x: x.flip(0), X),
    "_fft_r2c": by(lambda x: torch.view_as_real(torch.fft.rfft(x)).flatten(1), real(2, 6)),
    "_fft_c2r": by(
        lambda x: torch.fft.irfft(torch.complex(x[:, ::2].contiguous(), x[:, 1::2].contiguous()), 6), real(2, 8)
    ),
}

ORACLES = {**ELEMENTS, **REDUCED, **NORMALIZATION, **INDEXING, **WINDOWS, **SHAPE}
