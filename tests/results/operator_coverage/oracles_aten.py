"""Oracles of PyTorch's operators: PyTorch, where something is to be computed at all."""

from __future__ import annotations

import numpy as np
import pytest

from tests.results.operator_coverage.oracles import below, of, real

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


X = real(3, 4)
CUBE = real(2, 4, 3)
IMAGE = real(2, 4, 4, 5)
VOLUME = real(1, 2, 4, 5, 3)


def deduplicated(x, index, source):
    """Scatter in order, so that the last of equal indices wins."""
    out = x.copy()
    for row, column in np.ndindex(*index.shape):
        out[row, index[row, column]] = source[row, column]
    return out


ORACLES = {
    "scalar_tensor": of(lambda: np.ones(())),
    "_pdist_forward": by(lambda a: torch.pdist(a, 3.0), real(4, 3)),
    "_cdist_forward": by(lambda a, b: torch.cdist(a, b, 3.0), X, real(2, 4)),
    "scatter": of(deduplicated, real(3, 4), below(4, 3, 4), real(3, 4)),
    "scatter_add": by(lambda s, i, x: x.scatter_add(1, i, s), real(3, 4), below(5, 3, 4), real(3, 5)),
    "grid_sampler_2d": by(
        lambda x, g: F.grid_sample(x, g.permute(0, 2, 3, 1), align_corners=True), IMAGE, real(2, 2, 3, 2) * 0.6
    ),
    "max_pool3d_with_indices": by(lambda x: F.max_pool3d(x, 2), VOLUME),
    "avg_pool1d": by(lambda x: F.avg_pool1d(x, 3, 2, 1), real(2, 3, 7)),
    "avg_pool3d": by(lambda x: F.avg_pool3d(x, 2), VOLUME),
    "adaptive_avg_pool1d": by(lambda x: F.adaptive_avg_pool1d(x, 3), real(2, 3, 5)),
    "_adaptive_avg_pool2d": by(lambda x: F.adaptive_avg_pool2d(x, (2, 3)), IMAGE),
    "_adaptive_avg_pool2d_backward": by(
        lambda g: torch.ops.aten._adaptive_avg_pool2d_backward(g, torch.as_tensor(IMAGE)), real(2, 4, 2, 3)
    ),
    "_adaptive_avg_pool3d": by(lambda x: F.adaptive_avg_pool3d(x, (2, 3, 2)), VOLUME),
    "upsample_nearest2d": by(lambda x: F.interpolate(x, (6, 7)), IMAGE),
    "upsample_bilinear2d": by(lambda x: F.interpolate(x, (6, 7), mode="bilinear"), IMAGE),
    "reflection_pad1d": by(lambda x: F.pad(x, (2, 1), mode="reflect"), real(2, 3, 5)),
    "reflection_pad2d": by(lambda x: F.pad(x, (2, 1, 1, 1), mode="reflect"), IMAGE),
    "reflection_pad3d": by(lambda x: F.pad(x, (1, 1, 2, 1, 1, 1), mode="reflect"), VOLUME),
    "replication_pad2d": by(lambda x: F.pad(x, (2, 1, 1, 1), mode="replicate"), IMAGE),
    "replication_pad3d": by(lambda x: F.pad(x, (1, 1, 2, 1, 1, 1), mode="replicate"), VOLUME),
    "select_scatter": by(lambda x, y: torch.select_scatter(x, y, 1, 2), CUBE, real(2, 3)),
    "slice_scatter": by(lambda x, y: torch.cat([x[:1], torch.cat([y, x[1:, 3:]], 1)]), X, real(2, 3)),
    "as_strided": by(lambda s: torch.as_strided(s, (2, 3), (4, 1), 2), real(12)),
    "_fft_r2c": by(lambda x: torch.view_as_real(torch.fft.rfft(x)).flatten(1), real(2, 6)),
    "_fft_c2r": by(
        lambda x: torch.fft.irfft(torch.complex(x[:, ::2].contiguous(), x[:, 1::2].contiguous()), 6), real(2, 8)
    ),
}
