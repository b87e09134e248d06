"""All workers of a program in one process, each as far as it can: what a program means, in few lines."""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from executor.arena import combiner, identity
from executor.kernels import KERNELS, KernelCall, run
from executor.values import Tile, fill, stream
from planner.layout import elements, local_shape
from planner.plans.plan import single_worker
from planner.program.in_order import in_order
from planner.program.lower import lower
from planner.program.tasks import Compute, Receive, Send
from tests.cross.masks import Recount


def make(xp, tile, number):
    """Return a new array with a tile's first values."""
    out = xp.empty(local_shape(tile.region), tile.tensor.dtype)
    fill(xp, out, tile, number)
    return out


def first_values(plan, name, region, iteration, first_row=0):
    """What a tensor holds; of the input "x@2" these are the rows of x that are the third micro-batch's."""
    tensor = plan.graph.tensors[name]
    init = tensor.init
    if init.kind == "data":
        below = 5 if tensor.dtype == "int32" else 0
        init = replace(init, kind="integers", below=below) if below else replace(init, kind="uniform", scale=1.0)
    tensor = replace(tensor, init=init)
    base, _, micro_batch = name.partition("@") if tensor.role == "input" else (name, "", "")
    first_row = int(micro_batch) * tensor.shape[0] if micro_batch else first_row
    number = stream(plan.seed, base, iteration if tensor.role == "input" else 0)
    return make(np, Tile(tensor, region, first_row), number)


class Loopback:
    """Runs a program; arrays are views of one arena per worker, so a wrong lifetime corrupts a result."""

    def __init__(self, plan, program):
        self.plan = plan
        self.program = replace(program, workers=tuple(map(in_order, program.workers)))
        self.arenas = [np.full(w.arena_bytes, 0xFF, dtype=np.uint8) for w in program.workers]
        self.moved = np.zeros_like(program.bytes)
        self.iteration = 0
        for name, tensor in plan.graph.tensors.items():
            if tensor.init is not None:
                self.fill(name)

    def array(self, worker, number, slot=0):
        buffer = self.program.workers[worker].buffers[number].slot(slot)
        raw = self.arenas[worker][buffer.offset : buffer.offset + buffer.nbytes]
        return raw.view(buffer.dtype).reshape(buffer.shape)

    def fill(self, name):
        for worker, region in enumerate(self.program.regions[name]):
            number = self.program.tensors[name]
            for slot in range(self.program.workers[worker].buffers[number].slots or 1):
                target = self.array(worker, number, slot)
                first_row = slot * self.plan.graph.tensors[name].shape[0] if slot else 0
                target[...] = first_values(self.plan, name, region, self.iteration, first_row).reshape(target.shape)

    def step(self):
        for name, tensor in self.plan.graph.tensors.items():
            if tensor.role == "input":
                self.fill(name)
        packed, started, done = {}, {}, [0] * len(self.program.workers)
        while any(self.advance(worker, packed, started, done) for worker in range(len(done))):
            pass
        assert done == [len(worker.tasks) for worker in self.program.workers], "workers wait for each other"
        assert not packed
        assert not started
        self.iteration += 1

    def advance(self, worker, packed, started, done):
        """Do a worker's next task, if there is one that need not wait; say whether it did."""
        tasks = self.program.workers[worker].tasks
        if done[worker] == len(tasks):
            return False
        task = tasks[done[worker]]
        if isinstance(task, Send):
            for message in task.messages:
                source = self.array(worker, task.buffer)
                parts = [source[(*piece.source_slices, ...)].ravel() for piece in message.pieces]
                packed[task.transfer, worker, message.peer] = np.concatenate(parts)
        elif isinstance(task, Receive):
            started[task.transfer, worker] = task
        elif isinstance(task, Compute):
            for kernel in task.kernels:
                self.compute(worker, kernel)
        else:
            received = started[task.transfer, worker]
            if any((task.transfer, message.peer, worker) not in packed for message in received.messages):
                return False
            self.finish(worker, started.pop((task.transfer, worker)), packed)
        done[worker] += 1
        return True

    def finish(self, worker, task, packed):
        target = self.array(worker, task.buffer)
        parts = {worker: []}
        for copy in task.local:
            source = self.array(worker, copy.buffer)
            parts[worker] += [(p.target_slices, source[(*p.source_slices, ...)]) for p in copy.pieces]
        for message in task.messages:
            data, at = packed.pop((task.transfer, message.peer, worker)), 0
            assert data.nbytes == message.nbytes
            self.moved[message.peer, worker] += data.nbytes
            parts[message.peer] = []
            for piece in message.pieces:
                shape = tuple(part.stop - part.start for part in piece.target_slices)
                parts[message.peer].append((piece.target_slices, data[at : at + piece.elements].reshape(shape)))
                at += piece.elements
        if task.reducer is not None:
            target[...] = identity(task.reducer, target.dtype)
        for source in sorted(parts):
            for slices, values in parts[source]:
                if task.reducer is not None:
                    target[(*slices, ...)] = combiner(np, task.reducer)(target[(*slices, ...)], values)
                else:
                    target[(*slices, ...)] = values

    def compute(self, worker, kernel):
        for call in kernel.calls:
            inputs = tuple(self.array(worker, n)[(*slices, ...)] for n, slices in call.inputs)
            outputs = tuple(self.array(worker, n)[(*slices, ...)] for n, slices in call.outputs)
            results = outputs if call.combine is None else tuple(np.empty_like(out) for out in outputs)
            run(KERNELS[kernel.op], KernelCall(np, inputs, results, kernel.attributes, call.ranges, call.origins))
            if call.combine is not None:
                for out, values in zip(outputs, results, strict=True):
                    out[...] = combiner(np, call.combine)(out, values)

    def gather(self, name):
        whole = np.full(self.plan.graph.tensors[name].shape, np.nan)
        for worker, region in enumerate(self.program.regions[name]):
            if not elements(region):
                continue
            at = np.ix_(*[[i for start, stop in runs for i in range(start, stop)] for runs in region])
            whole[at] = self.array(worker, self.program.tensors[name])
        return whole


def trained(plan, prefetch=1, steps=2):
    """Return the values of all that some steps update, and the run."""
    run = Loopback(plan, lower(plan, prefetch))
    for _ in range(steps):
        run.step()
    return {name: run.gather(name) for name in plan.graph.updates}, run


def trains_as_one_worker(plan, prefetch=1, alone=None):
    """Check that two steps move the bytes of element masks and leave one worker's values; return their program."""
    np.testing.assert_array_equal(plan.bytes, Recount(plan).count())
    values, run = trained(plan, prefetch)
    np.testing.assert_array_equal(plan.bytes, run.program.bytes)
    np.testing.assert_array_equal(plan.bytes * 2, run.moved)
    for name, expected in trained(alone or single_worker(plan))[0].items():
        assert np.abs(values[name] - expected).max() <= 1e-10 * max(np.abs(expected).max(), 1e-300), name
    return run.program


def check_apart(program):
    """Check that what lives at one time never overlaps, task by task; what is overwritten in place passes bytes on."""
    for at in range(len(program.tasks)):
        alive = sorted(
            (b.offset, b.offset + b.nbytes, b.last, b.first)
            for b in program.buffers
            if b.nbytes and b.first <= at <= b.last
        )
        for buffer, other in pairwise(alive):
            in_place = buffer[:2] == other[:2] and at in (buffer[2], other[2]) and at in (buffer[3], other[3])
            assert other[0] >= buffer[1] or in_place
