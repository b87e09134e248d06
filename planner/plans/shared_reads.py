"""Activations gathered once for all that read them in a pass, as Megatron-LM's sequence parallelism gathers them.

Norms are split along the sequence, and queries, keys, values, gates all read the whole of one: without a copy each
would fetch its own. A copy is made of what several nodes of a pass fetch alike, for the forward pass and, as it is
freed behind that, again for the backward pass (Korthikanti and others 2022, section 4.2.2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from planner.graph.facts import phases
from planner.graph.ir import Node
from planner.layout import Region
from planner.plans.plan import Plan
from planner.plans.rewriting import Copying, Names, copied_where_stored, layout_of, with_copies
from planner.plans.traffic import Read


def gather_once(plan: Plan) -> Plan:
    """Return the plan in which what several nodes of a pass fetch alike is gathered once, into a copy.

    It moves as many bytes or fewer. Partial sums and what is needed by other workers than those that a layout says are
    fetched as before.
    """
    return with_copies(plan, tuple(_copies(plan)))


def _copies(plan: Plan) -> Iterator[Copying]:
    """Yield a copy for each group of nodes of a pass that fetch equal parts of a tensor."""
    phase_of, names = phases(plan.graph), Names(plan.graph)
    places = {node.name: place for place, node in enumerate(plan.graph.nodes)}
    makers = {name: node for node in plan.graph.nodes for name in node.outputs}
    groups = defaultdict[tuple[str, str, tuple[Region, ...]], list[Read]](list)
    for work in plan.traffic().work:
        for read in work.reads:
            if read.exchange is not None or read.same_as is not None:
                groups[read.tensor, phase_of[work.node.name], read.need].append(read)
    for (tensor, phase, need), reads in groups.items():
        layout = layout_of(plan, tensor, need)
        if sum(read.exchange is not None for read in reads) < 2 or layout is None or tensor not in makers:
            continue
        maker, name = makers[tensor], names.unused(f"{tensor}.gathered.{phase}")
        kin = None if phase == "forward" else maker.forward or maker.name
        node = Node(name, "cast", (tensor,), (name,), {"dtype": plan.graph.tensors[tensor].dtype}, forward=kin)
        strategy = copied_where_stored(plan.layouts[tensor], plan.strategies[reads[0].node])
        readers = tuple((read.node, operand) for read in reads for operand in read.operands)
        yield Copying(node, name, layout, strategy, readers, min(places[read.node] for read in reads))
