"""Export targets by name; for mesh engines also how each can split operators, and the bytes that it then moves.

A mesh engine splits operators one by one and redistributes their operands accordingly. This is what DTensor's
dispatcher does, and close to what XLA's partitioner does: among the ways to split an operator it chooses the one that
moves the fewest bytes of its operands. It does not look ahead, and fetches nothing in parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, cast

import tdl
from planner.errors import InputError, PlanError
from planner.export.engines import DEEPSPEED, FSDP2
from planner.export.setup import TORCHRUN, Launch, Setup
from planner.export.trainers import MEGATRON, TORCHTITAN
from planner.extensions import register_named
from planner.graph.ir import Graph, Node, Tensor
from planner.layout import EVERYWHERE, PARTIAL, REPLICATE, TERMS, Layout, Placement, Shard, Signature, signatures
from planner.layout.region import leading_variable
from planner.plans.plan import Plan
from planner.program.tasks import Program
from tensor_partitioner.display import nearest

HERE = Path(__file__).parent
TRACES, ENGINES = "tensor_partitioner.traces", "tensor_partitioner.engines"
"""Entry-point groups of other packages: trace formats (each a `TraceFormat`), and engines (each a `Launch`)."""

Splits = Callable[[Signature], tuple[tuple[str, ...], str]]
"""The variables along which an engine splits an operator, and why along no others."""

Dims = Callable[[Signature, Sequence[tdl.Index]], frozenset[int] | None]
"""The dimensions in which a tensor with these indices may be split; None means all."""


@dataclass(frozen=True, slots=True)
class Target:
    """A mesh engine: its title, and the template of its file, in which `Exported.source` fills `@NAMES@`.

    With `torch_modules` it places the results of PyTorch's submodules, and supports neither recurrent layers nor
    embeddings whose rows are split more than once; otherwise it places activations. With `uneven` the parts of a weight
    may be unequal: they end at multiples of ceil(n/k), not at n*j//k as a plan's do.
    """

    title: str
    template: Path
    splits: Splits
    dims: Dims = lambda signature, indices: None
    torch_modules: bool = False
    uneven: bool = False


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A trace format: its title, and the function that writes a program beside a path, one file per worker."""

    title: str
    write: Callable[[Program, Path], list[Path]]


TARGETS: dict[str, Target | Launch] = {
    "fsdp2": FSDP2,
    "megatron": MEGATRON,
    "torchtitan": TORCHTITAN,
    "deepspeed": DEEPSPEED,
    "torchrun": TORCHRUN,
}
"""By the names of `export-plan --to`; `register_target` adds mesh engines."""


def register_target(name: str, title: str, template: Path, **options: Any) -> Callable[[Splits], Splits]:
    """Register the decorated function as the `splits` of a target; `options` are other fields of `Target`.

    Raises TDLError if the name is taken.
    """
    register = register_named(TARGETS, "target", name)

    def enter(splits: Splits) -> Splits:
        def checked(signature: Signature) -> tuple[tuple[str, ...], str]:
            result = splits(signature)
            if not isinstance(result, tuple) or len(result) != 2:
                raise PlanError(f"target {name}: expected variables and why no others, found {result!r}")
            return result

        register(Target(title, template, checked, **options))
        return splits

    return enter


def target_names() -> tuple[str, ...]:
    """Return the names of all targets: the project's own, then those of installed packages."""
    added = (entry.name for group in (ENGINES, TRACES) for entry in entry_points(group=group))
    return tuple(dict.fromkeys((*TARGETS, *added)))


def listed_targets() -> str:
    """Return the names of all targets as text, with what to install for more."""
    names = target_names()
    return ", ".join(names) + ("" if "chakra" in names else " (pip install extras/chakra adds chakra)")


def target_named(name: str) -> Target | Launch | TraceFormat:
    """Return a target, or a trace format of an installed package; raise PlanError for an unknown name."""
    if name in TARGETS:
        return TARGETS[name]
    for entry in entry_points(group=TRACES, name=name):
        return cast(TraceFormat, entry.load())
    if name in (known := engines()):
        return known[name]
    raise PlanError(f"expected a target among {listed_targets()}, found {name!r}{nearest(name, target_names())}")


def mesh_target(name: str) -> Target:
    """Return a mesh engine; raise PlanError for any other target."""
    target = target_named(name)
    if not isinstance(target, Target):
        raise PlanError(f"expected a target that splits tensors over a mesh, found {target.title}")
    return target


def engines() -> dict[str, Launch]:
    """Return every engine configured by degrees, by name: the project's own, then those of other packages."""
    known = {name: target for name, target in TARGETS.items() if isinstance(target, Launch)}
    return known | {entry.name: entry.load() for entry in entry_points(group=ENGINES) if entry.name not in TARGETS}


def known_engines() -> dict[str, Launch]:
    """Return the engines that `decide --engine` takes, by name; "ours" is the executor."""
    return {"ours": TORCHRUN} | engines()


def engine_named(name: str) -> Launch:
    """Return an engine configured by degrees. Raises an InputError for an unknown name."""
    known = known_engines()
    if name not in known:
        raise InputError(f"engine: expected {', '.join(known)}, found {name!r}{nearest(name, known)}")
    return known[name]


def engines_of(setup: Setup) -> dict[str, str]:
    """Return, for every engine configured by degrees, why it cannot run a setup; "" if it can."""
    return {name: engine.cannot(setup) for name, engine in engines().items()}


def _of_samples_only(signature: Signature) -> str | None:
    """Return the sample variable of an operator that DTensor splits correctly only along samples; else None."""
    if signature.category == "convolution" or signature.op.startswith("batch_norm"):
        return leading_variable(signature.description.accesses[0].index[0])
    return None


def _dtensor_dims(signature: Signature, indices: Sequence[tdl.Index]) -> frozenset[int] | None:
    """Return the dimensions in which a tensor that DTensor's operator accesses with these indices may be split.

    None leaves this to the operator.
    """
    samples = _of_samples_only(signature)
    own = frozenset(dim for dim, index in enumerate(indices) if leading_variable(index) == samples)
    return own if samples else None


def _contiguous(signature: Signature) -> tuple[str, ...]:
    """Return the variables whose parts are contiguous parts of every dimension that they index."""
    description = signature.description
    indices = [index for access in description.accesses for index in access.index]
    indices += [index for output in description.outputs for index in output.index]
    return tuple(
        name
        for name in description.strategies
        if all(leading_variable(index) == name for index in indices if name in index.variables)
    )


@register_target(
    "dtensor", "PyTorch's DTensor", HERE / "dtensor.txt", dims=_dtensor_dims, torch_modules=True, uneven=True
)
def _dtensor(signature: Signature) -> tuple[tuple[str, ...], str]:
    """Return the splits that DTensor 2.13 supports, as measured."""
    if signature.op.startswith("batch_norm"):
        return (), "batch norm needs the whole batch, which is gathered"
    if samples := _of_samples_only(signature):
        return (samples,), "convolutions are split by samples only"
    variables = _contiguous(signature)
    why = "a dimension that is split or merged by a view can be sharded only in its first part"
    return variables, "" if len(variables) == len(signature.description.strategies) else why


@register_target("jax", "JAX", HERE / "jax.txt")
def _jax(signature: Signature) -> tuple[tuple[str, ...], str]:
    return _contiguous(signature), ""


@dataclass(frozen=True, slots=True)
class Mesh:
    """The extents of a mesh, and the steps of the plan that form each axis."""

    ways: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes."""
        return tuple(f"step{'_'.join(str(step + 1) for step in steps)}" for steps in self.steps)

    @property
    def workers(self) -> int:
        """Number of workers."""
        return math.prod(self.ways)

    def placements(self, layout: Layout) -> Layout:
        """Return a layout's placement on every axis."""
        return tuple(layout[steps[0]] for steps in self.steps)


def mesh_of(plan: Plan, tensors: Iterable[str]) -> Mesh:
    """Return the mesh of these tensors of a plan."""
    layouts = {plan.layouts[name] for name in tensors}
    steps: list[tuple[int, ...]] = [(0,)] if plan.ways else []
    for before, step in pairwise(range(len(plan.ways))):
        if all(layout[before] == layout[step] for layout in layouts):
            steps[-1] = (*steps[-1], step)
        else:
            steps.append((step,))
    return Mesh(tuple(math.prod(plan.ways[step] for step in own) for own in steps), tuple(steps))


def uneven_split(shape: Sequence[int], placements: Layout, mesh: Mesh) -> str:
    """Return a message if the parts of a dimension do not divide its extent; "" if they do."""
    for dim, extent in enumerate(shape):
        parts = math.prod(way for way, placement in zip(mesh.ways, placements, strict=True) if placement == Shard(dim))
        if extent % parts:
            return f"dimension {dim} must be divisible by {parts}, found {extent}"
    return ""


def joined(placements: Layout, groups: Sequence[Sequence[int]], shape: Sequence[int]) -> tuple[Layout, bool]:
    """Return the placements of a tensor whose dimensions are merged, and whether all parts stay contiguous.

    A split of a dimension other than the first of its group (apart from extents of 1) becomes a split of the merged
    one.
    """
    target = {axis: place for place, group in enumerate(groups) for axis in group}
    first = {next((axis for axis in group if shape[axis] > 1), None) for group in groups}
    same = all(placement.dim in first for placement in placements if isinstance(placement, Shard))
    return tuple(
        Shard(target[placement.dim]) if isinstance(placement, Shard) else placement for placement in placements
    ), same


def split_once(placements: Layout, dim: int) -> Layout:
    """Return the placements with dimension `dim` split only at its first split, and replicated at others."""
    split = Shard(dim)
    return tuple(
        REPLICATE if placement == split and split in placements[:axis] else placement
        for axis, placement in enumerate(placements)
    )


def only(placements: Layout, dims: frozenset[int]) -> Layout:
    """Return the placements with splits of other dimensions replaced by replication."""
    return tuple(
        REPLICATE if isinstance(placement, Shard) and placement.dim not in dims else placement
        for placement in placements
    )


def redistributed(tensor: Tensor, have: Layout, want: Layout, mesh: Mesh) -> int:
    """Return the bytes that all workers together receive when a tensor is redistributed between two placements.

    An all-gather makes a tensor whole, an all-to-all splits it differently, a reduce-scatter turns partial sums into
    shards, and a reduce-scatter with an all-gather makes partial sums whole.
    """
    lie, total = list(have), 0
    for axis in reversed(range(len(mesh.ways))):
        before, after, ways = lie[axis], want[axis], mesh.ways[axis]
        if before in (after, REPLICATE) or after == PARTIAL:
            lie[axis] = after
            continue
        sharded = math.prod(way for way, placement in zip(mesh.ways, lie, strict=True) if isinstance(placement, Shard))
        local = tensor.nbytes // sharded
        if before == PARTIAL:
            moved = mesh.workers * (ways - 1) * local // ways * (1 if isinstance(after, Shard) else 2)
        else:
            moved = mesh.workers * (ways - 1) * local // (1 if after == REPLICATE else ways)
        lie[axis], total = after, total + moved
    return total


@dataclass(slots=True)
class Engine:
    """A mesh engine running a graph: the current placements of every tensor, and the bytes of every node."""

    graph: Graph
    mesh: Mesh
    target: Target
    lies: dict[str, Layout]
    wanted: Mapping[str, Layout]
    moved: dict[str, int] = field(default_factory=dict)

    def run(self) -> dict[str, int]:
        """Return the bytes that every node moves."""
        signature_of = signatures(self.graph)
        updated = {new: old for old, new in self.graph.updates.items()}
        for node in self.graph.nodes:
            self.moved[node.name] = 0
            if any(name in updated for name in node.outputs):
                self._update(node, updated)
            else:
                self._compute(node, signature_of[node.name])
        return self.moved

    def _update(self, node: Node, updated: Mapping[str, str]) -> None:
        """Redistribute the gradient to the placements of the weight."""
        place = next(self.lies[updated[name]] for name in node.outputs if name in updated)
        for name in node.inputs:
            if self.graph.tensors[name].role == "gradient":
                self._bring(node, name, place)
        self.lies |= dict.fromkeys(node.outputs, place)

    def _compute(self, node: Node, signature: Signature) -> None:
        chosen = tuple(self._choice(node, signature, axis) for axis in range(len(self.mesh.ways)))
        for operand, name in enumerate(node.inputs):
            self._bring(
                node, name, tuple(self._needed(signature, operand, name, choice, a) for a, choice in enumerate(chosen))
            )
        for number, name in enumerate(node.outputs):
            self.lies[name] = tuple(_produced(signature, number, choice) for choice in chosen)
            if name in self.wanted:
                self._bring(node, name, self.wanted[name], keep=True)

    def _bring(self, node: Node, name: str, place: Layout, *, keep: bool = False) -> None:
        self.moved[node.name] += redistributed(self.graph.tensors[name], self.lies[name], place, self.mesh)
        if keep:
            self.lies[name] = place

    def _choice(self, node: Node, signature: Signature, axis: int) -> str:
        """Return the split of a node along an axis that moves the fewest bytes; of equals, with the fewest changes."""

        def price(choice: str) -> tuple[int, int]:
            cost, changes = 0, 0
            for operand, name in enumerate(node.inputs):
                have = self.lies[name]
                want = (*have[:axis], self._needed(signature, operand, name, choice, axis), *have[axis + 1 :])
                cost += redistributed(self.graph.tensors[name], have, want, self.mesh)
                changes += have != want
            return cost, changes

        return min(self._choices(node, signature, axis), key=price)

    def _choices(self, node: Node, signature: Signature, axis: int) -> Iterator[str]:
        partial = frozenset(at for at, name in enumerate(node.inputs) if self.lies[name][axis] == PARTIAL)
        if partial and signature.description.linear(partial):
            yield TERMS
        splits, _ = self.target.splits(signature)
        yield from (name for name in splits if self._can_split(signature.extents[name], self.mesh.ways[axis]))
        yield EVERYWHERE

    def _can_split(self, extent: int, ways: int) -> bool:
        return extent >= ways if self.target.uneven else extent % ways == 0

    def _needed(self, signature: Signature, operand: int, name: str, choice: str, axis: int) -> Placement:
        if choice == TERMS:
            return self.lies[name][axis] if self.lies[name][axis] == PARTIAL else REPLICATE
        accesses = (access.index for access in signature.description.accesses if access.operand == operand)
        return _split(chain.from_iterable(map(enumerate, accesses)), choice)


def _split(indices: Iterable[tuple[int, tdl.Index]], choice: str) -> Placement:
    """Return the placement of a tensor that is read or written by these indices when a variable is split."""
    return next((Shard(dim) for dim, index in indices if leading_variable(index) == choice), REPLICATE)


def _produced(signature: Signature, output: int, choice: str) -> Placement:
    if choice == TERMS or choice in signature.description.reduction_variables:
        return PARTIAL
    return _split(enumerate(signature.description.outputs[output].index), choice)
