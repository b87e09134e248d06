"""Micro-batches written out: the graph in which every one has its own nodes, "fc1@2", and sums are nodes.

What a graph of several micro-batches means, with nothing of phases, slots or schedules: an oracle for what runs it.
"""

from dataclasses import replace

import tdl
from planner.graph.infer import check, describe
from planner.graph.ir import Node, depending_on_samples, holds_samples, renamed
from planner.graph.micro_batches import accumulates
from planner.layout import EVERYWHERE, PARTIAL, REPLICATE, TERMS, Shard


def every_micro_batch(graph):
    """The names of the nodes that each has of its own: what samples change, and copies as they are."""
    varying = {name for name, tensor in graph.tensors.items() if holds_samples(tensor)} | depending_on_samples(
        graph.tensors, graph.nodes, graph.accumulated
    )
    for node in graph.nodes:
        is_copy = node.op == "cast" and node.attrs["dtype"] == graph.tensors[node.inputs[0]].dtype
        if is_copy or not varying.isdisjoint(node.inputs):
            varying |= {*node.outputs}.difference(graph.accumulated)
    return {node.name for node in graph.nodes if not (varying | {*graph.accumulated}).isdisjoint(node.outputs)}


def unrolled(graph):
    """The graph of the whole iteration, without micro-batches."""
    return written_out(graph)[0]


def unrolled_plan(plan):
    """The plan in which every copy decides as the plan does; what adds up does so where it is computed."""
    graph, tensors, nodes = written_out(plan.graph)
    layouts = {name: plan.layouts[tensors.get(name, name)] for name in graph.tensors}
    strategies = {}
    for node in graph.nodes:
        maker = nodes.get(node.name, node.name)
        strategies[node.name] = plan.strategies[maker]
        if node.name.endswith(":sum") and not is_sum(plan.graph, maker):
            layout = layout_of_terms(plan.graph, maker, plan.strategies[maker], node.outputs[0])
            layouts |= dict.fromkeys(node.inputs, layout)
            strategies[node.name] = sharing(graph, node, layout)
    return replace(plan, graph=graph, layouts=layouts, strategies=strategies)


def is_sum(graph, name):
    (node,) = (node for node in graph.nodes if node.name == name)
    return accumulates(node, graph.tensors)


def layout_of_terms(graph, name, strategy, tensor):
    """Where what a node makes lies as it is computed."""
    (node,) = (node for node in graph.nodes if node.name == name)
    description = describe(node, graph.tensors)
    index = description.outputs[node.outputs.index(tensor)].index
    along = {next(iter(variable.variables)): Shard(dim) for dim, variable in enumerate(index)}
    summed = dict.fromkeys((*description.reduction_variables, TERMS), PARTIAL)
    return tuple({EVERYWHERE: REPLICATE, **along, **summed}[choice] for choice in strategy)


def sharing(graph, node, layout):
    """The strategy of a sum by which everybody adds what it holds."""
    index = describe(node, graph.tensors).outputs[0].index
    names = {Shard(dim): next(iter(variable.variables)) for dim, variable in enumerate(index)} | {PARTIAL: TERMS}
    return tuple(names.get(placement, EVERYWHERE) for placement in layout)


def written_out(graph):
    """The graph, and what its tensors and nodes are copies of."""
    count, often = graph.micro_batches, every_micro_batch(graph)
    sums = {node.name for node in graph.nodes if accumulates(node, graph.tensors)}
    repeated = {name for node in graph.nodes if node.name in often for name in node.outputs}
    own = repeated | {name for name, tensor in graph.tensors.items() if holds_samples(tensor)}
    followed = {old: new for old, new in graph.updates.items() if new in repeated}
    producers = {name: node for node in graph.nodes for name in node.outputs}
    tensors, copied_tensors, copied_nodes = {}, {}, {}
    first, middle, totals, last = [], [], [], []
    for name, tensor in graph.tensors.items():
        if name not in own:
            tensors[name] = tensor
            continue
        for number in range(count):
            tensors[f"{name}@{number}"] = replace(tensor, name=f"{name}@{number}")
            copied_tensors[f"{name}@{number}"] = name
    for name in graph.accumulated:
        terms = (name,)
        node = producers[name]
        if node.name in sums:
            terms = node.inputs
            for number in range(count):
                del tensors[f"{name}@{number}"]
        tensors[name] = graph.tensors[name]
        inputs = tuple(f"{term}@{number}" for number in range(count) for term in terms)
        totals.append(Node(f"{name}:sum", "add_n", inputs, (name,)))
        copied_nodes[f"{name}:sum"] = node.name
    dropped = {producers[name].name for name in graph.accumulated} & sums
    for number in range(count):
        names = {name: f"{name}@{number}" for name in own}
        names |= {old: f"{new}@{number - 1}" for old, new in followed.items() if number}
        for node in graph.nodes:
            if node.name in often and node.name not in dropped:
                middle.append(copy_of(node, names, number, graph, often))
                copied_nodes[middle[-1].name] = node.name
    for node in graph.nodes:
        if node.name not in often:
            (last if {*node.inputs} & ({*graph.accumulated} | {n for m in last for n in m.outputs}) else first).append(
                node
            )
    nodes = in_order([*first, *middle, *totals, *last], tensors)
    names = {name: f"{name}@{count - 1}" for name in own if name not in graph.accumulated}
    updates = {old: names.get(new, new) for old, new in graph.updates.items()}
    metrics = {metric: names.get(name, name) for metric, name in graph.metrics.items()}
    result = replace(
        graph, tensors=tensors, nodes=nodes, updates=updates, metrics=metrics, micro_batches=1, accumulated=()
    )
    check(result)
    return result, copied_tensors, copied_nodes


def copy_of(node, names, number, graph, often):
    attributes = dict(node.attrs)
    if number and "row" in tdl.catalog[node.op].random_keys:
        attributes["row"] = number * graph.tensors[node.outputs[0]].shape[0]
    forward = f"{node.forward}@{number}" if node.forward in often else node.forward
    return replace(renamed(node, names), name=f"{node.name}@{number}", attrs=attributes, forward=forward)


def in_order(nodes, tensors):
    """Nodes in an order in which they can run, as near to theirs as can be."""
    there, left, done = {name for name, tensor in tensors.items() if tensor.init is not None}, list(nodes), []
    while left:
        node = next(node for node in left if there.issuperset(node.inputs))
        left.remove(node)
        done.append(node)
        there.update(node.outputs)
    return tuple(done)
