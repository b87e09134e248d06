"""From the blocks of a replica to a step: seconds by cause, and memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from planner.graph.micro_batches import BACKWARD
from planner.plans.records import WEIGHTS
from planner.program.pipeline import Schedule
from simulator.projection.block import Queue
from simulator.projection.kernels import Work, within_limit_s
from simulator.projection.memory import (
    MemoryLine,
    again_bytes,
    kept_bytes,
    lasting_lines,
    other_lines,
    with_fragmentation,
)
from simulator.projection.result import (
    ALL_REDUCE,
    BUBBLE,
    HOST,
    IDEAL,
    INEFFICIENCY,
    MODEL_PARALLEL,
    POWER,
    RECOMPUTATION,
    SHARDING,
    STRAGGLERS,
    UPDATE,
    Projection,
    StageLine,
)
from simulator.projection.stages import (
    MOST_IN_FLIGHT,
    PHASES,
    Added,
    Pipeline,
    StepSeconds,
    cut,
    followed,
    most_kept,
    pipeline,
    schedule_of,
)
from simulator.projection.steps import Job, Steps, Turn, lasting


def project(job: Job) -> Projection:
    """Predict a step. Raises PlanError if the schedule or the division into stages is impossible."""
    job = job.on_slower(job.stack.kernel_times)
    step, factor = _Projecting(job).result(), job.stack.slowest(job.network.grid.workers)
    if factor == 1:
        return step
    slow = _Projecting(job.on_slower(factor)).result()
    return replace(slow, shares={**step.shares, STRAGGLERS: slow.seconds - step.seconds})


def stages_of(job: Job) -> list[range]:
    """Return the range of blocks of each chunk of each stage, in network order. Raises PlanError as `cut`."""
    few = {id(block): block for block in job.blocks}
    seconds = {key: block.forward.seconds(job.stack) + block.backward.seconds(job.stack) for key, block in few.items()}
    costs = [seconds[id(block)] for block in job.blocks]
    layers = [block.is_layer and job.stack.even_stages for block in job.blocks]
    return cut(costs, layers, job.parallel.pp * job.parallel.chunks)


class _Projecting:
    def __init__(self, job: Job) -> None:
        self._job, self._parallel, self._stack = job, job.parallel, job.stack
        self._steps, parts = Steps(job), stages_of(job)
        self._crossing = [job.blocks[part.stop - 1].boundary_bytes for part in parts[:-1]]
        self._places = [parts[stage :: job.parallel.pp] for stage in range(job.parallel.pp)]
        self._chunks = [[job.blocks[part.start : part.stop] for part in stage] for stage in self._places]
        self._stages = [[block for chunk in stage for block in chunk] for stage in self._chunks]
        self._layers = [0, *accumulate(int(block.is_layer) for block in job.blocks)]

    def result(self) -> Projection:
        job, parallel = self._job, self._parallel
        seconds = [[self._steps.of_chunk(chunk) for chunk in stage] for stage in self._chunks]
        ends = self._of_one_stage(seconds) if parallel.pp == 1 else self._of_stages(seconds)
        slowest = max(range(parallel.pp), key=lambda stage: ends[stage].seconds)
        limited_s = self._limited_s(ends[slowest].seconds)
        memory = [self._memory(stage) for stage in range(parallel.pp)]
        fullest = max(memory, key=lambda lines: sum(line.nbytes for line in lines))
        devices = job.network.grid.workers
        operations = sum(part.work.product_operations for b in job.blocks for part in (b.forward, b.backward))
        again_operations = sum(self._steps[block].again.work.product_operations for block in job.blocks)
        copies = job.micro_batches * devices / parallel.pp
        hardware = operations * copies
        repeated = sum(block.repeated_operations for block in job.blocks) * copies
        return Projection(
            seconds=limited_s,
            samples=job.samples,
            devices=devices,
            micro_batches=job.micro_batches,
            model_operations=hardware - repeated,
            hardware_operations=hardware + again_operations * copies,
            dtype=job.dtype,
            peak_flop_per_s=job.device.peak(job.dtype),
            shares=self._shares(slowest, seconds, ends[slowest]) | {POWER: limited_s - ends[slowest].seconds},
            memory=fullest,
            capacity_bytes=job.device.spec.memory_bytes or float("inf"),
            stages=tuple(self._stage_line(stage, seconds[stage], memory[stage]) for stage in range(parallel.pp)),
            sent_bytes={
                axes: round(nbytes) for axes, nbytes in self._steps.sent(self._crossing).items() if round(nbytes)
            },
            kernels=self._kernels(ends[slowest]),
        )

    # --- when stages end

    def _of_one_stage(self, seconds: Sequence[Sequence[StepSeconds]]) -> list[_End]:
        """Return the end of the only stage. Its host goes on to the next micro-batch without waiting."""
        if self._steps.scatters:
            pipeline_s = self._job.micro_batches * sum(step.forward_s + step.backward_s for step in seconds[0])
            return [self._end(0, pipeline_s, 0.0, 0.0)]
        begun = self._steps.whole(self._stages[0])
        turns = self._steps.last_pass(self._stages[0], weights_alone=False)
        ends, alone_s = self._steps.reducing(turns, begun, {}), begun.then(self._steps.backward(self._stages[0])).end_s
        return [self._end(0, alone_s, ends.blocks_s[-1] - alone_s, ends.all_s - ends.blocks_s[-1])]

    def _of_stages(self, seconds: Sequence[Sequence[StepSeconds]]) -> list[_End]:
        """Return the end of each stage under the schedule."""
        job, parallel = self._job, self._parallel
        message_s = self._steps.message_s(max(self._crossing, default=0))
        name, tails = parallel.schedule.partition(":")[0], [_Tail()] * parallel.pp
        rounds = 0 if self._steps.scatters else min(2, parallel.chunks)
        for _ in range(rounds):  # fixed point: the last steps wait for other stages, whose last steps take longer too
            run = self._followed(seconds, message_s, [tail.added_s for tail in tails])
            tails = [self._tail(stage, seconds[stage], run) for stage in range(parallel.pp)]
        run = pipeline(name, job.micro_batches, seconds, message_s, [tail.added_s for tail in tails])
        slowed = [sum(tail.added_s) for tail in tails]
        return [
            self._end(stage, run.ends_s[stage] - slowed[stage], slowed[stage], tails[stage].exposed_s)
            for stage in range(parallel.pp)
        ]

    def _followed(self, seconds: Sequence[Sequence[StepSeconds]], message_s: float, added_s: Added) -> Pipeline:
        """Return when the steps at the end of the schedule begin. Without chunks, only the last step matters."""
        if self._parallel.chunks > 1:
            return followed(self._schedule, seconds, message_s, added_s)
        at_once = tuple((0.0,) * len(steps) for steps in self._schedule)
        return Pipeline((), at_once, at_once)

    def _tail(self, stage: int, seconds: Sequence[StepSeconds], run: Pipeline) -> _Tail:
        """Return how much longer the last steps of a stage take because they overlap with reductions."""
        steps, turns, begins = self._schedule[stage], list[Turn](), dict[int, float]()
        weights_alone = any(step.phase == WEIGHTS for step in steps)
        phase, last = WEIGHTS if weights_alone else BACKWARD, max(step.micro_batch for step in steps)
        completes = [step.phase == phase and step.micro_batch == last for step in steps]
        first = completes.index(True)
        alone_s = [seconds[step.chunk].of_phases(weights_alone)[PHASES.index(step.phase)] for step in steps[first:]]
        for at, step in enumerate(steps[first:], first):
            begins[len(turns)] = (run.ready_s if turns else run.begins_s)[stage][at] - run.begins_s[stage][first]
            if completes[at]:
                turns += self._steps.last_pass(self._chunks[stage][step.chunk], weights_alone=weights_alone)
            else:
                turns.append(Turn(lasting(alone_s[at - first])))
        beside = self._steps.reducing(turns, Queue(), begins)
        ends = [beside.blocks_s[at - 1] for at in (*list(begins)[1:], len(turns))]
        begun = [max(free, ready) for free, ready in zip((0.0, *ends), begins.values(), strict=False)]
        added = tuple(end - begin - alone for end, begin, alone in zip(ends, begun, alone_s, strict=True))
        return _Tail(added, beside.all_s - beside.blocks_s[-1])

    def _end(self, stage: int, pipeline_s: float, slowed_s: float, exposed_s: float) -> _End:
        """Return the end of a stage: its last micro-batch, the rest of the reductions, and the update."""
        blocks = self._stages[stage]
        inner_s = sum(block.reduced_s for block in blocks)
        tied_s = 0.0
        if self._parallel.pp > 1 and stage in (0, self._parallel.pp - 1):
            tied_s = self._job.network.ends_s("all-reduce", self._job.tied_bytes)
        update_s = sum(self._steps[block].update_s for block in blocks) + self._steps.parameters_s(blocks)
        return _End(pipeline_s, slowed_s + exposed_s + tied_s, inner_s, update_s)

    def _limited_s(self, seconds: float) -> float:
        """Return the seconds of a step within the power limit, for the device that draws most."""
        power, count, limited_s = self._job.device.spec.power, self._job.micro_batches, seconds
        for blocks in self._stages if power else ():
            work = [part.work for block in blocks for part in (self._steps[block].forward, self._steps[block].backward)]
            product_s, roof_s = sum(part.product_s for part in work), sum(part.roof_s for part in work)
            limited_s = max(limited_s, within_limit_s(power, seconds, count * product_s, count * (roof_s - product_s)))
        return limited_s

    # --- what is said of it

    def _shares(self, stage: int, seconds: Sequence[Sequence[StepSeconds]], end: _End) -> dict[str, float]:
        """Return the seconds of the stage that ends last, by cause."""
        count, steps, blocks = self._job.micro_batches, self._steps, self._stages[stage]
        again = [steps[block].again for block in blocks]
        once = [part for block in blocks for part in (block.forward, block.backward)]
        roof_s, again_s = sum(part.work.roof_s for part in once), sum(part.work.seconds for part in again)
        exchanged_s = sum(part.exchanged_s for part in (*once, *again))
        device_s = sum(steps[block].forward.device_s + steps[block].backward.device_s for block in blocks)
        busy_s = sum(step.forward_s + step.backward_s for step in seconds[stage])
        queued_s = sum(step.queued_s for step in seconds[stage]) if steps.scatters else busy_s
        in_turn_s = count * queued_s if self._parallel.pp > 1 or steps.scatters else end.pipeline_s
        return {
            IDEAL: count * roof_s,
            INEFFICIENCY: count * (device_s - exchanged_s - roof_s - again_s),
            RECOMPUTATION: count * again_s,
            MODEL_PARALLEL: count * exchanged_s + end.inner_s,
            SHARDING: count * (busy_s - queued_s),
            HOST: in_turn_s - count * device_s,
            BUBBLE: end.pipeline_s - count * busy_s if self._parallel.pp > 1 else 0.0,
            ALL_REDUCE: end.exposed_s,
            UPDATE: end.update_s,
        }

    def _kernels(self, end: _End) -> dict[str, float]:
        """Return the seconds of a step's kernels, by class."""
        seconds, times = defaultdict[str, float](float), self._job.micro_batches / self._parallel.pp
        places = Counter(map(id, self._job.blocks))
        for block in {id(block): block for block in self._job.blocks}.values():
            for part in (self._steps[block].forward, self._steps[block].backward):
                for item in part.items:
                    if isinstance(item, Work) and item.seconds:
                        seconds[item.kernel_class or "movement"] += places[id(block)] * times * item.seconds
        return {**seconds, "optimizer": end.update_s}

    def _memory(self, stage: int) -> tuple[MemoryLine, ...]:
        parallel, blocks = self._parallel, self._stages[stage]
        kept = [self._kept_bytes(part) for part in self._places[stage]]
        activations = most_kept(self._schedule, stage, kept)
        lines = lasting_lines(blocks, parallel, self._stack)
        lines.append(MemoryLine("activations", round(activations)))
        if again := again_bytes(blocks, parallel.recompute):
            lines.append(MemoryLine("activations computed again", again))
        lines += other_lines(blocks, parallel, self._stack, self._job.device)
        return with_fragmentation(lines, self._stack)

    def _kept_bytes(self, part: range) -> float:
        """Return the bytes that a chunk keeps of a micro-batch.

        Data that crosses stages is kept by the one that reads it.
        """
        blocks, recompute = self._job.blocks, self._parallel.recompute
        inputs = [blocks[at - 1].boundary_bytes if at else 0 for at in part]
        kept = sum(kept_bytes(blocks[at], nbytes, recompute) for at, nbytes in zip(part, inputs, strict=True))
        if recompute == "full" or part.stop == len(blocks):
            return float(kept)
        return float(kept + inputs[0] - blocks[part.stop - 1].boundary_bytes)

    @cached_property
    def _schedule(self) -> Schedule:
        """The schedule, cut to the number of micro-batches at which the number in flight stops growing."""
        parallel, count = self._parallel, self._job.micro_batches
        name = parallel.schedule.partition(":")[0] if parallel.pp > 1 else "accumulation"
        few = (MOST_IN_FLIGHT * parallel.chunks + 1) * parallel.pp
        if name != "gpipe" and count > few:
            count = few + count % parallel.pp
        return schedule_of(name, parallel.pp, count, parallel.chunks)

    def _stage_line(self, stage: int, seconds: Sequence[StepSeconds], memory: Sequence[MemoryLine]) -> StageLine:
        return StageLine(
            self._name(self._places[stage][0].start),
            self._name(self._places[stage][-1].stop - 1),
            sum(step.forward_s for step in seconds),
            sum(step.backward_s for step in seconds),
            sum(line.nbytes for line in memory),
        )

    def _name(self, place: int) -> str:
        """Return the number of the layer at a place; "-" if the block is not a layer."""
        return str(self._layers[place]) if self._job.blocks[place].is_layer else "-"


class _End(NamedTuple):
    """The end of a stage's micro-batches, and the seconds after it: exposed reductions, and the update."""

    pipeline_s: float
    exposed_s: float
    inner_s: float
    update_s: float

    @property
    def seconds(self) -> float:
        """Seconds until everything is done."""
        return sum(self)


class _Tail(NamedTuple):
    """How much longer the last steps of a stage take beside reductions, and the seconds of reductions after them."""

    added_s: tuple[float, ...] = ()
    exposed_s: float = 0.0
