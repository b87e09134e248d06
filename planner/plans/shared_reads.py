"""Activations gathered once for all that read them in a pass, as Megatron-LM's sequence parallelism gathers them.

Norms are split along the sequence, and queries, keys, values, gates all read the whole of one: without a copy each
would fetch its own. A copy is made of what several nodes of a pass fetch alike, for the forward pass and, as it is
freed behind that, again for the backward pass (Korthikanti and others 2022, section 4.2.2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.graph.facts import phases
from planner.graph.ir import Graph, Node
from planner.layout import Region
from planner.plans.plan import Plan
from planner.plans.rewriting import Copying, Names, copied_where_stored, layout_of, rewritten
from planner.plans.traffic import Read


@dataclass(frozen=True, slots=True)
class _Copy:
    """A node that copies a tensor, and who reads its result instead of the tensor."""

    copying: Copying
    readers: tuple[Read, ...]


def gather_once(plan: Plan) -> Plan:
    """Return the plan in which what several nodes of a pass fetch alike is gathered once, into a copy.

    It moves as many bytes or fewer. Partial sums and what is needed by other workers than those that a layout says are
    fetched as before.
    """
    copies = tuple(_copies(plan))
    return rewritten(plan, _nodes(plan.graph, copies), (copy.copying for copy in copies))


def _copies(plan: Plan) -> Iterator[_Copy]:
    """Yield a copy for each group of nodes of a pass that fetch equal parts of a tensor."""
    phase_of, names = phases(plan.graph), Names(plan.graph)
    makers = {name: node for node in plan.graph.nodes for name in node.outputs}
    groups = defaultdict[tuple[str, str, tuple[Region, ...]], list[Read]](list)
    for work in plan.traffic().work:
        for read in work.reads:
            if read.exchange is not None or read.same_as is not None:
                groups[read.tensor, phase_of[work.node.name], read.need].append(read)
    for (tensor, phase, need), readers in groups.items():
        layout = layout_of(plan, tensor, need)
        if sum(read.exchange is not None for read in readers) < 2 or layout is None or tensor not in makers:
            continue
        maker, name = makers[tensor], names.unused(f"{tensor}.gathered.{phase}")
        kin = None if phase == "forward" else maker.forward or maker.name
        dtype = plan.graph.tensors[tensor].dtype
        node = Node(name, "cast", (tensor,), (name,), {"dtype": dtype}, forward=kin)
        strategy = copied_where_stored(plan.layouts[tensor], plan.strategies[readers[0].node])
        yield _Copy(Copying(node, name, layout, strategy), tuple(readers))


def _nodes(graph: Graph, copies: tuple[_Copy, ...]) -> Iterator[Node]:
    """Yield the nodes, a copy before the first that reads it."""
    source = {
        (read.node, operand): copy.copying.node for copy in copies for read in copy.readers for operand in read.operands
    }
    written = set[str]()
    for node in graph.nodes:
        reads = [source.get((node.name, operand)) for operand in range(len(node.inputs))]
        for copy in reads:
            if copy is not None and copy.name not in written:
                written.add(copy.name)
                yield copy
        inputs = (name if copy is None else copy.name for name, copy in zip(node.inputs, reads, strict=True))
        yield replace(node, inputs=tuple(inputs))
