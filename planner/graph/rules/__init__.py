"""Automatic differentiation: append the nodes that compute gradients, by a rule for each differentiable operator.

A rule sees one forward node and returns one gradient per operand, or None where no gradient flows. Compound operators
(batch norm, softmax, cross entropy) are differentiated whole: they return the total derivative, including that through
the statistics, so the nodes that compute the statistics get no gradient of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

from planner.errors import GraphError
from planner.graph.build import GraphBuilder, WrittenGradient
from planner.graph.ir import FLOATING, Node, renamed
from planner.graph.rules import compound, elements, matrix
from planner.graph.rules.base import (
    Backward as Backward,
    Gradient as Gradient,
    Gradients as Gradients,
    Rule as Rule,
    apply_rule as apply_rule,
    flat as flat,
    level as level,
    materialize as materialize,
)
from planner.grouping import grouped

_FAMILIES = (elements, matrix, compound)
RULES: dict[str, Rule] = {op: rule for family in _FAMILIES for op, rule in family.RULES.items()}

UNBOUNDED = frozenset((
    "acos", "acosh", "asin", "atanh", "cbrt", "cosh", "div", "exp", "expm1", "hypot", "log", "log10", "log1p", "log2",
    "pow", "pow_scalar", "reciprocal", "rpow_scalar", "rsqrt", "sinh", "sqrt", "torch_call",
))  # fmt: skip
"""Operators without a finite result or slope for some operands of ordinary size, or that are unknown here."""


MANY = 8
"""For up to MANY readers, contributions to a gradient are added at once; for more, in pairs as they are computed.

PyTorch adds pairwise. So each decoder layer adds to the gradient of the encoder's result, and layers repeat.
"""


def gradients(builder: GraphBuilder, loss: str, wrt: Iterable[str], seed: float = 1.0) -> dict[str, str]:
    """Append the backward nodes for `seed` * d `loss` / d t for every tensor t in `wrt`; return the gradients' names.

    A tensor used several times gets its gradient from one `add_n` over all contributions, or from several (`MANY`). The
    gradient of t is named "t.grad" if a node computes it for t alone (an addition passes one gradient to both
    operands). A backward node names its forward node in `forward` and copies its `unroll`. Gradients that nobody needs
    are not computed.

    Raises GraphError if the loss is not a scalar, does not depend on a tensor in `wrt`, or depends on it through an
    operator without a rule or with a rule that does not return one gradient per operand.
    """
    if builder.shape(loss) != ():
        raise GraphError(f"loss {loss!r} must be a scalar, found shape {builder.shape(loss)}")
    return _Reverse(builder, loss, tuple(wrt), seed).run()


class _Reverse:
    """One reverse sweep over the builder's nodes."""

    def __init__(self, builder: GraphBuilder, loss: str, wrt: tuple[str, ...], seed: float) -> None:
        self.builder = builder
        self.wrt = wrt
        self.forward = tuple(builder.nodes)
        self.producers = {output: node for node in self.forward for output in node.outputs}
        self.written = {written.results[0]: written for written in builder.written}
        self.readers = Counter(name for node in self.forward for name in node.inputs)
        self.operands = {result: written.operands for written in builder.written for result in written.results}
        self.needed = self._dependents(wrt)
        self.contributions: defaultdict[str, list[Gradient]] = defaultdict(list)
        self.contributions[loss].append(seed)
        self.partial_sums = Counter[str]()
        self.totals: dict[str, Gradient] = {}
        self.names: dict[str, str] = {}

    def run(self) -> dict[str, str]:
        first_readers, before = self._first_readers(), (len(self.builder.nodes), len(self.builder.tensors))
        for number in range(len(self.forward) - 1, -1, -1):
            node = self.forward[number]
            if self._leads_on(node):
                self._differentiate(node)
            for tensor in first_readers.get(number, ()):
                self._total(tensor)
        totals = {tensor: self._finished(tensor) for tensor in self.wrt}
        self.builder.take_back(*before, totals.values())
        self.builder.rename({old: new for old, new in self.names.items() if old in self.builder.tensors})
        return {tensor: self.names.get(name, name) for tensor, name in totals.items()}

    def _dependents(self, wrt: tuple[str, ...]) -> set[str]:
        """Return the tensors that depend on `wrt` and may have a gradient.

        Integers may have none, nor anything behind a stopped gradient. A gradient of zeros stays a gradient if it may
        reach an operator that turns it into NaN, as in PyTorch.
        """
        needed, unbounded = set(wrt), set[str]()
        for node in self.forward:
            reads = self._reads(node)
            is_written = node.outputs[0] in self.operands
            rule = None if is_written else RULES.get(node.op)
            is_flat = rule is flat or (rule is level and unbounded.isdisjoint(reads))
            if needed.isdisjoint(reads) or is_flat:
                continue
            reached = [name for name in node.outputs if self.builder.tensors[name].dtype in FLOATING]
            needed.update(reached)
            if is_written or node.op in UNBOUNDED or not unbounded.isdisjoint(reads):
                unbounded.update(reached)
        return needed

    def _reads(self, node: Node) -> tuple[str, ...]:
        """Return the tensors to which a node passes gradients."""
        return self.operands.get(node.outputs[0], node.inputs)

    def _leads_on(self, node: Node) -> bool:
        """Return True if a gradient of some operand is needed, and can arrive at some output."""
        return not (self.needed.isdisjoint(self._reads(node)) or self.needed.isdisjoint(node.outputs))

    def _first_readers(self) -> dict[int, list[str]]:
        """Return, per node number, the tensors of `wrt` whose gradient is complete once that node is processed."""
        first: dict[str, int] = {}
        for number, node in enumerate(self.forward):
            for tensor in (*node.inputs, *self._reads(node)):
                first.setdefault(tensor, number)
        given = (t for t in self.wrt if not (t in self.producers and self._leads_on(self.producers[t])))
        return grouped((first[tensor], tensor) for tensor in given if tensor in first)

    def _differentiate(self, node: Node) -> None:
        if node.outputs[0] in self.operands:
            if node.outputs[0] in self.written:  # the first of the nodes is processed last
                self._follow(self.written[node.outputs[0]], node)
            return
        arriving = tuple(self._total(output) for output in node.outputs)
        if all(gradient is None for gradient in arriving):
            return
        rule = RULES.get(node.op)
        if rule is None:
            raise GraphError(
                f"node {node.name!r}: operator {node.op!r} has no gradient rule; "
                "planner.extensions.gradient registers one"
            )
        wanted = tuple(tensor in self.needed for tensor in node.inputs)
        backward = Backward(self.builder, node, arriving, wanted, self.producers)
        before = len(self.builder.nodes), len(self.builder.tensors)
        self._pass_on(node, before, zip(node.inputs, apply_rule(rule, backward), strict=True))

    def _pass_on(self, node: Node, before: tuple[int, int], gradients: Iterable[tuple[str, Gradient | None]]) -> None:
        """Contribute a node's gradients that are needed; of the nodes and tensors after `before`, keep only theirs."""
        needed = [(tensor, gradient) for tensor, gradient in gradients if tensor in self.needed]
        self.builder.take_back(*before, (gradient for _, gradient in needed if isinstance(gradient, str)))
        for tensor, gradient in needed:
            if gradient is not None:
                self._contribute(tensor, gradient, node)

    def _contribute(self, tensor: str, gradient: Gradient, reader: Node) -> None:
        """Keep a reader's contribution to a gradient; add it at once if a tensor between layers has many readers."""
        terms = self.contributions[tensor]
        terms.append(gradient)
        is_between = self.builder.tensors[tensor].role == "activation" and self.readers[tensor] > MANY
        if is_between and len(terms) > 1 and all(isinstance(term, str) for term in terms):
            self.partial_sums[tensor] += 1
            name = f"{_gradient_name(tensor)}.{self.partial_sums[tensor]}"
            self.contributions[tensor] = [self._added(tensor, terms, reader, name)]

    def _follow(self, written: WrittenGradient, node: Node) -> None:
        """Append the nodes of a user-written gradient, applied to the arriving gradients."""
        arriving = {result: self._total(result) for result in written.results}
        if all(total is None for total in arriving.values()):
            return
        names = {
            stand_in: materialize(self.builder, total, result)
            for stand_in, (result, total) in zip(written.arriving, arriving.items(), strict=True)
        }
        before = len(self.builder.nodes), len(self.builder.tensors)
        for inner in written.nodes:
            self.builder.emit(replace(renamed(inner, names), forward=node.name), "gradient")
        gradients = [names.get(gradient, gradient) for gradient in written.gradients]
        self._pass_on(node, before, zip(written.operands, gradients, strict=True))

    def _total(self, tensor: str) -> Gradient | None:
        """Return the sum of all contributions to a tensor's gradient, once every reader has been processed."""
        contributions = self.contributions.pop(tensor, None)
        if contributions is None:
            return self.totals.get(tensor)
        self.totals[tensor] = total = self._sum(tensor, contributions)
        if isinstance(total, str) and total != _gradient_name(tensor) and total not in self.names:
            self.names[total] = _gradient_name(tensor)
        return total

    def _sum(self, tensor: str, contributions: list[Gradient]) -> Gradient:
        if len(contributions) == 1:
            return contributions[0]
        constants = [gradient for gradient in contributions if isinstance(gradient, float)]
        if len(constants) == len(contributions):
            return sum(constants)
        return self._added(tensor, contributions, self.producers.get(tensor), _gradient_name(tensor))

    def _added(self, tensor: str, terms: list[Gradient], origin: Node | None, name: str) -> str:
        inputs = tuple(materialize(self.builder, gradient, tensor) for gradient in terms)
        forward, unroll, line = (origin.name, origin.unroll, origin.line) if origin else (None, None, "")
        return self.builder.emit(Node(name, "add_n", inputs, (), {}, forward, unroll, line), "gradient")[0]

    def _finished(self, tensor: str) -> str:
        total = self._total(tensor)
        if total is None and tensor not in self.builder.flat:
            raise GraphError(f"the loss does not depend on tensor {tensor!r}")
        return materialize(self.builder, total, tensor)


def _gradient_name(tensor: str) -> str:
    return f"{tensor}.grad"
