"""Checks of a job: the memory that it needs on its ranks' GPUs, before anything is allocated; and its results.

The results of k workers are compared with those of one: the same steps on the same data, in one process.
"""

from __future__ import annotations

import gc
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np

from executor.backend import device_place
from executor.cluster import Cluster, HostArray, single_rank
from executor.data import DataSet
from executor.kernels import LIBRARIES
from executor.kernels.call import NARROW
from executor.kernels.derived import UPDATES
from executor.process.launch import SharedError
from executor.training import RankPrograms, Trainer, rank_programs
from executor.worker import AUTO, kernel_calls
from planner.failures import BAD_INPUT
from planner.graph.ir import Graph
from planner.grouping import grouped
from planner.layout import PARTIAL
from planner.plans.plan import Plan, single_worker
from planner.program.tasks import Receive, Send, SlicedCall, WorkerProgram, distinct, extents
from planner.program.workspace import MIB, Libraries, Need, arena_need, library_needs, workspace_need
from planner.report.schema import CheckResult, finite
from tensor_partitioner.display import quantity
from topologies.schema import WORKSPACE_BYTES

TOLERANCES: Mapping[str, float] = {"bfloat16": 4e-2, "float16": 5e-3, "float32": 3e-5, "float64": 1e-12}
"""Relative differences that are always allowed, by the least precise dtype of the graph."""

ROUNDING: Mapping[str, float] = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}
"""The distance from 1 to the next number."""

MARGIN = 16
"""Allowed ratio between the effects of two samples of rounding errors, while these are small."""

MOST = 0.05
"""The greatest relative difference that counts as equal. Larger rounding effects can change the signs of what is
compared, and another sample's effect is at most twice as large."""


def relative_difference(actual: HostArray, expected: HostArray) -> float:
    """Return max|actual - expected| / max|expected| in double precision; NaN if a value is not finite."""
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.nan
    gap = float(np.abs(a - b).max(initial=0.0))
    size = float(np.abs(b).max(initial=0.0))
    return gap / size if gap and size else gap


def tolerance(by_rounding: float, least: float) -> float:
    """Return the allowed difference of a tensor that one sample of rounding errors changes by `by_rounding`."""
    return max(least, min(MARGIN * by_rounding, max(MOST, 2 * by_rounding)))


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of a tensor between k workers and one, and how much rounding may cause."""

    value: float
    tolerance: float

    @property
    def excess(self) -> float:
        """The difference relative to its tolerance; infinite if it is not finite."""
        return math.inf if math.isnan(self.value) else self.value / self.tolerance

    @property
    def is_undecided(self) -> bool:
        """True if rounding explains a difference that is too large to decide anything."""
        return self.excess <= 1 and self.value > MOST


def alone(plan: Plan) -> RankPrograms:
    """Return the programs of one worker that does all the work."""
    return rank_programs(single_worker(plan), 0, prefetch=0)


def check(trainer: Trainer, data: DataSet, steps: int) -> CheckResult | None:
    """Compare the training of `steps` steps with that of one worker on rank 0 (collective).

    Returns None on other ranks.

    The first step's gradients and all updated tensors after the last step are compared, relative to their largest
    values. One worker trains twice, the second time with every weight perturbed by a rounding error before every step.
    The difference between the two shows how far rounding may move a tensor: all the way if an optimizer normalizes a
    gradient that is zero except for rounding. A tensor that moves further than `MOST` is undecided. Afterwards
    `trainer` is in the state after its first step.
    """
    expected = _expected(trainer, data, steps) if trainer.cluster.rank == 0 else {}
    trainer.cluster.barrier()
    differences: dict[str, Difference] = {}
    least = TOLERANCES[least_precise(trainer.graph)]
    for name, whole in _trained_by_all(trainer, data):
        if name in expected and whole is not None:
            value, by_rounding = expected.pop(name)
            differences[name] = Difference(relative_difference(whole, value), tolerance(by_rounding, least))
    return _result(differences) if trainer.cluster.rank == 0 else None


def least_precise(graph: Graph) -> str:
    """Return the dtype of the graph with the largest rounding errors."""
    dtypes = {tensor.dtype for tensor in graph.tensors.values()}
    return next((dtype for dtype in TOLERANCES if dtype in dtypes), "float64")


def _trained_by_all(trainer: Trainer, data: DataSet) -> Iterator[tuple[str, HostArray | None]]:
    """Yield the updated tensors, then the gradients of a first step (collective). Values are None except on rank 0."""
    for name in trainer.graph.updates:
        yield name, trainer.whole(name)
    trainer.reset()
    trainer.load(data, 0)
    for name, tile in trainer.run_keeping(_gradients(trainer)).items():
        yield name, trainer.whole(name, tile)


def _gradients(trainer: Trainer) -> list[str]:
    """Return the stored gradients that updates read, except partial sums, of which no worker has a value."""
    graph, layouts, stored = trainer.graph, trainer.programs.plan.layouts, trainer.programs.training.tensors
    updated = set(graph.updates.values())
    read = dict.fromkeys(name for node in graph.nodes if not updated.isdisjoint(node.outputs) for name in node.inputs)
    gradients = (name for name in read if graph.tensors[name].role == "gradient")
    return [name for name in gradients if name in stored and PARTIAL not in layouts[name]]


def _expected(trainer: Trainer, data: DataSet, steps: int) -> dict[str, tuple[HostArray, float]]:
    """Return the results of one worker on all data, in this process, and the effect of rounding on each."""
    single = Trainer(
        alone(trainer.programs.plan), single_rank(trainer.cluster.cores), trainer.xp, "p2p", trainer.schedule
    )
    if trainer.weights is not None:
        single.begin_with(trainer.weights)
    return with_rounding(single, data, steps)


def with_rounding(single: Trainer, data: DataSet, steps: int) -> dict[str, tuple[HostArray, float]]:
    """Return one worker's loss, first gradients and updated tensors, with the effect of rounding on each."""
    exact, moved = (trained_alone(single, data, steps, nudge=nudge) for nudge in (False, True))
    return {name: (value, relative_difference(moved[name], value)) for name, value in exact.items()}


def trained_alone(single: Trainer, data: DataSet, steps: int, *, nudge: bool = False) -> dict[str, HostArray]:
    """Train from the start. Return the first step's gradients, the updated tensors, and the last loss.

    With `nudge`, every weight is perturbed by a rounding error before every step.
    """
    generator = np.random.default_rng(single.programs.plan.seed)
    kept: dict[str, HostArray] = {}
    single.reset()
    for step in range(steps):
        if nudge:
            _nudge(single, generator)
        single.load(data, step)
        kept = kept | single.run_keeping(() if step else _gradients(single))
    last = (*single.graph.updates, *(name for metric, name in single.graph.metrics.items() if metric == "loss"))
    return kept | {name: single.host_copy(name) for name in last}


def _nudge(trainer: Trainer, generator: np.random.Generator) -> None:
    """Perturb every weight by up to the distance between neighbouring numbers of its size."""
    for tensor in trainer.graph.tensors.values():
        if tensor.is_parameter:
            errors = ROUNDING[least_precise(trainer.graph)] * generator.uniform(-1, 1, tensor.shape)
            trainer.view(tensor.name)[...] *= trainer.xp.asarray((1 + errors).astype(tensor.dtype))


def _result(differences: Mapping[str, Difference]) -> CheckResult:
    """Return the result, with the tensor that differs most relative to its tolerance.

    If all are undecided, it fails.
    """
    decided = {name: difference for name, difference in differences.items() if not difference.is_undecided}
    worst = max(decided or differences, key=lambda name: differences[name].excess)
    failed = sum(difference.excess > 1 for difference in decided.values())
    return CheckResult(
        passed=bool(decided) and not failed,
        tensors=len(decided),
        failed=failed,
        undecided=len(differences) - len(decided),
        worst_tensor=worst,
        worst_difference=finite(differences[worst].value),
        tolerance=differences[worst].tolerance,
    )


TEMPORARIES = "temporaries of kernels, estimated"
CHECKED = "arena of the check's one worker"
SINGLE_BYTES = 4
SHARES: Mapping[bool, tuple[float, float]] = {False: (0.6, 1.7), True: (0.0, 0.75)}
"""Temporaries of a weight update and of other kernels, relative to operands and results in single precision.

The key says whether kernels are PyTorch's. CuPy's kernels additionally copy 16-bit operands and results in single
precision.
"""


SIZE = attrgetter("nbytes")
"""The order of needs: by bytes."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The memory that one rank needs: lines that are certain, and an estimate of its kernels' temporaries."""

    needs: tuple[Need, ...]
    temporaries: Need

    @property
    def nbytes(self) -> int:
        """Total bytes without temporaries."""
        return sum(need.nbytes for need in self.needs)

    def beside(self, alone: Demand) -> Demand:
        """Return the demand of both if their kernels alternate and both arenas are allocated."""
        others = sorted((*self.needs[1:], *alone.needs[1:]), key=SIZE)
        larger = {need.what: need for need in others}  # the larger of each line
        arenas = self.needs[0], replace(alone.needs[0], what=CHECKED)
        return Demand((*arenas, *larger.values()), max(self.temporaries, alone.temporaries, key=SIZE))


def demand(programs: RankPrograms, xp: Any, transport: str, *, pytorch: bool) -> Demand:
    """Return what a rank needs on its device besides the context, which exists already."""
    workers = [program.worker for program in (programs.training, programs.evaluation) if program is not None]
    libraries = Libraries(
        capability=capability(xp), pytorch=pytorch, nccl_peers=len(peers(workers)) if transport == "nccl" else 0
    )
    workspace = max((workspace_need(worker, WORKSPACE_BYTES) for worker in workers), key=SIZE)
    temporaries = max(temporaries_bytes(worker, pytorch=pytorch) for worker in workers)
    return Demand(
        (arena_need(programs.arena_bytes), workspace, *library_needs(libraries)),
        Need(TEMPORARIES, temporaries, "executor/check.py"),
    )


def capability(xp: Any) -> tuple[int, int]:
    """Return the compute capability of the current device."""
    digits: str = xp.cuda.Device().compute_capability
    return int(digits[:-1]), int(digits[-1])


def peers(workers: Sequence[WorkerProgram]) -> set[int]:
    """Return the workers with which these programs exchange messages."""
    transfers = (task for worker in workers for task in distinct(worker.tasks) if isinstance(task, Send | Receive))
    return {message.peer for task in transfers for message in task.messages if message.nbytes}


def temporaries_bytes(worker: WorkerProgram, *, pytorch: bool) -> int:
    """Estimate the largest temporaries of any kernel call. Calls alternate."""
    calls = kernel_calls(distinct(worker.tasks))
    return max((_call_bytes(worker, kernel.op, call, pytorch) for kernel, call in calls), default=0)


def _call_bytes(worker: WorkerProgram, op: str, call: SlicedCall, pytorch: bool) -> int:
    update, other = SHARES[pytorch]
    places = [(worker.buffers[number], slices) for number, slices in (*call.inputs, *call.outputs)]
    copied = 1.0 if not pytorch and any(np.dtype(buffer.dtype) in NARROW for buffer, _ in places) else 0.0
    elements = sum(prod(extents(slices, buffer.shape)) for buffer, slices in places)
    return int(SINGLE_BYTES * elements * (copied + (update if op in UPDATES else other)))


def release(xp: Any) -> None:
    """Free the device memory that allocators reserve but do not use."""
    gc.collect()
    xp.get_default_memory_pool().free_all_blocks()
    for kernels in LIBRARIES.values():
        kernels.release()


def is_pytorch(library: str, xp: Any) -> bool:
    """Return whether the kernels that `--kernels` names are PyTorch's, on a GPU."""
    torch = LIBRARIES.get("torch")
    return torch is not None and library in ("torch", AUTO) and torch.obstacle(xp) is None


def require_room(ranks: Cluster, xp: Any, plan: str, own: Demand) -> int:
    """Return the bytes that will be in use on this rank's GPU (collective). Raises SharedError if they are not free.

    Ranks of one GPU share it. If only the estimated temporaries may not fit, rank 0 prints a warning.
    """
    release(xp)
    ranks.barrier()
    free, total = xp.cuda.runtime.memGetInfo()
    place = device_place(xp)
    everyone = enumerate(ranks.all_gather((place, own, int(free))))
    sharing = grouped((where, (rank, demanded, room)) for rank, (where, demanded, room) in everyone)
    for members in sharing.values():
        numbers, demands, rooms = zip(*members, strict=True)
        lack, estimated = (need - min(rooms) for need in _needed(demands))
        if lack > 0:
            raise SharedError(f"{plan}: {room_line(numbers, demands, min(rooms))}", BAD_INPUT)
        if estimated > 0 and ranks.rank == 0:
            line = room_line(numbers, demands, min(rooms), estimate=True)
            print(f"warning: {plan}: {line}", file=sys.stderr, flush=True)
    return int(total - free) + _needed([demanded for _, demanded, _ in sharing[place]])[1]


def _needed(demands: Sequence[Demand]) -> tuple[int, int]:
    """Return the bytes that are certain, and those with temporaries."""
    certain = sum(demanded.nbytes for demanded in demands)
    return certain, certain + sum(demanded.temporaries.nbytes for demanded in demands)


def room_line(numbers: Sequence[int], demands: Sequence[Demand], free: int, *, estimate: bool = False) -> str:
    """Return what ranks of one GPU need, what is free, how much is missing, and what to do."""
    sizes = Counter[str]()
    for demanded in demands:
        lines = (*demanded.needs, demanded.temporaries) if estimate else demanded.needs
        sizes.update({need.what: need.nbytes for need in lines})
    lack = sizes.total() - free
    arenas = sum(demanded.needs[0].nbytes for demanded in demands)
    room = (arenas - lack) // len(numbers) // MIB
    advice = [
        *(["leave out --check"] if lack <= sizes[CHECKED] else []),
        "plan for more workers",
        *([f"plan with --memory {room}MiB"] if room > 0 else []),
    ]
    is_alone = len(numbers) == 1
    who = f"rank {numbers[0]}" if is_alone else f"ranks {', '.join(map(str, numbers))} of one GPU"
    verb = "may need" if estimate else "needs" if is_alone else "need"
    parts = ", ".join(f"{what} {quantity(nbytes, 'B')}" for what, nbytes in sizes.most_common() if nbytes)
    return (
        f"{who} {verb} {quantity(sizes.total(), 'B')} of a GPU with {quantity(free, 'B')} free, {quantity(lack, 'B')} "
        f"too much ({parts}): {', or '.join(advice)}"
    )
