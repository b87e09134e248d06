"""What operators of the tables compute, in NumPy and SciPy: the oracle of their compositions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import ceil, floor

import numpy as np

GENERATOR = np.random.default_rng(7)


def real(*shape):
    """Values of both signs, without ties and away from the kinks of the functions here."""
    return GENERATOR.permuted(np.linspace(-1.9, 1.9, int(np.prod(shape)) or 1)).reshape(shape)


def positive(*shape):
    return np.abs(real(*shape)) + 0.25


def below(bound, *shape):
    return GENERATOR.integers(0, bound, shape).astype(np.int32)


@dataclass(frozen=True)
class Oracle:
    """Operands in the order in which the composition names them, and the outputs of its last application."""

    operands: tuple[np.ndarray, ...]
    function: Callable


def of(function, *operands):
    return Oracle(tuple(np.asarray(operand) for operand in operands), function)


def interpolate(image, row, column):
    """Bilinear interpolation, zero outside."""
    total = 0.0
    for y, x in product((floor(row), floor(row) + 1), (floor(column), floor(column) + 1)):
        if 0 <= y < image.shape[0] and 0 <= x < image.shape[1]:
            total += image[y, x] * (1 - abs(row - y)) * (1 - abs(column - x))
    return total


def sample(x, grid):
    out = np.zeros((*x.shape[:2], *grid.shape[2:]))
    for n, c, oy, ox in np.ndindex(*out.shape):
        row, column = (grid[n, 1, oy, ox] + 1) * (x.shape[2] - 1) / 2, (grid[n, 0, oy, ox] + 1) * (x.shape[3] - 1) / 2
        out[n, c, oy, ox] = interpolate(x[n, c], row, column)
    return out


def affine_grid(theta, rows, columns):
    ys, xs = np.meshgrid(np.linspace(-1, 1, rows), np.linspace(-1, 1, columns), indexing="ij")
    place = np.stack([xs, ys, np.ones_like(xs)])
    return np.einsum("nck,kyx->ncyx", theta.reshape(-1, 2, 3), place)


def roi_pool(x, rois):
    out = np.zeros((len(rois), x.shape[1], 2, 2))
    for r, (image, *corners) in enumerate(rois):
        left, top, right, bottom = (floor(c + 0.5) for c in corners)
        height, width = max(bottom - top + 1, 1), max(right - left + 1, 1)
        for py, px in product(range(2), range(2)):
            y0, y1 = floor(py * height / 2) + top, ceil((py + 1) * height / 2) + top
            x0, x1 = floor(px * width / 2) + left, ceil((px + 1) * width / 2) + left
            part = x[int(image), :, max(y0, 0) : max(y1, 0), max(x0, 0) : max(x1, 0)]
            out[r, :, py, px] = part.max((1, 2)) if part.size else 0
    return out


def psroi_pool(x, rois):
    channels = x.shape[1] // 4
    out = np.zeros((len(rois), channels, 2, 2))
    for r, (image, *corners) in enumerate(rois):
        left, top = (floor(c + 0.5) for c in corners[:2])
        right, bottom = (floor(c + 0.5) + 1 for c in corners[2:])
        for py, px in product(range(2), range(2)):
            high, wide = max(bottom - top, 0.1) / 2, max(right - left, 0.1) / 2
            y0, y1 = (min(max(v, 0), x.shape[2]) for v in (floor(py * high + top), ceil((py + 1) * high + top)))
            x0, x1 = (min(max(v, 0), x.shape[3]) for v in (floor(px * wide + left), ceil((px + 1) * wide + left)))
            own = x[int(image)].reshape(channels, 2, 2, *x.shape[2:])[:, py, px, y0:y1, x0:x1]
            out[r, :, py, px] = own.mean((1, 2)) if own.size else 0
    return out


def deformable_psroi(x, rois, trans):
    channels = x.shape[1] // 4
    out = np.zeros((len(rois), channels, 2, 2))
    rows, columns = x.shape[2:]
    for r, (image, *corners) in enumerate(rois):
        left, top = (floor(c + 0.5) - 0.5 for c in corners[:2])
        right, bottom = (floor(c + 0.5) + 0.5 for c in corners[2:])
        height, width = max(bottom - top, 0.1), max(right - left, 0.1)
        for c, py, px in np.ndindex(channels, 2, 2):
            total, count = 0.0, 0
            for sy, sx in product(range(2), range(2)):
                row = py * height / 2 + top + trans[r, 1, py, px] * 0.1 * height + sy * height / 4
                column = px * width / 2 + left + trans[r, 0, py, px] * 0.1 * width + sx * width / 4
                if -0.5 <= row <= rows - 0.5 and -0.5 <= column <= columns - 0.5:
                    own = x[int(image)].reshape(channels, 2, 2, rows, columns)[c, py, px]
                    total += interpolate(own, np.clip(row, 0, rows - 1), np.clip(column, 0, columns - 1))
                    count += 1
            out[r, c, py, px] = total / max(count, 1)
    return out


def deformable_convolution(x, offset, weight):
    out = np.zeros((x.shape[0], weight.shape[0], *x.shape[2:]))
    moved = offset.reshape(x.shape[0], 3, 3, 2, *x.shape[2:])
    for n, co, y, z, ci, dy, dx in np.ndindex(*out.shape, *weight.shape[1:]):
        row, column = y + dy - 1 + moved[n, dy, dx, 0, y, z], z + dx - 1 + moved[n, dy, dx, 1, y, z]
        out[n, co, y, z] += weight[co, ci, dy, dx] * interpolate(x[n, ci], row, column)
    return out


def correlation(a, b):
    """Kernel 3, one step in every direction, images padded already."""
    high, wide = a.shape[2] - 4, a.shape[3] - 4
    out = np.zeros((a.shape[0], 3, 3, high, wide))
    for n, oy, ox, y, x in np.ndindex(*out.shape):
        own = a[n, :, y + 1 : y + 4, x + 1 : x + 4]
        out[n, oy, ox, y, x] = (own * b[n, :, y + oy : y + oy + 3, x + ox : x + ox + 3]).sum() / 18
    return out.reshape(a.shape[0], 9, high, wide)


def reverse_sequences(x, length):
    out = x.copy()
    for b, n in enumerate(length):
        out[:n, b] = x[:n, b][::-1]
    return out


def sketch(x, bucket, sign):
    out = np.zeros((len(x), 3))
    for c, b in enumerate(bucket):
        out[:, b] += sign[c] * x[:, c]
    return out


def assigned(x, y):
    out = x.copy()
    out[1:3, 0:3] = y
    return out


def triangles(*shape):
    """Lower triangular matrices, far from singular."""
    return np.tril(real(*shape)) + 3 * np.eye(shape[-1])


def definite(*shape):
    root = triangles(*shape)
    return root @ root.swapaxes(-1, -2)


def interleave(values):
    return np.stack([values.real, values.imag], -1).reshape(*values.shape[:-1], -1)


def lrn(x):
    squares = np.pad(x * x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    near = sum(squares[:, d : d + x.shape[1]] for d in range(3))
    return x * (2 + 0.5 * near) ** -0.75


ROIS = np.array([[0, 0.2, 0.1, 3.2, 2.9], [1, 1.1, 1.2, 4.4, 3.1], [1, 2.6, 0.4, 3.3, 1.2]])
