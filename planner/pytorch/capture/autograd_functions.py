"""Trace both passes of `torch.autograd.Function`, so that the user's gradient becomes ordinary operators.

A call appears in the trace as `operand` for every tensor that has a gradient, the forward pass on these, `arriving` for
the gradient of every result, the backward pass on these, and `with_gradient`, which ties them together.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointFunction

from planner.errors import GraphError
from planner.pytorch.capture.export_errors import users_line
from planner.pytorch.capture.functionalization import changes_first
from planner.pytorch.capture.regions import UNTRACKED, detach
from planner.pytorch.nodes import example, leaves, packet, where
from planner.pytorch.private import CheckpointHook, FunctionBase

# Functions in `torch.utils.checkpoint`, which PyTorch runs again in the backward pass; and changed parameters.
#
# Forward may change parameters, as masks and norms do. PyTorch's optimizer then updates what forward left in the
# parameter, with the gradient of that content. Therefore the last content becomes a leaf, `planner::changed` in a
# trace, to which gradients flow and no further; its computation reads the parameter without a gradient. A parameter
# that no gradient reaches simply keeps what forward leaves in it.


def leaves_of_their_own(
    graph: Graph, contents: Mapping[Node, Sequence[Node]], trained: Mapping[str, str], loss: Node
) -> dict[Node, Node]:
    """Make leaves of the last contents of parameters; return the last content of everything that changes.

    The result is by placeholder. `contents` lists all contents of every placeholder that changes, in order, starting
    with its own; `trained` names, by placeholder, the parameters that may have gradients. Raises GraphError, with the
    line, for a parameter that changes after a read through which the loss's gradient flows.
    """
    last = {}
    for source, (*before, content) in contents.items():
        last[source] = content
        if source.name not in trained:
            continue
        if loss in dependent(graph, before, contents[source]):
            raise GraphError(
                f"{where(content)}: forward changes the parameter {trained[source.name]} after it was read, so its "
                "gradient is ambiguous: change it before anything reads it, or change a copy, as in weight * mask"
            )
        last[source] = _leaf(graph, source, content)
    return last


def _leaf(graph: Graph, source: Node, content: Node) -> Node:
    """Let readers of a parameter's last content read a leaf instead, and readers of the parameter a detached tensor."""
    detached = detach(source.next, source)
    source.replace_all_uses_with(detached, delete_user_cb=lambda user: user is not detached)
    with graph.inserting_before(content.next):
        leaf = graph.call_function(torch.ops.planner.changed.default, (source, content))
    content.replace_all_uses_with(leaf, delete_user_cb=lambda user: user is not leaf)
    leaf.meta = {**content.meta, "val": example(source), UNTRACKED: False}
    return leaf


def dependent(graph: Graph, before: Iterable[Node], contents: Sequence[Node]) -> set[Node]:
    """Return the nodes to which a gradient may flow from earlier contents of a parameter."""
    dependent = set(before)
    for node in graph.nodes:
        is_cut = packet(node) == "detach" or node in contents or (changes_first(node) and node.meta.get(UNTRACKED))
        if not is_cut and not dependent.isdisjoint(node.all_input_nodes) and _is_real(node):
            dependent.add(node)
    return dependent


def _is_real(node: Node) -> bool:
    """Return True unless a node's results are known to be neither real nor complex, so that it has no gradient."""
    results = [leaf for leaf in leaves(example(node)) if isinstance(leaf, torch.Tensor)]
    return not results or any(tensor.is_floating_point() or tensor.is_complex() for tensor in results)


AROUND: ContextVar[bool] = ContextVar("within a checkpoint", default=False)

INSTEAD = (
    "batch norm changes running statistics within torch.utils.checkpoint, whose function PyTorch runs again in the "
    "backward pass: remove the checkpoint and plan recomputation with --recompute"
)


@contextmanager
def run_again() -> Iterator[None]:
    """Within this context, traced code runs twice in PyTorch."""
    token = AROUND.set(True)
    try:
        yield
    finally:
        AROUND.reset(token)


@contextmanager
def checkpoints_traced() -> Iterator[None]:
    """Within this context, checkpointed functions are traced as code that runs again; saved tensors are ignored.

    PyTorch's own hooks would inspect saved tensors, and leave gradients disabled in a trace of nested checkpoints.
    """
    tokens: list[Token[bool]] = []

    def enter(_: object) -> None:
        tokens.append(AROUND.set(True))

    def leave(_: object, *error: Any) -> None:
        AROUND.reset(tokens.pop())

    CheckpointHook.__enter__, CheckpointHook.__exit__ = enter, leave  # type: ignore[method-assign]
    try:
        yield
    finally:
        del CheckpointHook.__enter__, CheckpointHook.__exit__


def batch_norm(x: Tensor, mean: Tensor | None, var: Tensor | None, *others: Any, **named: Any) -> Tensor:
    """Normalize as F.batch_norm; raise GraphError if running statistics are updated inside a checkpoint."""
    is_training = others[2] if len(others) > 2 else named.get("training", False)
    if AROUND.get() and is_training and mean is not None:
        raise GraphError(f"{users_line(traceback.extract_stack())}{INSTEAD}")
    return F.batch_norm(x, mean, var, *others, **named)


def plain_batch_norm(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, *others: Any, **named: Any) -> Tensor:
    """Normalize as torch.batch_norm, which has another order of arguments."""
    named.pop("cudnn_enabled", None)
    return batch_norm(x, mean, var, weight, bias, *others[:3], **named)


# Trace both passes of `torch.autograd.Function`, so that the user's gradient becomes ordinary operators.


Kernels = Mapping[str, Callable[..., Any]]
"""Functions by the schema of the operator that each implements."""


def define(kernels: Kernels) -> torch.library.Library:
    """Define operators in PyTorch's namespace `planner`; return the library, which keeps them alive."""
    library = torch.library.Library("planner", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema, kernel in kernels.items():
        library.define(schema)  # type: ignore[no-untyped-call]
        library.impl(schema.partition("(")[0], kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    return library


LIBRARY = define({
    "changed(Tensor parameter, Tensor content) -> Tensor": lambda _, content: content.clone(),
    "operand(Tensor self) -> Tensor": lambda x: x.clone(),
    "arriving(Tensor self, Tensor[] operands) -> Tensor": lambda x, operands: torch.zeros_like(x),
    "with_gradient(Tensor[] results, Tensor[] operands, Tensor[] arriving, Tensor[] gradients) -> Tensor[]": (
        lambda results, *_: [result.clone() for result in results]
    ),
})  # fmt: skip

OF_OPERATOR = "GeneratedBackwardFor_"
"""Name prefix of PyTorch's gradients of registered operators, which the trace shows as one operator."""


class _Context(FunctionCtx):
    """The `ctx` argument of both passes of a function."""

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs
        self.to_save: tuple[Any, ...] = ()
        self.non_differentiable: tuple[Tensor, ...] = ()
        self.dirty_tensors: tuple[Tensor, ...] = ()
        self.materialize_grads = True

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What the forward pass saved."""
        return self.to_save

    saved_variables = saved_tensors  # PyTorch's older name


@contextmanager
def functions_traced(module: torch.nn.Module) -> Iterator[None]:
    """Within this context, calls of a `torch.autograd.Function` by a module trace both passes."""

    def apply(function: Any, *arguments: Any) -> Any:
        if function.__name__.startswith(OF_OPERATOR):
            return super(FunctionBase, function).apply(*arguments)
        return _called(function, arguments, module)

    FunctionBase.apply = classmethod(apply)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del FunctionBase.apply  # type: ignore[attr-defined]


def _called(function: Any, arguments: tuple[Any, ...], module: torch.nn.Module) -> Any:
    """Call a function; its results have the gradient that its backward pass computes.

    Raises GraphError if the backward pass changes a tensor of the module: the rest of the forward pass would read the
    new content.
    """
    if function is CheckpointFunction:
        return _checkpointed(*arguments)
    needs = tuple(torch.is_grad_enabled() and isinstance(x, Tensor) and x.requires_grad for x in arguments)
    context = _Context(needs)
    given = [torch.ops.planner.operand(x) if need else x for x, need in zip(arguments, needs, strict=True)]
    operands = [x for x, need in zip(given, needs, strict=True) if need]
    with torch.no_grad():
        result = _forward(function, context, given)
    if context.dirty_tensors or any(operand._version for operand in operands):
        raise _refused(function, "changes its inputs in place: return a new tensor instead")
    results: list[Any] = leaves(result)
    tracked = [x for x in results if _has_gradient(x) and all(x is not other for other in context.non_differentiable)]
    if not operands or not tracked:
        return result
    if len(tracked) > 1 and not context.materialize_grads:
        raise _refused(function, "uses set_materialize_grads(False): remove it")
    arriving = [torch.ops.planner.arriving(x, operands) for x in tracked]
    with torch.no_grad():
        others = [_without_gradient(x) if context.materialize_grads else None for x in results]
        before = _contents(module)
        gradients = _backward(function, context, given, _in_place_of(results, tracked, arriving, others))
    if before != _contents(module):
        why = "stores or changes a tensor of the module in its backward pass, which later steps may read"
        raise _refused(function, f"{why}: do that in __init__ or in the forward pass")
    pairs = [(x, gradient) for x, gradient in zip(operands, gradients, strict=True) if gradient is not None]
    if not pairs:
        return result
    reached, gradients = map(list, zip(*pairs, strict=True))
    again = torch.ops.planner.with_gradient(tracked, reached, arriving, gradients)
    replaced = _in_place_of(results, tracked, again)
    return type(result)(replaced) if isinstance(result, list | tuple) else replaced[0]


def _contents(module: torch.nn.Module) -> list[tuple[int, int]]:
    """Return what tells the contents of a module's parameters, buffers and tensor attributes apart."""
    holders = (holder for part in module.modules() for holder in (part._parameters, part._buffers, vars(part)))
    return [(id(x), x._version) for holder in holders for x in holder.values() if isinstance(x, Tensor)]


def _checkpointed(run: Any, keeps_random_state: bool, *arguments: Any) -> Any:
    """Call a checkpointed function; without an operand that requires gradients its result has none."""
    if not torch.is_grad_enabled():
        return run(*arguments)
    if not any(isinstance(given, Tensor) and given.requires_grad for given in arguments):
        with torch.no_grad():
            return run(*arguments)
    with run_again():
        return run(*arguments)


def _forward(function: Any, context: _Context, given: Sequence[Any]) -> Any:
    if function.setup_context == FunctionBase.setup_context:
        return function.forward(context, *given)
    result = function.forward(*given)
    function.setup_context(context, tuple(given), result)
    return result


def _backward(function: Any, context: _Context, given: Sequence[Any], arriving: Sequence[Any]) -> list[Tensor | None]:
    """Return the gradients of the operands that need one, in their shapes and dtypes, or None."""
    gradients = leaves(function.backward(context, *arriving))
    return [
        gradient.sum_to_size(x.shape).to(x.dtype) if isinstance(gradient, Tensor) else None
        for x, gradient, need in zip(given, gradients, context.needs_input_grad, strict=False)
        if need
    ]


def _in_place_of(
    results: Sequence[Any], tracked: Sequence[Tensor], others: Sequence[Tensor], rest: Sequence[Any] | None = None
) -> list[Any]:
    """Return results with `others` in place of tracked ones and, if given, `rest` in place of the remaining ones."""
    other = {id(x): y for x, y in zip(tracked, others, strict=True)}
    return [other.get(id(x), y) for x, y in zip(results, results if rest is None else rest, strict=True)]


def _without_gradient(result: Any) -> Any:
    """Return the gradient that the backward pass receives for a result without one."""
    return torch.zeros_like(result) if isinstance(result, Tensor) else None


def _has_gradient(result: object) -> bool:
    return isinstance(result, Tensor) and result.is_floating_point()


def _refused(function: Any, why: str) -> GraphError:
    return GraphError(f"{users_line(traceback.extract_stack())}{function.__name__}, a torch.autograd.Function, {why}")
