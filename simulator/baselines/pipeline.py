"""*1f1b*: pipeline stages with micro-batches, a forward and a backward pass of a stage in turn.

Narayanan and others, "Memory-efficient pipeline-parallel DNN training" (ICML 2021): PipeDream-Flush.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from planner.graph.facts import batch_size, micro_batches
from planner.graph.ir import Graph
from planner.program.tasks import Compute, Program
from simulator.baselines.flow import Flow, flow_of, in_order_of_start, seconds_alone, worker_program
from simulator.baselines.layers import is_forward, layers_of
from simulator.baselines.placement import devices_of_tasks
from simulator.baselines.spread import spread
from simulator.systems import SystemProgram, SystemRequest

BEFORE, FORWARD, BACKWARD, AFTER = range(4)
Pass = tuple[int, int]
"""One of the above, and its micro-batch."""

HALVINGS = 60
ROUNDING = 1e-12


def pipeline(request: SystemRequest) -> SystemProgram:
    """Place stages on devices."""
    layers = layers_of(request.graph)
    flow = flow_of(worker_program(request.graph), layers)
    seconds = seconds_alone(flow.worker, request.machine)
    stage_of = _stages(layers, flow, seconds, request.devices)
    program = staged(flow, stage_of, _passes(request.graph), seconds, request.devices)
    return SystemProgram(request.graph, program, request.machine, batch_size(request.graph))


def staged(
    flow: Flow, stage_of: Mapping[str, int], passes: Mapping[str, Pass], seconds: Sequence[float], devices: int
) -> Program:
    """Return the program in which every node is done on its stage's device, in the pass that it belongs to."""
    device_of = devices_of_tasks(flow, stage_of.__getitem__)
    count, stages = 1 + max(number for _, number in passes.values()), 1 + max(device_of)
    ranks = [{one: n for n, one in enumerate(passes_of_stage(stage, stages, count))} for stage in range(stages)]
    queues: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for position, (task, stage) in enumerate(zip(flow.worker.tasks, device_of, strict=True)):
        mine = passes[task.nodes[-1]] if isinstance(task, Compute) else (AFTER, 0)
        queues[stage].append((ranks[stage][mine], position))
    after = list(flow.after)
    for queue in queues.values():
        for (_, one), (_, following) in pairwise(sorted(queue)):
            after[following] |= {one}
    return spread(flow, device_of, in_order_of_start(after, device_of, seconds), devices)


def passes_of_stage(stage: int, stages: int, count: int) -> list[Pass]:
    """List a stage's passes in order."""
    first = min(stages - stage - 1, count)
    passes = [(BEFORE, 0), *((FORWARD, number) for number in range(first))]
    for number in range(count - first):
        passes += [(FORWARD, first + number), (BACKWARD, number)]
    return [*passes, *((BACKWARD, number) for number in range(count - first, count)), (AFTER, 0)]


def _passes(graph: Graph) -> Mapping[str, Pass]:
    """Return every node's pass: whose samples it depends on, and whether it is of the forward pass.

    What depends on no samples comes before, what depends on several micro-batches after all of them.
    """
    of_tensor, passes = _micro_batch_of_inputs(graph), {}
    for node in graph.nodes:
        mine = frozenset[int]().union(*(of_tensor.get(name, ()) for name in node.inputs))
        of_tensor |= dict.fromkeys(node.outputs, mine)
        if len(mine) == 1:
            passes[node.name] = FORWARD if is_forward(graph, node) else BACKWARD, min(mine)
        else:
            passes[node.name] = AFTER if mine else BEFORE, 0
    return passes


def _micro_batch_of_inputs(graph: Graph) -> dict[str, frozenset[int]]:
    """Return the micro-batch that every input belongs to; inputs that all share belong to none."""
    inputs = {name: tensor.init for name, tensor in graph.tensors.items() if tensor.role == "input" and tensor.init}
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for init in inputs.values():
        rows[init.source].append(init.row)
    if micro_batches(graph) == 1:
        return dict.fromkeys(inputs, frozenset({0}))
    return {
        name: frozenset({sorted(rows[init.source]).index(init.row)}) for name, init in inputs.items() if init.source
    }


def _stages(layers: Mapping[str, int], flow: Flow, seconds: Sequence[float], devices: int) -> dict[str, int]:
    """Return every node's stage."""
    spent_s = [0.0] * (1 + max(layers.values(), default=0))
    for task, took_s in zip(flow.worker.tasks, seconds, strict=True):
        if isinstance(task, Compute):
            spent_s[layers[task.nodes[-1]]] += took_s
    stage_of = balanced(spent_s, devices)
    return {name: stage_of[layer] for name, layer in layers.items()}


def balanced(spent_s: Sequence[float], parts: int) -> list[int]:
    """Cut a sequence into at most so many runs, the largest sum the least that can be; return each entry's run."""
    low, high = max(spent_s), sum(spent_s)
    best = _cut(spent_s, high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        runs = _cut(spent_s, middle)
        if runs[-1] < parts:
            best, high = runs, middle
        else:
            low = middle
    return best


def _cut(spent_s: Sequence[float], limit_s: float) -> list[int]:
    """Begin a run wherever the one before would exceed a limit."""
    runs, run, within = [], 0, 0.0
    for seconds in spent_s:
        if within and within + seconds > limit_s * (1 + ROUNDING):
            run, within = run + 1, 0.0
        within += seconds
        runs.append(run)
    return runs
