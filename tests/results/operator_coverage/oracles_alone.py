"""What single descriptions compute, of any shapes: those of which the compositions' oracles show too little."""

from __future__ import annotations

from itertools import product

import numpy as np

from results.operator_coverage.tables.operators import OPERATORS
from results.operator_coverage.tables.operators.spatial import LOWEST
from tests.results.operator_coverage.oracles import interpolate, pool


def trmm_transposed(a, b, alpha):
    return alpha * np.tril(a).swapaxes(1, 2) @ b


def upper_pairs(x, n):
    full = np.zeros((n, n))
    full[: x.shape[0], : x.shape[1]] = x
    return full[np.triu_indices(n, 1)]


def mirror_lower(a):
    return np.tril(a) + np.tril(a, -1).swapaxes(1, 2)


def affine_quantize(x, scale, zero, low, high):
    return np.clip(np.rint(x / scale) + zero, low, high)


def _places(begin, step, count):
    return tuple(slice(b, b + s * n, s) for b, s, n in zip(begin, step, count, strict=True))


def strided_assign(x, y, begin, step, count):
    out = x.copy()
    out[_places(begin, step, count)] = y
    return out


def strided_fill(x, begin, step, count, value):
    return strided_assign(x, value, begin, step, count)


def rmsprop_centered_update(w, grad, n, mean, delta, *, lr, decay, momentum, eps, wd, rescale, clip):
    g = np.clip(rescale * grad + wd * w, -clip, clip)
    n, mean = decay * n + (1 - decay) * g**2, decay * mean + (1 - decay) * g
    with np.errstate(invalid="ignore"):  # of moments that are none
        delta = momentum * delta - lr * g / np.sqrt(n - mean**2 + eps)
    return w + delta, n, mean, delta


def adam_update(w, grad, m, v, *, lr, beta1, beta2, eps, wd):
    g = grad + wd * w
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
    return w - lr * m / (np.sqrt(v) + eps), m, v


def rmsprop_update(w, grad, n, *, lr, decay, eps, wd, rescale):
    g = rescale * grad + wd * w
    n = decay * n + (1 - decay) * g**2
    return w - lr * g / np.sqrt(n + eps), n


def hinge_backward(x, label, margin, squared):
    """By the derivative of what is lost: a wrong class is to be below -margin, the right one above it."""
    right = np.arange(x.shape[1]) == label[:, None]
    short = np.maximum(np.where(right, margin - x, margin + x), 0)
    size = 2 * short if squared else (short > 0).astype(float)
    return np.where(right, -size, size)


def scatter_rows(x, index, values):
    out = x.copy()
    for number, row in enumerate(index):
        out[row] = values[number]
    return out


def _adjoint(grad, forward, shape):
    """Gradient of a linear function's operand, entry by entry."""
    found = np.zeros(shape)
    for place in np.ndindex(*shape):
        unit = np.zeros(shape)
        unit[place] = 1
        found[place] = np.sum(grad * forward(unit))
    return found


def affine_grid_backward(grad, size):
    forward = OPERATORS["affine_grid"].describe((2,), {"size": size})
    return _adjoint(grad, lambda theta: forward.evaluate([theta])[0], (grad.shape[0], 6))


def bilinear_sampler_backward(grad, grid, size):
    forward = OPERATORS["bilinear_sampler"].describe((4, 4), {"size": size})
    return _adjoint(grad, lambda x: forward.evaluate([x, grid])[0], (*grad.shape[:2], *size))


def correlation_backward(grad, other, *, first, size, **attributes):
    forward = OPERATORS["correlation"].describe((4, 4), attributes)
    own = (*other.shape[:2], *size)
    return _adjoint(grad, lambda x: forward.evaluate([x, other] if first else [other, x])[0], own)


def average_pool(x, kernel, stride, padding):
    return pool(x, kernel, stride, padding, np.mean)


def max_pool(x, kernel, stride, padding):
    return pool(x, kernel, stride, padding, np.max)


def adaptive_average(x, size, bins):
    out = np.zeros((*x.shape[:2], *bins))
    for place in np.ndindex(*bins):
        out[(..., *place)] = x[(..., *_bin(place, size, bins))].mean((2, 3))
    return out


def adaptive_average_backward(grad, size, bins):
    out = np.zeros((*grad.shape[:2], *size))
    for place in np.ndindex(*bins):
        own = _bin(place, size, bins)
        share = out[(..., *own)][0, 0].size
        out[(..., *own)] += grad[(..., *place)][..., None, None] / share
    return out


def _bin(place, size, bins):
    """Pixels of an adaptive bin."""
    sides = zip(place, size, bins, strict=True)
    return tuple(slice(at * n // count, -((-(at + 1) * n) // count)) for at, n, count in sides)


def correlation(a, b, *, kernel, reach, stride, count):
    border, ways = reach * stride, 2 * reach + 1
    high, wide = (extent - kernel + 1 - 2 * border for extent in a.shape[2:])
    out = np.zeros((a.shape[0], ways, ways, high, wide))
    for n, oy, ox, y, x in np.ndindex(*out.shape):
        mine = a[n, :, y + border : y + border + kernel, x + border : x + border + kernel]
        down, right = y + oy * stride, x + ox * stride
        out[n, oy, ox, y, x] = np.sum(mine * b[n, :, down : down + kernel, right : right + kernel]) / count
    return out.reshape(a.shape[0], -1, high, wide)


def _region(roi, place, pooled, size, scale):
    """Image and pixels of a bin of a region whose corners are rounded."""
    found = []
    for side in (1, 0):
        first, last = np.floor(roi[1 + side] + 0.5) * scale, (np.floor(roi[3 + side] + 0.5) + 1) * scale
        extent, own = max(last - first, 0.1) / pooled[1 - side], place[1 - side]
        ends = np.floor(own * extent + first), np.ceil((own + 1) * extent + first)
        found.append(slice(*(int(np.clip(end, 0, size[1 - side])) for end in ends)))
    return int(roi[0]), tuple(found)


def position_sensitive_roi(x, rois, pooled, size, scale):
    images = x.reshape(x.shape[0], -1, *pooled, *size)
    out = np.zeros((len(rois), images.shape[1], *pooled))
    for r, *place in np.ndindex(len(rois), *pooled):
        image, pixels = _region(rois[r], place, pooled, size, scale)
        own = images[(image, slice(None), *place, *pixels)]
        out[(r, slice(None), *place)] = own.mean((1, 2)) if own.size else 0
    return out


def position_sensitive_roi_backward(grad, rois, *, pooled, size, scale, images):
    out = np.zeros((images, grad.shape[1], *pooled, *size))
    for r, *place in np.ndindex(len(rois), *pooled):
        image, pixels = _region(rois[r], place, pooled, size, scale)
        own = out[(image, slice(None), *place, *pixels)]
        own += grad[(r, slice(None), *place)][:, None, None] / max(own[0].size, 1)
    return out.reshape(images, -1, *size)


def roi_max(x, rois, pooled, scale):
    out = np.full((len(rois), x.shape[1], *pooled), LOWEST)
    for r, py, px in np.ndindex(len(rois), *pooled):
        left, top, right, bottom = np.floor(rois[r, 1:] * scale + 0.5)
        high, wide = max(bottom - top + 1, 1), max(right - left + 1, 1)
        y0, y1 = np.floor(py * high / pooled[0]) + top, np.ceil((py + 1) * high / pooled[0]) + top
        x0, x1 = np.floor(px * wide / pooled[1]) + left, np.ceil((px + 1) * wide / pooled[1]) + left
        rows, columns = (slice(int(max(a, 0)), int(max(b, 0))) for a, b in ((y0, y1), (x0, x1)))
        own = x[int(rois[r, 0]), :, rows, columns]
        out[r, :, py, px] = own.max((1, 2)) if own.size else LOWEST
    return out


def clear_empty(x):
    return np.where(x == LOWEST, 0, x)


def roi_align(x, rois, images, *, pooled, size, scale, samples):
    out = np.zeros((len(rois), x.shape[1], *pooled))
    for r, (left, top, right, bottom) in enumerate(rois * scale - 0.5):
        for py, px, sy, sx in product(*map(range, (*pooled, samples, samples))):
            row = top + (py + (sy + 0.5) / samples) * (bottom - top) / pooled[0]
            column = left + (px + (sx + 0.5) / samples) * (right - left) / pooled[1]
            if -1 <= row <= size[0] and -1 <= column <= size[1]:
                place = np.clip(row, 0, size[0] - 1), np.clip(column, 0, size[1] - 1)
                own = [interpolate(image, *place) for image in x[images[r]]]
                out[r, :, py, px] += np.array(own) / samples**2
    return out


def deformable_roi(x, rois, trans, *, pooled, size, scale, reach, samples):
    rows, columns = size
    images = x.reshape(x.shape[0], -1, *pooled, rows, columns)
    out = np.zeros((len(rois), images.shape[1], *pooled))
    for r, py, px in np.ndindex(len(rois), *pooled):
        left, top = (np.floor(corner + 0.5) * scale - 0.5 for corner in rois[r, 1:3])
        right, bottom = ((np.floor(corner + 0.5) + 1) * scale - 0.5 for corner in rois[r, 3:])
        high, wide = max(bottom - top, 0.1), max(right - left, 0.1)
        found = []
        for sy, sx in product(range(samples), repeat=2):
            # In the description's order of operations: places on the very edge are counted.
            row = py * (high / pooled[0]) + top + trans[r, 1, py, px] * reach * high + sy * (high / pooled[0] / samples)
            column = px * (wide / pooled[1]) + left + trans[r, 0, py, px] * reach * wide
            column += sx * (wide / pooled[1] / samples)
            if -0.5 <= row <= rows - 0.5 and -0.5 <= column <= columns - 0.5:
                place = np.clip(row, 0, rows - 1), np.clip(column, 0, columns - 1)
                found.append([interpolate(image, *place) for image in images[int(rois[r, 0]), :, py, px]])
        out[r, :, py, px] = np.mean(found, 0) if found else 0
    return out


ORACLES = {
    oracle.__name__: oracle
    for oracle in (
        trmm_transposed, upper_pairs, mirror_lower, affine_quantize, strided_assign, strided_fill,
        rmsprop_centered_update, hinge_backward, scatter_rows, affine_grid_backward, bilinear_sampler_backward,
        adam_update, rmsprop_update, correlation_backward, average_pool, max_pool, adaptive_average, roi_align,
        adaptive_average_backward, correlation, position_sensitive_roi, position_sensitive_roi_backward, roi_max,
        clear_empty, deformable_roi,
    )
}  # fmt: skip
