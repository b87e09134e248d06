"""*1f1b*: pipeline stages with micro-batches, a forward and a backward pass of a stage in turn.

Narayanan and others, "Memory-efficient pipeline-parallel DNN training" (ICML 2021): PipeDream-Flush.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from planner.graph.facts import batch_size
from planner.graph.ir import Graph
from planner.graph.micro_batches import BACKWARD, BEFORE, EVERY, FORWARD, UPDATE
from planner.plans.plan import undivided
from planner.program.in_order import in_order, occurrences
from planner.program.lower import lower
from planner.program.pipeline import one_forward_one_backward
from planner.program.tasks import Compute, Program, Task, WorkerProgram
from simulator.baselines.flow import Flow, blocks_in_order, in_order_of_start, seconds_alone
from simulator.baselines.layers import is_forward, layers_of
from simulator.baselines.placement import devices_of_tasks
from simulator.baselines.spread import spread
from simulator.systems import SystemProgram, SystemRequest

Pass = tuple[str, int]
"""A phase, and its micro-batch."""

HALVINGS = 60
ROUNDING = 1e-12


def pipeline(request: SystemRequest) -> SystemProgram:
    """Place stages on devices."""
    layers, worker = layers_of(request.graph), lower(undivided(request.graph)).workers[0]
    flow = blocks_in_order(in_order(worker, apart=True))
    seconds = seconds_alone(flow.worker, request.machine)
    stage_of = _stages(layers, flow, seconds, request.devices)
    program = staged(flow, stage_of, _passes(request.graph, worker), seconds, request.devices)
    return SystemProgram(request.graph, program, request.machine, batch_size(request.graph))


def staged(
    flow: Flow, stage_of: Mapping[str, int], passes: Sequence[Pass], seconds: Sequence[float], devices: int
) -> Program:
    """Return the program in which every task is done on its node's stage's device, in the pass that it belongs to."""
    device_of = devices_of_tasks(flow, stage_of.__getitem__)
    count, stages = 1 + max(number for _, number in passes), 1 + max(device_of)
    ranks = [{one: n for n, one in enumerate(passes_of_stage(stage, stages, count))} for stage in range(stages)]
    queues: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for position, (mine, stage) in enumerate(zip(passes, device_of, strict=True)):
        queues[stage].append((ranks[stage][mine], position))
    after = list(flow.after)
    for queue in queues.values():
        for (_, one), (_, following) in pairwise(sorted(queue)):
            after[following] |= {one}
    return spread(flow, device_of, in_order_of_start(after, device_of, seconds), devices)


def passes_of_stage(stage: int, stages: int, count: int) -> list[Pass]:
    """List a stage's passes in order."""
    steps = one_forward_one_backward(stages, count)[stage]
    return [(BEFORE, 0), *((step.phase, step.micro_batch) for step in steps), (UPDATE, 0)]


def _passes(graph: Graph, program: WorkerProgram) -> list[Pass]:
    """Return every task's pass; what runs once comes before all micro-batches or after them."""
    if not program.steps:
        return [_pass_of_task(graph, task) for task in program.tasks]
    return [(done.phase, done.micro_batch if done.phase in EVERY else 0) for done in occurrences(program)]


def _pass_of_task(graph: Graph, task: Task) -> Pass:
    if not isinstance(task, Compute):
        return UPDATE, 0
    (node,) = (node for node in graph.nodes if node.name == task.nodes[-1])
    return FORWARD if is_forward(graph, node) else BACKWARD, 0


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
