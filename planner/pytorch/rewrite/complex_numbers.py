"""Complex numbers of a trace, in place of which stand their real and imaginary parts, as two tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import pi, sqrt
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from planner.errors import GraphError
from planner.pytorch.capture.functionalization import changes_first
from planner.pytorch.nodes import example, leaves, packet, where
from planner.pytorch.private import ComplexTensor, fake_mode_of
from planner.pytorch.translate.call import UnsupportedError, refuse_if
from planner.pytorch.translate.decompositions import copied
from planner.pytorch.translate.gradient_overrides import with_gradient

aten = torch.ops.aten


def real_alone(module: GraphModule) -> None:
    """Write every operator on complex numbers with operators on their parts."""
    parts: dict[Node, tuple[Node, Node]] = {}
    for node in list(module.graph.nodes):
        if node.op == "placeholder" and _is_complex(node):
            parts[node] = _parts_of_source(node)
        elif node.op == "call_function" and (_is_complex(node) or not parts.keys().isdisjoint(node.all_input_nodes)):
            if node.users:
                _rewrite(module, node, parts)
            else:  # an assertion, of which nothing is left
                module.graph.erase_node(node)
    for node in reversed(list(module.graph.nodes)):
        if node.op == "call_function" and _is_complex(node) and not node.users:
            module.graph.erase_node(node)


def _is_complex(node: Node) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.is_complex() for leaf in leaves(example(node)))


def _parts_of_source(node: Node) -> tuple[Node, Node]:
    """Return the nodes of the parts of a tensor that the trace is given."""
    parts = []
    with node.graph.inserting_after(node):
        for part in (aten.imag.default, aten.real.default):
            parts.append(node.graph.call_function(part, (node,)))
            parts[-1].meta = {**node.meta, "val": part(example(node))}
    return parts[1], parts[0]


def _rewrite(module: GraphModule, node: Node, parts: dict[Node, tuple[Node, Node]]) -> None:
    """Put the operators of the parts before a node; what reads a real result reads theirs."""
    operands = [part for operand in node.all_input_nodes for part in parts.get(operand, (operand,))]
    arguments, spec = tree_flatten((node.args, node.kwargs))
    function = _function(node)

    def run(*tensors: Any) -> Any:
        given = dict(zip(operands, tensors, strict=True))
        wholes = [operand for operand in node.all_input_nodes if operand in parts]
        values = given | {whole: ComplexTensor(*(given[part] for part in parts[whole])) for whole in wholes}
        args, named = tree_unflatten([values.get(a, a) if isinstance(a, Node) else a for a in arguments], spec)
        result = function(*args, **named)
        has_parts = isinstance(result, ComplexTensor) or not isinstance(result, torch.Tensor) or not result.is_complex()
        refuse_if(not has_parts, "its result has no parts")
        return [result.re, result.im] if isinstance(result, ComplexTensor) else result

    examples = [example(operand) for operand in operands]
    with fake_mode_of([*examples, *leaves(example(node))]), torch.no_grad():
        try:
            part = make_fx(run)(*examples)
        except (UnsupportedError, NotImplementedError, RuntimeError, TypeError) as error:
            raise GraphError(f"{where(node)}: {node.target} of complex numbers has no operator here") from error
    if packet(node) != "detach":
        _attach(part)
    results = copied(module, node, part, operands)
    if _is_complex(node):
        parts[node] = (results[0], results[1])
    else:
        node.replace_all_uses_with(results)
        module.graph.erase_node(node)


def _function(node: Node) -> Any:
    """Return what is called on complex numbers; of an operator that changes its operand, that which returns it."""
    name = packet(node)
    if not changes_first(node):
        return RULES.get(name, node.target)
    name = name.removesuffix("_")
    return RULES.get(name) or getattr(getattr(aten, name), node.target._overloadname)  # type: ignore[union-attr]


def _attach(part: GraphModule) -> None:
    """Let gradients flow to the parts of a complex number, which `ComplexTensor` detaches as it takes them."""
    for inner in list(part.graph.nodes):
        if packet(inner) == "detach":
            inner.replace_all_uses_with(inner.args[0])
            part.graph.erase_node(inner)


def _arithmetic(function: Callable[..., Any], first: Any, second: Any, **named: Any) -> Any:
    """Compute with two operands, of which one may be a real tensor, or a number."""
    is_complex = [isinstance(operand, ComplexTensor) for operand in (first, second)]
    if function is aten.mul and is_complex == [False, True]:
        first, second = second, first
    if function in {aten.mul, aten.div} and isinstance(first, ComplexTensor) and _is_real(second) and not named:
        return ComplexTensor(function(first.re, second), function(first.im, second))
    return function(_complex(first), _complex(second), **named)


def _is_real(operand: Any) -> bool:
    return isinstance(operand, torch.Tensor) and not isinstance(operand, ComplexTensor)


def _complex(operand: Any) -> Any:
    """Return a real tensor as a complex one; whole numbers in the precision of PyTorch's default."""
    if not _is_real(operand):
        return operand
    real = operand if operand.is_floating_point() else operand.to(torch.get_default_dtype())
    return ComplexTensor(real, torch.zeros_like(real))


def _to(x: Any, *how: Any, **named: Any) -> Any:
    """Return a tensor in the dtype that is among the arguments, of real numbers the real part alone."""
    dtype = next((value for value in (*how, *named.values()) if isinstance(value, torch.dtype)), None)
    x = _complex(x)
    if dtype is None:
        return x
    return ComplexTensor(*(part.to(dtype.to_real()) for part in (x.re, x.im))) if dtype.is_complex else x.re.to(dtype)


def _of_parts(function: Callable[..., Any], x: Any, *how: Any) -> Any:
    """Return what an operator that only moves elements makes of both parts."""
    return ComplexTensor(function(x.re, *how), function(x.im, *how))


def _polar(length: Any, angle: Any) -> Any:
    """Return complex numbers of a length, and an angle, whose gradients are those that their sign and value give."""
    operands = torch.broadcast_tensors(length, angle)  # type: ignore[no-untyped-call]
    return ComplexTensor(_real_of_polar(*operands), _imaginary_of_polar(*operands))


def _sign(part: Callable[..., Any], length: Any, angle: Any) -> Any:
    """Return a part of the sign of complex numbers."""
    size = torch.hypot(length * angle.cos(), length * angle.sin())
    return torch.where(size == 0, 0, length * part(angle) / size)


_real_of_polar = with_gradient(
    lambda length, angle: length * angle.cos(),
    lambda arriving, *polar: arriving * _sign(torch.cos, *polar),
    lambda arriving, length, angle: arriving * (0 * (length * angle.cos()) - length * angle.sin()),
)
_imaginary_of_polar = with_gradient(
    lambda length, angle: length * angle.sin(),
    lambda arriving, *polar: arriving * _sign(torch.sin, *polar),
    lambda arriving, length, angle: arriving * (length * angle.cos() + 0 * (length * angle.sin())),
)
"""The gradient of the angle multiplies by a whole complex number, zeros among it, as PyTorch's does."""


def _turns(rows: int, columns: int, count: int, like: Any) -> tuple[Any, Any]:
    """Return cosines and sines of products of whole numbers, as parts of so many that make a turn; zeros are exact."""
    numbers = [torch.arange(extent, dtype=like.dtype, device=like.device) for extent in (rows, columns)]
    parts = torch.outer(*numbers).remainder(count)
    angles = parts * (2 * pi / count)
    cosine = torch.where((4 * parts).remainder(2 * count) == count, 0, angles.cos())
    return cosine, torch.where((2 * parts).remainder(count) == 0, 0, angles.sin())


def _sized(x: Any, n: int | None, dim: int) -> Any:
    """Return a tensor with so many elements along a dimension: without the last, or with zeros after them."""
    if n is None or n == x.shape[dim]:
        return x
    if n < x.shape[dim]:
        return x.narrow(dim, 0, n)
    more = [*x.shape]
    more[dim] = n - x.shape[dim]
    return torch.cat([x, x.new_zeros(more)], dim)


def _scale(count: int, norm: str | None, inverse: bool) -> float:
    """Return what a transform is divided by."""
    if norm == "ortho":
        return sqrt(count)
    return count if (norm == "forward") != inverse else 1


def _along(part: Any, matrix: Any, dim: int) -> Any:
    """Multiply a dimension of a tensor by a matrix."""
    return (part.transpose(dim, -1) @ matrix).transpose(dim, -1)


def _fft(x: Any, n: Any = None, dim: int = -1, norm: Any = None, *, inverse: bool = False) -> Any:
    """Return a discrete Fourier transform, by a product with its matrix."""
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
    """Return the first half of a real tensor's transform, which tells the other."""
    x = _sized(x, n, dim)
    count = x.shape[dim]
    cosine, sine = _turns(count, count // 2 + 1, count, x)
    by = _scale(count, norm, False)
    return ComplexTensor(_along(x, cosine, dim) / by, _along(x, -sine, dim) / by)  # 0, not -0, where a sum is real


def _irfft(x: Any, n: Any = None, dim: int = -1, norm: Any = None) -> Any:
    """Return the real tensor of whose transform this is the first half."""
    real, imaginary = (x.re, x.im) if isinstance(x, ComplexTensor) else (x, torch.zeros_like(x))
    count = 2 * (real.shape[dim] - 1) if n is None else n
    real, imaginary = (_sized(part, count // 2 + 1, dim) for part in (real, imaginary))
    cosine, sine = _turns(count // 2 + 1, count, count, real)
    places = torch.arange(count // 2 + 1, device=real.device)
    twice = torch.where((places == 0) | (2 * places == count), 1.0, 2.0).to(real.dtype)[:, None]
    return (_along(real, cosine * twice, dim) - _along(imaginary, sine * twice, dim)) / _scale(count, norm, True)


def _stft(x: Any, n_fft: int, hop_length: Any = None, win_length: Any = None, window: Any = None, *flags: Any) -> Any:
    """Return transforms of windows of a real tensor's last dimension: [..., frequency, window]."""
    is_normalized, onesided, *_ = *flags, None, None
    refuse_if(isinstance(x, ComplexTensor) or isinstance(window, ComplexTensor), "its windows are of real numbers")
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
    """Return the dimensions that are transformed, all or the last unless told, and their sizes, None as they are."""
    dims = list(range(-len(s), 0) if s else range(-x.ndim, 0)) if dim is None else list(dim)
    return dims, list(s) if s else [None] * len(dims)


OF_IMAGES = (-2, -1)


def _filled(number: complex, shape: Any, dtype: Any = None, **_: Any) -> Any:
    """Return a tensor of a number all over."""
    part = torch.float32 if dtype is torch.complex64 else torch.float64
    return ComplexTensor(*(torch.full(list(shape), value, dtype=part) for value in (number.real, number.imag)))


RULES: Mapping[str, Callable[..., Any]] = {
    **{name: partial(_arithmetic, getattr(aten, name)) for name in ("add", "sub", "mul", "div")},
    **{f"fft_{name}": partial(_of_parts, getattr(torch.fft, name)) for name in ("fftshift", "ifftshift")},
    "to": _to,
    "polar": _polar,
    "zeros": partial(_filled, 0j),
    "ones": partial(_filled, 1 + 0j),
    "zeros_like": lambda x, **_: ComplexTensor(torch.zeros_like(x.re), torch.zeros_like(x.im)),
    "new_zeros": lambda x, shape, **_: ComplexTensor(x.re.new_zeros(shape), x.re.new_zeros(shape)),
    "complex": lambda re, im: ComplexTensor(*torch.broadcast_tensors(re, im)),  # type: ignore[no-untyped-call]
    "view_as_complex": lambda x: ComplexTensor(x[..., 0], x[..., 1]),
    "view_as_real": lambda x: torch.stack((x.re, x.im), -1),
    "abs": lambda x: torch.linalg.vector_norm(torch.stack((x.re, x.im), -1), dim=-1),
    "real": lambda x: x.re,
    "imag": lambda x: x.im,
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
"""Operators between real and complex numbers, by their names; others are the parts' own."""
