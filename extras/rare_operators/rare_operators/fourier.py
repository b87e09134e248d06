"""Fourier transforms as products with their matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import pi, sqrt
from typing import Any

import torch

from planner.pytorch.private import ComplexTensor
from planner.pytorch.translate.call import refuse_if


def _turns(rows: int, columns: int, count: int, like: Any) -> tuple[Any, Any]:
    """Return the cosines and sines of row * column / `count` turns: two matrices [rows, columns] with exact zeros."""
    numbers = [torch.arange(extent, dtype=like.dtype, device=like.device) for extent in (rows, columns)]
    parts = torch.outer(*numbers).remainder(count)
    angles = parts * (2 * pi / count)
    cosine = torch.where((4 * parts).remainder(2 * count) == count, 0, angles.cos())
    return cosine, torch.where((2 * parts).remainder(count) == 0, 0, angles.sin())


def _sized(x: Any, n: int | None, dim: int) -> Any:
    """Return a tensor with `n` elements along a dimension: truncated, or padded with zeros."""
    if n is None or n == x.shape[dim]:
        return x
    if n < x.shape[dim]:
        return x.narrow(dim, 0, n)
    more = [*x.shape]
    more[dim] = n - x.shape[dim]
    return torch.cat([x, x.new_zeros(more)], dim)


def _scale(count: int, norm: str | None, inverse: bool) -> float:
    """Return the divisor of a transform."""
    if norm == "ortho":
        return sqrt(count)
    return count if (norm == "forward") != inverse else 1


def _along(part: Any, matrix: Any, dim: int) -> Any:
    """Multiply one dimension of a tensor by a matrix."""
    return (part.transpose(dim, -1) @ matrix).transpose(dim, -1)


def _fft(x: Any, n: Any = None, dim: int = -1, norm: Any = None, *, inverse: bool = False) -> Any:
    """Return a discrete Fourier transform."""
    real, imaginary = (x.re, x.im) if isinstance(x, ComplexTensor) else (x, torch.zeros_like(x))
    real, imaginary = (_sized(part, n, dim) for part in (real, imaginary))
    count = real.shape[dim]
    cosine, sine = _turns(count, count, count, real)
    sine = sine if inverse else -sine
    by = _scale(count, norm, inverse)
    return ComplexTensor(
        (_along(real, cosine, dim) - _along(imaginary, sine, dim)) / by,
        (_along(imaginary, cosine, dim) + _along(real, sine, dim)) / by,
    )


def _rfft(x: Any, n: Any = None, dim: int = -1, norm: Any = None) -> Any:
    """Return the first half of a real tensor's transform, which determines the other half."""
    x = _sized(x, n, dim)
    count = x.shape[dim]
    cosine, sine = _turns(count, count // 2 + 1, count, x)
    by = _scale(count, norm, False)
    return ComplexTensor(_along(x, cosine, dim) / by, _along(x, -sine, dim) / by)  # 0, not -0, if a sum is real


def _irfft(x: Any, n: Any = None, dim: int = -1, norm: Any = None) -> Any:
    """Return the real tensor whose transform starts with `x`."""
    real, imaginary = (x.re, x.im) if isinstance(x, ComplexTensor) else (x, torch.zeros_like(x))
    count = 2 * (real.shape[dim] - 1) if n is None else n
    real, imaginary = (_sized(part, count // 2 + 1, dim) for part in (real, imaginary))
    cosine, sine = _turns(count // 2 + 1, count, count, real)
    places = torch.arange(count // 2 + 1, device=real.device)
    twice = torch.where((places == 0) | (2 * places == count), 1.0, 2.0).to(real.dtype)[:, None]
    return (_along(real, cosine * twice, dim) - _along(imaginary, sine * twice, dim)) / _scale(count, norm, True)


def _stft(x: Any, n_fft: int, hop_length: Any = None, win_length: Any = None, window: Any = None, *flags: Any) -> Any:
    """Return the transforms of windows of a real tensor's last dimension: [..., frequency, window]."""
    is_normalized, onesided, *_ = *flags, None, None
    refuse_if(isinstance(x, ComplexTensor) or isinstance(window, ComplexTensor), "only real windows are supported")
    length = win_length or n_fft
    left = (n_fft - length) // 2
    window = x.new_ones(length) if window is None else window
    window = torch.cat([x.new_zeros(left), window.to(x.dtype), x.new_zeros(n_fft - length - left)])
    frames = x.unfold(-1, n_fft, hop_length or n_fft // 4) * window
    transform = _fft if onesided is False else _rfft
    result = transform(frames, norm="ortho" if is_normalized else None)
    return ComplexTensor(result.re.transpose(-1, -2), result.im.transpose(-1, -2))


def _fftn(x: Any, s: Any = None, dim: Any = None, norm: Any = None, *, inverse: bool = False) -> Any:
    dims, sizes = _dims(x, s, dim)
    for axis, size in zip(dims, sizes, strict=True):
        x = _fft(x, size, axis, norm, inverse=inverse)
    return x


def _rfftn(x: Any, s: Any = None, dim: Any = None, norm: Any = None) -> Any:
    (*dims, last), (*sizes, size) = _dims(x, s, dim)
    return _fftn(_rfft(x, size, last, norm), sizes, dims, norm)


def _irfftn(x: Any, s: Any = None, dim: Any = None, norm: Any = None) -> Any:
    (*dims, last), (*sizes, size) = _dims(x, s, dim)
    return _irfft(_fftn(x, sizes, dims, norm, inverse=True), size, last, norm)


def _dims(x: Any, s: Any, dim: Any) -> tuple[list[int], list[Any]]:
    """Return the dimensions to transform (all, or the last `len(s)`, by default) and their sizes (None: unchanged)."""
    dims = list(range(-len(s), 0) if s else range(-x.ndim, 0)) if dim is None else list(dim)
    return dims, list(s) if s else [None] * len(dims)


OF_IMAGES = (-2, -1)


def _of_parts(function: Callable[..., Any], x: Any, *how: Any) -> Any:
    """Apply an operator that only moves elements to both parts."""
    return ComplexTensor(function(x.re, *how), function(x.im, *how))


TRANSFORMS: Mapping[str, Callable[..., Any]] = {
    **{f"fft_{name}": partial(_of_parts, getattr(torch.fft, name)) for name in ("fftshift", "ifftshift")},
    "fft_fft": _fft,
    "fft_ifft": partial(_fft, inverse=True),
    "fft_rfft": _rfft,
    "fft_irfft": _irfft,
    "stft": _stft,
    "fft_fftn": _fftn,
    "fft_ifftn": partial(_fftn, inverse=True),
    "fft_rfftn": _rfftn,
    "fft_irfftn": _irfftn,
    "fft_fft2": lambda x, s=None, dim=OF_IMAGES, norm=None: _fftn(x, s, dim, norm),
    "fft_ifft2": lambda x, s=None, dim=OF_IMAGES, norm=None: _fftn(x, s, dim, norm, inverse=True),
    "fft_rfft2": lambda x, s=None, dim=OF_IMAGES, norm=None: _rfftn(x, s, dim, norm),
    "fft_irfft2": lambda x, s=None, dim=OF_IMAGES, norm=None: _irfftn(x, s, dim, norm),
}
"""Functions by operator name."""
