"""Rewrite complex numbers of a trace as pairs of real tensors: real and imaginary part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
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
from planner.pytorch.translate.compositions import with_gradient
from planner.pytorch.translate.decompositions import copied
from rare_operators.fourier import TRANSFORMS

aten = torch.ops.aten


def real_alone(module: GraphModule) -> None:
    """Replace every operator on complex numbers by operators on their parts."""
    parts: dict[Node, tuple[Node, Node]] = {}
    for node in list(module.graph.nodes):
        if node.op == "placeholder" and _is_complex(node):
            parts[node] = _parts_of_source(node)
        elif node.op == "call_function" and (_is_complex(node) or not parts.keys().isdisjoint(node.all_input_nodes)):
            if node.users:
                _rewrite(module, node, parts)
            else:  # an assertion, which leaves nothing
                module.graph.erase_node(node)
    for node in reversed(list(module.graph.nodes)):
        if node.op == "call_function" and _is_complex(node) and not node.users:
            module.graph.erase_node(node)


def _is_complex(node: Node) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.is_complex() for leaf in leaves(example(node)))


def _parts_of_source(node: Node) -> tuple[Node, Node]:
    """Return the nodes of the parts of a placeholder."""
    parts = []
    with node.graph.inserting_after(node):
        for part in (aten.imag.default, aten.real.default):
            parts.append(node.graph.call_function(part, (node,)))
            parts[-1].meta = {**node.meta, "val": part(example(node))}
    return parts[1], parts[0]


def _rewrite(module: GraphModule, node: Node, parts: dict[Node, tuple[Node, Node]]) -> None:
    """Insert the operators on parts before a node; readers of a real result read theirs."""
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
            raise GraphError(f"{where(node)}: {node.target} does not support complex numbers here") from error
    if packet(node) != "detach":
        _attach(part)
    results = copied(module, node, part, operands)
    if _is_complex(node):
        parts[node] = (results[0], results[1])
    else:
        node.replace_all_uses_with(results)
        module.graph.erase_node(node)


def _function(node: Node) -> Any:
    """Return the function to call on complex numbers; for an in-place operator, its functional form."""
    name, rules = packet(node), {**RULES, **TRANSFORMS}
    if not changes_first(node):
        return rules.get(name, node.target)
    name = name.removesuffix("_")
    return rules.get(name) or getattr(getattr(aten, name), node.target._overloadname)  # type: ignore[union-attr]


def _attach(part: GraphModule) -> None:
    """Let gradients flow to the parts of a complex number, which `ComplexTensor` detaches."""
    for inner in list(part.graph.nodes):
        if packet(inner) == "detach":
            inner.replace_all_uses_with(inner.args[0])
            part.graph.erase_node(inner)


def _arithmetic(function: Callable[..., Any], first: Any, second: Any, **named: Any) -> Any:
    """Compute with two operands, one of which may be a real tensor or a number."""
    is_complex = [isinstance(operand, ComplexTensor) for operand in (first, second)]
    if function is aten.mul and is_complex == [False, True]:
        first, second = second, first
    if function in {aten.mul, aten.div} and isinstance(first, ComplexTensor) and _is_real(second) and not named:
        return ComplexTensor(function(first.re, second), function(first.im, second))
    return function(_complex(first), _complex(second), **named)


def _is_real(operand: Any) -> bool:
    return isinstance(operand, torch.Tensor) and not isinstance(operand, ComplexTensor)


def _complex(operand: Any) -> Any:
    """Return a real tensor as a complex one; integers become PyTorch's default dtype."""
    if not _is_real(operand):
        return operand
    real = operand if operand.is_floating_point() else operand.to(torch.get_default_dtype())
    return ComplexTensor(real, torch.zeros_like(real))


def _to(x: Any, *how: Any, **named: Any) -> Any:
    """Return a tensor in the dtype among the arguments; a real dtype keeps only the real part."""
    dtype = next((value for value in (*how, *named.values()) if isinstance(value, torch.dtype)), None)
    x = _complex(x)
    if dtype is None:
        return x
    return ComplexTensor(*(part.to(dtype.to_real()) for part in (x.re, x.im))) if dtype.is_complex else x.re.to(dtype)


def _polar(length: Any, angle: Any) -> Any:
    """Return complex numbers of given lengths and angles, with the gradients of PyTorch (through sign and value)."""
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
"""The gradient of the angle multiplies by a whole complex number, including its zeros, as in PyTorch."""


def _filled(number: complex, shape: Any, dtype: Any = None, **_: Any) -> Any:
    """Return a tensor filled with a number."""
    part = torch.float32 if dtype is torch.complex64 else torch.float64
    return ComplexTensor(*(torch.full(list(shape), value, dtype=part) for value in (number.real, number.imag)))


RULES: Mapping[str, Callable[..., Any]] = {
    **{name: partial(_arithmetic, getattr(aten, name)) for name in ("add", "sub", "mul", "div")},
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
}
"""Operators between real and complex numbers, by name; others work on the parts directly."""
