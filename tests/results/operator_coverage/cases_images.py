"""Random valid operands and attributes of selections by value, sampling, regions, pooling and resizing."""

from __future__ import annotations

from collections.abc import Mapping

from executor.cases import Case, Generate
from tests.results.operator_coverage.cases import along, drawn

FEW = (2, 3)


def _scatter(d, *, dim=(0, 1), n=(2, 5), s=(1, 4), b=(2, 4)):
    x, index, source = ((extent, b) if dim == 0 else (b, extent) for extent in (n, s, s))
    return Case((d.array(*x), d.below(n, *index), d.array(*source)), {"dim": dim})


SELECTION = {
    "pick": drawn(
        lambda d, axis=(0, 2), n=(2, 4), b=(2, 4), c=(2, 4): Case(
            (along(d, n, axis, b, c), d.below(n, b, c)), {"axis": axis}
        )
    ),
    "sequence_mask": drawn(lambda d, t, b, c=(2, 5), e=FEW: Case((d.array(t, b, c, e), d.below(t + 1, b)))),
    "sequence_last": drawn(lambda d, t, b, c=(2, 5), e=FEW: Case((d.array(t, b, c, e), 1 + d.below(t, b)))),
    "sequence_reverse": drawn(
        lambda d, t, b, c=(2, 5), e=FEW: Case((d.array(t, b, c, e), d.below(t + 1, b)), {"extents": {"i0": t}})
    ),
    "count_sketch": drawn(
        lambda d, b, c=(2, 6), buckets=(2, 5): Case(
            (d.array(b, c), d.below(buckets, c), d.array(c)), {"buckets": buckets}
        )
    ),
    "scatter_last": drawn(
        lambda d, b, s=(2, 6), n=(2, 6): Case((d.array(b, s), d.below(n, b, s)), {"extents": {"i1": n}})
    ),
    "scatter": drawn(_scatter),
}


def _regions(draw, r, rows, columns, images):
    """Image, left, top, right and bottom of regions, some of which reach outside on any side."""
    regions = draw.array(r, 5) * max(rows, columns)
    regions[:, 0] = draw.below(images, r)
    regions[:, 3:] = regions[:, 1:3] + draw.positive(r, 2) * max(rows, columns)
    return regions


def _deformable_convolution(d, *, n=FEW, co=FEW, ci=FEW, k=FEW, y=FEW, x=FEW, padding=(0, 1)):
    size = (k + y - 1 - 2 * padding, k + x - 1 - 2 * padding)
    if min(size) < 1:
        padding, size = 0, (k + y - 1, k + x - 1)
    operands = (d.array(n, ci, *size), d.array(n, k * 2 * 2, y, x) / 4, d.array(co, ci, k, 2))
    return Case(operands, {"stride": (1, 1), "padding": (padding, padding), "extents": {"y": y, "x_": x}})


def _correlated(d, *, n, c, kernel, stride, y, x):
    """Attributes and padded images of a comparison with what is one stride away."""
    size = (y + kernel - 1 + 2 * stride, x + kernel - 1 + 2 * stride)
    attributes = {"kernel": kernel, "reach": 1, "stride": stride, "count": 8.0}
    return d.array(n, c, *size), attributes, size


def _correlation(d, *, n=(2, 4), c=(2, 4), kernel=(1, 2), stride=(1, 2), y=FEW, x=FEW):
    image, attributes, _ = _correlated(d, n=n, c=c, kernel=kernel, stride=stride, y=y, x=x)
    return Case((image, d.array(*image.shape)), attributes)


SPATIAL = {
    "bilinear_sampler": drawn(
        lambda d, n=FEW, c=FEW, y=FEW, x=FEW, p=FEW, q=FEW: Case(
            (d.array(n, c, y, x), d.array(n, 2, p, q)), {"size": (y, x)}
        )
    ),
    "affine_grid": drawn(lambda d, n=(2, 5), y=(2, 5), x=(2, 5): Case((d.array(n, 6),), {"size": (y, x)})),
    "deformable_convolution": drawn(_deformable_convolution),
    "roi_max": drawn(
        lambda d, n=FEW, c=FEW, y=FEW, x=FEW, r=FEW, p=FEW, q=FEW: Case(
            (d.array(n, c, y, x), _regions(d, r, y, x, n)), {"pooled": (p, q), "scale": 0.5}
        )
    ),
    "position_sensitive_roi": drawn(
        lambda d, n=FEW, c=FEW, y=FEW, x=FEW, r=FEW, p=FEW, q=FEW: Case(
            (d.array(n, c * p * q, y, x), _regions(d, r, y, x, n)),
            {"pooled": (p, q), "size": (y, x), "scale": 0.5},
        )
    ),
    "deformable_roi": drawn(
        lambda d, n=FEW, c=FEW, y=FEW, x=FEW, r=FEW, p=FEW, q=FEW: Case(
            (d.array(n, c * p * q, y, x), _regions(d, r, y, x, n), d.array(r, 2, p, q)),
            {"pooled": (p, q), "size": (y, x), "scale": 0.5, "reach": 0.25, "samples": 2},
        )
    ),
    "correlation": drawn(_correlation),
    "multibox_prior": drawn(
        lambda d, y=(2, 5), x=(2, 5), k=(2, 5): Case(
            (), {"widths": tuple(d.positive(k)), "heights": tuple(d.positive(k)), "size": (y, x)}
        )
    ),
}  # fmt: skip


def _pool(d, *, dims=(1, 3), n=(2, 4), k=FEW, s=(1, 3), p=(0, 1), o=FEW):
    """Windows of one extent along every one of `dims` dimensions."""
    p = min(p, k // 2)
    size = max((o - 1) * s + k - 2 * p, 1)
    names = ("dz", "dy", "dx")[-dims:]
    attributes = {"kernel": (k,) * dims, "stride": (s,) * dims, "padding": (p,) * dims}
    return Case(
        (d.array(n, 2, *(size + extra for extra in range(dims))),), {**attributes, "extents": dict.fromkeys(names, k)}
    )


WINDOWS = {
    **dict.fromkeys(("average_pool", "max_pool"), drawn(_pool)),
    "adaptive_average": drawn(
        lambda d, n=FEW, c=FEW, y=(2, 5), x=FEW, q=(2, 4), p=FEW: Case(
            (d.array(n, c, y, x),), {"size": (y, x), "bins": (q, p), "extents": {"y": q, "x": p}}
        )
    ),
    "adaptive_average_backward": drawn(
        lambda d, n=FEW, c=FEW, y=(2, 5), x=FEW, q=(2, 4), p=FEW: Case(
            (d.array(n, c, q, p),), {"size": (y, x), "bins": (q, p), "extents": {"y": y, "x": x}}
        )
    ),
    **dict.fromkeys(
        ("nearest", "bilinear_resize"),
        drawn(
            lambda d, n=FEW, c=FEW, y=(2, 4), x=FEW, q=(2, 5), p=FEW: Case(
                (d.array(n, c, y, x),), {"size": (y, x), "bins": (q, p)}
            )
        ),
    ),
}

CASES: Mapping[str, Generate] = {**SELECTION, **SPATIAL, **WINDOWS}
