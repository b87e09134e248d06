"""Complex numbers of a trace, in place of which stand their real and imaginary parts, as two tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from planner.errors import GraphError
from planner.pytorch.decomposing import copied
from planner.pytorch.graphs import example, leaves, packet, where
from planner.pytorch.private import ComplexTensor, fake_mode_of

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
    function = RULES.get(packet(node), node.target)

    def run(*tensors: Any) -> Any:
        given = dict(zip(operands, tensors, strict=True))
        pairs = {
            whole: ComplexTensor(*(given[part] for part in pair)) for whole, pair in parts.items() if pair[0] in given
        }
        values = given | pairs
        args, named = tree_unflatten([values.get(a, a) if isinstance(a, Node) else a for a in arguments], spec)
        result = function(*args, **named)  # type: ignore[operator]
        if isinstance(result, torch.Tensor) and not isinstance(result, ComplexTensor) and result.is_complex():
            raise NotImplementedError
        return [result.re, result.im] if isinstance(result, ComplexTensor) else result

    examples = [example(operand) for operand in operands]
    with fake_mode_of(examples), torch.no_grad():
        try:
            part = make_fx(run)(*examples)
        except (NotImplementedError, RuntimeError, TypeError) as error:
            raise GraphError(f"{where(node)}: {node.target} of complex numbers has no operator here") from error
    if packet(node) != "detach":
        _attach(part)
    results = copied(module, node, part, operands)
    if _is_complex(node):
        parts[node] = (results[0], results[1])
    else:
        node.replace_all_uses_with(results)
        module.graph.erase_node(node)


def _attach(part: GraphModule) -> None:
    """Let gradients flow to the parts of a complex number, which `ComplexTensor` detaches as it takes them."""
    for inner in list(part.graph.nodes):
        if packet(inner) == "detach":
            inner.replace_all_uses_with(inner.args[0])
            part.graph.erase_node(inner)


def _polar(length: Any, angle: Any) -> Any:
    return ComplexTensor(length * angle.cos(), length * angle.sin())


def _transformed(x: Any, dims: Any, inverse: bool = False) -> Any:
    """Return a discrete Fourier transform, by products with the matrix of each dimension."""
    real, imaginary = (x.re, x.im) if isinstance(x, ComplexTensor) else (x, torch.zeros_like(x))
    for dim in dims:
        count = real.shape[dim]
        numbers = torch.arange(count, dtype=real.dtype, device=real.device)
        angles = torch.outer(numbers, numbers).remainder(count) * ((2 if inverse else -2) * pi / count)
        cosine, sine = angles.cos(), angles.sin()
        real, imaginary = (
            ((a.transpose(dim, -1) @ cosine) + sign * (b.transpose(dim, -1) @ sine)).transpose(dim, -1)
            for a, b, sign in ((real, imaginary, -1), (imaginary, real, 1))
        )
        if inverse:
            real, imaginary = real / count, imaginary / count
    return ComplexTensor(real, imaginary)


def _plain(n: Any, norm: Any) -> None:
    if n is not None or norm is not None:
        raise NotImplementedError


def _fft(x: Any, n: Any = None, dim: int = -1, norm: Any = None, *, inverse: bool = False) -> Any:
    _plain(n, norm)
    return _transformed(x, (dim,), inverse)


def _fftn(x: Any, s: Any = None, dim: Any = None, norm: Any = None, *, inverse: bool = False) -> Any:
    _plain(s, norm)
    return _transformed(x, range(x.ndim) if dim is None else dim, inverse)


RULES: Mapping[str, Callable[..., Any]] = {
    "polar": _polar,
    "complex": lambda re, im: ComplexTensor(*torch.broadcast_tensors(re, im)),  # type: ignore[no-untyped-call]
    "view_as_complex": lambda x: ComplexTensor(x[..., 0], x[..., 1]),
    "view_as_real": lambda x: torch.stack((x.re, x.im), -1),
    "abs": lambda x: torch.linalg.vector_norm(torch.stack((x.re, x.im), -1), dim=-1),
    "real": lambda x: x.re,
    "imag": lambda x: x.im,
    "fft_fft": _fft,
    "fft_ifft": lambda *args, **named: _fft(*args, **named, inverse=True),
    "fft_fftn": _fftn,
    "fft_ifftn": lambda *args, **named: _fftn(*args, **named, inverse=True),
    "fft_fft2": lambda x, s=None, dim=(-2, -1), norm=None: _fftn(x, s, dim, norm),
}
"""Operators between real and complex numbers, by their names; others are the parts' own."""
