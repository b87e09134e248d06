"""Export targets by name; for mesh engines also how each can split operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

import tdl
from planner.errors import InputError, PlanError
from planner.export.engines import DEEPSPEED, FSDP2
from planner.export.setup import TORCHRUN, Launch, Setup
from planner.export.trainers import MEGATRON, TORCHTITAN
from planner.extensions import register_named
from planner.layout import Signature
from planner.layout.region import leading_variable
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
    if samples is None:
        return None
    return frozenset(dim for dim, index in enumerate(indices) if leading_variable(index) == samples)


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
