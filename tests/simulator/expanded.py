"""A step of all ranks, kernel by kernel and message by message, as events: what a projection composes in closed form.

Kernels, exchanges and messages have the prices of the projection. Everything else is simulated: hosts that launch ahead
of their devices, ranks that wait for each other in every collective, the two streams of each device, and pipelines.
"""

from collections import defaultdict
from itertools import count

import simpy

from planner.graph.micro_batches import BACKWARD, FORWARD
from planner.parallel import STATES
from planner.plans.records import WEIGHTS
from planner.program.pipeline import SCHEDULES
from simulator.projection.kernels import Work
from simulator.projection.memory import gradient_bytes
from simulator.projection.projection import stages_of
from simulator.projection.steps import Steps

DONE = 1e-15


class Fluid:
    """Activities whose rates depend on each other: a rank's kernel and its collective slow each other down."""

    def __init__(self, environment, slowdown):
        self._environment, self._slowdown = environment, slowdown
        self._left, self._since, self._version = {}, 0.0, count()
        self._number, self._newest = count(), 0

    def run(self, seconds, ranks, computes):
        """Return the event of an activity's end."""
        self._settle()
        event = self._environment.event()
        self._left[next(self._number)] = [seconds, ranks, computes, event]
        self._plan()
        return event

    def _rate(self, ranks, computes):
        meets = any(
            other is not computes and not members.isdisjoint(ranks) for _, members, other, _ in self._left.values()
        )
        return 1 / self._slowdown if meets else 1.0

    def _settle(self):
        elapsed = self._environment.now - self._since
        if elapsed:
            rates = [self._rate(ranks, computes) for _, ranks, computes, _ in self._left.values()]
            for activity, rate in zip(self._left.values(), rates, strict=True):
                activity[0] -= elapsed * rate
        self._since = self._environment.now

    def _plan(self):
        self._newest = version = next(self._version)
        if self._left:
            waits = [max(0.0, left) / self._rate(ranks, computes) for left, ranks, computes, _ in self._left.values()]
            self._environment.process(self._wait(min(waits), version))

    def _wait(self, seconds, version):
        yield self._environment.timeout(seconds)
        if version == self._newest:
            self._settle()
            for number in [at for at, activity in self._left.items() if activity[0] <= DONE]:
                self._left.pop(number)[-1].succeed()
            self._plan()


class Meeting:
    """Collectives: each begins once all of its ranks have come to it."""

    def __init__(self, environment, fluid):
        self._environment, self._fluid = environment, fluid
        self._waiting, self._turn = {}, defaultdict(int)

    def join(self, rank, ranks, seconds, stream):
        """Return the event of the end of this rank's next collective among some ranks on a stream."""
        key = stream, ranks, self._turn[rank, stream, ranks]
        self._turn[rank, stream, ranks] += 1
        came, event = self._waiting.setdefault(key, (set(), self._environment.event()))
        came.add(rank)
        if came == ranks:
            done = self._fluid.run(seconds, ranks, stream == "compute")
            done.callbacks.append(lambda _: event.succeed())
        return event


class Expanded:
    """A job, of which every rank is simulated."""

    def __init__(self, job):
        self.job, self.steps, self.stack, self.parallel = job, Steps(job), job.stack, job.parallel
        self.grid = job.network.grid
        self.environment = simpy.Environment()
        fluid = Fluid(self.environment, job.stack.slowdown)
        self.fluid, self.meeting = fluid, Meeting(self.environment, fluid)
        parts = stages_of(job)
        pp = job.parallel.pp
        self.chunks = [[job.blocks[part.start : part.stop] for part in parts[stage::pp]] for stage in range(pp)]
        ends = [job.blocks[part.stop - 1].boundary_bytes for part in parts[:-1]]
        self.message_s = self.steps.message_s(max(ends, default=0))
        name, chunks = job.parallel.schedule.partition(":")[0], job.parallel.chunks
        self.schedule = SCHEDULES[name if pp > 1 else "accumulation"](pp, job.micro_batches, chunks)
        self.split = any(step.phase == WEIGHTS for step in self.schedule[0])
        self.done = defaultdict(self.environment.event)
        self.ends = {}

    def seconds(self):
        """Simulate; return the seconds of the step."""
        ranks = [
            (s, r, w)
            for s in range(self.grid.stages)
            for r in range(self.grid.replicas)
            for w in range(self.grid.inner)
        ]
        for rank in ranks:
            Rank(self, rank).start()
        self.environment.run()
        assert len(self.ends) == len(ranks)
        return max(end + self._after(rank[0]) for rank, end in self.ends.items())

    def _after(self, stage):
        """What follows all reductions: those within a replica, what the first and the last stage share, the update."""
        blocks = [block for chunk in self.chunks[stage] for block in chunk]
        tied_s = 0.0
        if self.grid.stages > 1 and stage in (0, self.grid.stages - 1):
            tied_s = self.job.network.ends_s("all-reduce", self.job.tied_bytes)
        update_s = sum(self.steps[block].update_s for block in blocks) + self.steps.parameters_s(blocks)
        return sum(block.reduced_s for block in blocks) + tied_s + update_s

    def reduced_s(self, blocks):
        """Seconds of a collective over all that have the same gradients: of experts another than of all else."""
        network = self.job.network
        kind = "reduce-scatter" if self.parallel.zero >= STATES else "all-reduce"
        nbytes = [gradient_bytes(block, self.stack) for block in blocks]
        of_experts = sum(size * block.expert_share for size, block in zip(nbytes, blocks, strict=True))
        whole_s = network.replicas_s(kind, sum(nbytes) - of_experts)
        return whole_s + network.replicas_s(kind, of_experts, of_experts=True)


class Rank:
    """A rank's device: the stream that computes, that of exchanges over replicas, and the host that launches."""

    def __init__(self, whole, rank):
        self.whole, self.rank, self.environment = whole, rank, whole.environment
        self.stage, self.replica, self.worker = rank
        self.chunks = whole.chunks[self.stage]
        self.inner = frozenset((self.stage, self.replica, w) for w in range(whole.grid.inner))
        self.alike = frozenset((self.stage, r, self.worker) for r in range(whole.grid.replicas))
        self.launched_s = 0.0
        self.begun, self.ended = defaultdict(self.environment.event), defaultdict(self.environment.event)
        self.exchanges = []

    def start(self):
        self.environment.process(self._run())

    def _run(self):
        whole = self.whole
        steps = whole.schedule[self.stage]
        last = whole.job.micro_batches - 1
        ends = WEIGHTS if whole.split else BACKWARD
        for number, step in enumerate(steps):
            needed = _needed(self.stage, step, whole.grid.stages, whole.parallel.chunks)
            if needed is not None:
                yield whole.done[(*needed, self.replica, self.worker)]
                arrived_s = whole.done[(*needed, self.replica, self.worker)].value + whole.message_s
                if needed[0] != self.stage and arrived_s > self.environment.now:
                    yield self.environment.timeout(arrived_s - self.environment.now)
            yield from self._step(number, step, reduces=step.phase == ends and step.micro_batch == last)
            key = self.stage, step.phase, step.micro_batch, step.chunk, self.replica, self.worker
            whole.done[key].succeed(self.environment.now)
        if reductions := [event for event in self.exchanges if not event.processed]:
            yield self.environment.all_of(reductions)
        whole.ends[self.rank] = self.environment.now

    def _step(self, number, step, *, reduces):
        """One phase of a chunk for a micro-batch."""
        whole, stack = self.whole, self.whole.stack
        if whole.grid.stages > 1 or whole.steps.scatters:
            self.launched_s = self.environment.now
        if step.phase == FORWARD:
            self.launched_s += stack.host_micro_batch_s / whole.parallel.chunks
        chunk = self.chunks[step.chunk]
        order = chunk if step.phase == FORWARD else chunk[::-1]
        if whole.steps.scatters:
            yield from self._sharded(number, step, order)
            return
        if reduces:
            self._reduce(number, order, final=step.chunk == 0)
        if whole.split and step.phase == BACKWARD:
            seconds = whole.steps.of_chunk(chunk)
            yield whole.fluid.run(seconds.backward_s - seconds.weights_s, {self.rank}, True)
            return
        if whole.split and step.phase == WEIGHTS and not reduces:
            yield whole.fluid.run(whole.steps.of_chunk(chunk).weights_s, {self.rank}, True)
            return
        for place, block in enumerate(order):
            if whole.split and step.phase == WEIGHTS:
                yield whole.fluid.run(block.weights.seconds(stack), {self.rank}, True)
            else:
                yield from self._block(self._part(block, step.phase))
            self.ended[number, place].succeed()

    def _part(self, block, phase):
        priced = self.whole.steps[block]
        return priced.forward if phase == FORWARD else priced.backward

    def _block(self, part):
        """A block's kernels and exchanges, each once the host has launched it."""
        stack = self.whole.stack
        for item in part.items:
            if isinstance(item, Work):
                for _ in range(item.launches):
                    self.launched_s += stack.host_s
                    yield from self._until_launched()
                    yield self.whole.fluid.run(item.seconds / item.launches, {self.rank}, True)
                if not item.launches and item.seconds:
                    yield self.whole.fluid.run(item.seconds, {self.rank}, True)
            else:
                self.launched_s += stack.host_exchange_s
                yield from self._until_launched()
                yield self.whole.meeting.join(self.rank, self.inner, item.seconds, "compute")

    def _until_launched(self):
        wait_s = self.launched_s - self.environment.now
        if wait_s > 0:
            yield self.environment.timeout(wait_s)

    # --- exchanges over replicas

    def _ask(self, seconds, behind):
        """Put an exchange behind those before it; it begins once the event `behind` has come, too."""
        before = self.exchanges[-1] if self.exchanges else None
        event = self.environment.event()
        self.environment.process(self._exchange(seconds, before, behind, event))
        self.exchanges.append(event)
        return event

    def _exchange(self, seconds, before, behind, event):
        for needed in (before, behind):
            if needed is not None and not needed.processed:
                yield needed
        if seconds:
            yield self.whole.meeting.join(self.rank, self.alike, seconds, "exchange")
        event.succeed()

    def _reduce(self, number, order, *, final):
        """Ask for the reductions of a chunk's gradients, in buckets; all behind the last block where none overlaps."""
        stack, bucket = self.whole.stack, getattr(self, "_left", [])
        for place, block in enumerate(order):
            bucket.append(block)
            full = sum(gradient_bytes(of, stack) for of in bucket) >= stack.bucket_bytes and stack.overlaps_gradients
            if full or (final and place + 1 == len(order)):
                self._ask(self.whole.reduced_s(bucket), self.ended[number, place])
                bucket = []
        self._left = bucket

    def _sharded(self, number, step, order):
        """A phase whose weights are gathered and gradients scattered block by block; it ends with its exchanges."""
        whole, stack = self.whole, self.whole.stack
        gathered = [whole.steps[block].gathered_s for block in order]
        scattered = [whole.steps[block].scattered_s if step.phase == BACKWARD else 0.0 for block in order]
        ahead = stack.gathers_ahead and (step.phase == FORWARD or stack.gathers_ahead_backward)
        arrivals = [self._ask(gathered[0], None)]
        last = arrivals[0]
        for place in range(len(order)):
            if place + 1 < len(order):
                behind = self.begun if ahead else self.ended
                arrivals.append(self._ask(gathered[place + 1], behind[number, place]))
            last = self._ask(scattered[place], self.ended[number, place])
            if not stack.gathers_ahead and place + 1 < len(order):
                arrivals[place + 1] = last
        for place, block in enumerate(order):
            if not arrivals[place].processed:
                yield arrivals[place]
            self.begun[number, place].succeed()
            yield from self._block(self._part(block, step.phase))
            self.ended[number, place].succeed()
        yield last


def _needed(stage, step, stages, chunks):
    """The stage, phase, micro-batch and chunk of the step that a step waits for, besides the one before it."""
    place, last = step.chunk * stages + stage, chunks * stages - 1
    if step.phase == WEIGHTS:
        return None
    if step.phase == FORWARD:
        return ((place - 1) % stages, FORWARD, step.micro_batch, (place - 1) // stages) if place else None
    if place == last:
        return None
    return ((place + 1) % stages, BACKWARD, step.micro_batch, (place + 1) // stages)
