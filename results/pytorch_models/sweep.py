"""Models imported one by one, each in a process of its own, and trained beside PyTorch on other samples each step.

python -m results.pytorch_models.sweep language results/pytorch_models/population.json [PATTERN]
"""

from __future__ import annotations

import copy
import json
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from executor.check import relative_difference, tolerance, trained_alone
from executor.cluster import single_rank
from executor.torch.batches import Batch, array_of
from executor.torch.verification import Rounded
from executor.training import Trainer, rank_programs
from executor.weights import Weights
from planner.errors import InputError
from planner.graph.optimizers import Optimizer
from planner.plans.plan import undivided
from planner.pytorch import from_torch
from results.experiment import Within, in_fork_within, is_out_of_memory

STEPS, RATE, NOISE = 3, 1e-3, 0.02
EPSILON, LARGE_EPSILON = 1e-8, 1e-3
"""What AdamW adds to the size by which it divides a gradient: PyTorch's, and what keeps a gradient that is zero but for
rounding, as all are before a batch norm of two values, from moving a parameter by a whole step in either direction."""
WITHIN = Within(1200, 16 << 30)
LIMITS = f"over {WITHIN.seconds} s of a core or {WITHIN.memory_bytes >> 30} GiB"
SAMPLES = 3
"""How many samples of rounding errors PyTorch is run with."""
AGAIN = ((LARGE_EPSILON, 0), (EPSILON, SAMPLES), (LARGE_EPSILON, SAMPLES))
"""How a model that differs is compared again, all in double precision: AdamW's epsilon, and samples of rounding."""

LEAST = {"float64": 1e-10, "float32": 1e-6}
"""Differences that may always be, relative to a tensor's largest value, by the least precise dtype of the model."""

Batches = Sequence[Mapping[str, torch.Tensor]]
Make = tuple[nn.Module, Batches]
Trained = Mapping[str, np.ndarray]
Reference = tuple[nn.Module, Batches, Trained]
Comparable = tuple[Reference, AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the population: its name, and what makes it with a batch for every step."""

    name: str
    make: Callable[[], Make]


class Fresh:
    """A data set of one batch a step."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches = batches
        self.identity, self.steps_per_epoch, self.held_out = "tensors", len(batches), None

    def fill(self, xp: Any, out: Any, tile: Any, step: int) -> None:
        """Write an input's tile into `out`; see DataSet."""
        self.batches[step].fill(xp, out, tile, 0)


class InDouble(TorchFunctionMode):
    """Within, what a model does in fp32 on purpose it does in fp64, so that rounding hides nothing."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch, in double precision where it asks for single."""
        args = [torch.float64 if argument is torch.float32 else argument for argument in args]
        kwargs = {key: torch.float64 if value is torch.float32 else value for key, value in (kwargs or {}).items()}
        function = IN_DOUBLE.get(function, function)
        return function(*args, **kwargs)


IN_DOUBLE: Mapping[Any, Callable[..., Any]] = {
    torch.Tensor.float: torch.Tensor.double,
    torch._grouped_mm: lambda a, b, offs, **_: torch.ops.transformers.grouped_mm_fallback(a, b, offs=offs),
}
"""What does in double precision what functions do that know single alone."""


def double(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a batch in double precision."""
    return {name: value.double() if value.is_floating_point() else value for name, value in batch.items()}


def eager(module: nn.Module, batches: Batches, epsilon: float = EPSILON) -> Trained:
    """Train a module; return its parameters and buffers, and the last loss as `loss`."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE, eps=epsilon)
    for batch in batches:
        optimizer.zero_grad()
        result = module(**batch)
        loss = result["loss"]
        loss.backward()
        optimizer.step()
    if not bool(loss.isfinite()):
        raise ArithmeticError("PyTorch's own loss is no number")
    return {name: array_of(value) for name, value in module.state_dict().items()} | {"loss": array_of(loss)}


def compared(
    module: nn.Module, batches: Batches, theirs: Trained, epsilon: float, samples: int
) -> tuple[str, float, str]:
    """Compare what a module's graph is trained to with `theirs`, PyTorch's.

    Returns what differs most, by how many times its tolerance, and the least precise dtype. Where they differ by more
    than may always be, both are trained again with `samples` of rounding errors, if any.
    """
    state = {name: array_of(value).copy() for name, value in module.state_dict().items()}
    graph = from_torch(module, batches[0], optimizer=Optimizer("adamw", lr=RATE, decay=0.01, eps=epsilon))
    cluster = replace(single_rank(1), library="torch")  # whose kernels of images take less time
    trainer = Trainer(rank_programs(undivided(graph), 0, 0), cluster, np, "p2p")
    trainer.begin_with(Weights.of(state, graph))
    pairs = {graph.metrics["loss"]: "loss"}
    pairs |= {entry.tensor: name for name, entry in graph.entries.items() if entry.tensor}
    data = Fresh([Batch(graph, module, batch, ()) for batch in batches])

    def ours(*, nudge: bool) -> Trained:
        values = trained_alone(trainer, data, len(batches), nudge=nudge)
        return {name: values[tensor].reshape(theirs[name].shape) for tensor, name in pairs.items() if tensor in values}

    dtype = "float32" if any(tensor.dtype == "float32" for tensor in graph.tensors.values()) else "float64"
    exact = ours(nudge=False)
    worst, excess = _worst(exact, theirs, (), LEAST[dtype])
    if excess > 1 and samples:
        others = [(theirs, _rounded(copy.deepcopy(module), batches, sample, epsilon)) for sample in range(samples)]
        worst, excess = _worst(exact, theirs, [(exact, ours(nudge=True)), *others], LEAST[dtype])
    return worst, excess, dtype


def _rounded(module: nn.Module, batches: Batches, sample: int, epsilon: float) -> Trained:
    with Rounded(sample):
        return eager(module, batches, epsilon)


def _worst(
    ours: Trained, theirs: Trained, samples: Sequence[tuple[Trained, Trained]], least: float
) -> tuple[str, float]:
    """Return what differs most, and by how many times its tolerance.

    That is what rounding changes in `samples`, pairs of what is trained without and with its errors, or `least`.
    """
    excess = {}
    for name, value in ours.items():
        gap = relative_difference(value, theirs[name])
        by_rounding = max((relative_difference(moved[name], exact[name]) for exact, moved in samples), default=0.0)
        excess[name] = float(np.nan_to_num(gap / tolerance(by_rounding, least), nan=np.inf))
    worst = max(excess, key=excess.__getitem__)
    return worst, excess[worst]


def in_double(model: Model, epsilon: float = EPSILON) -> Reference:
    """Return a model in double precision, and to what PyTorch trains it; what PyTorch raises where it cannot."""
    module, batches = model.make()
    module, batches = moved(module).double(), [double(batch) for batch in batches]
    return module, batches, eager(copy.deepcopy(module), batches, epsilon)


def as_it_is(model: Model, epsilon: float = EPSILON) -> Reference:
    """Return a model in the precision that it is made in, and to what PyTorch trains it."""
    torch.manual_seed(0)
    module, batches = model.make()
    return moved(module), batches, eager(copy.deepcopy(module), batches, epsilon)


def in_precision(model: Model, within: AbstractContextManager[Any], epsilon: float = EPSILON) -> Comparable:
    """Return a model that PyTorch itself can train: in double precision, under `within`, unless it insists on another.

    With it, under what it is to be compared.
    """
    try:
        with within:
            return in_double(model, epsilon), within
    except Exception:
        return as_it_is(model, epsilon), nullcontext()


@torch.no_grad()
def moved(module: nn.Module) -> nn.Module:
    """Return a module, its parameters moved by chance.

    None is zero or one all over, which would hide errors, and let routers choose among equals.
    """
    for parameter in module.parameters():
        if parameter.is_floating_point():
            parameter.add_(NOISE * torch.randn_like(parameter))
    return module


def outcome(model: Model) -> dict[str, Any]:
    """Return what becomes of a model."""
    torch.manual_seed(0)
    np.random.seed(0)
    stage, epsilon = "eager fails", EPSILON
    try:
        reference, _ = in_precision(model, nullcontext())
        stage = "bare error"
        worst, excess, dtype = compared(*reference, epsilon, 0)
        for further, samples in AGAIN:
            if excess > 1:
                epsilon = further
                reference, precision = in_precision(model, InDouble(), epsilon)
                with precision:
                    worst, excess, dtype = compared(*reference, epsilon, samples)
    except InputError as error:
        return {"outcome": "refused", "reason": _without_folders(str(error))}
    except Exception as error:
        if is_out_of_memory(error):
            raise
        if stage == "bare error":
            traceback.print_exc()
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return {"outcome": stage, "reason": _without_folders(reason)}
    reason = f"{worst}: {excess:.3g} times its tolerance" if excess > 1 else ""
    return {"outcome": "wrong" if reason else "right", "reason": reason, "dtype": dtype, "epsilon": epsilon}


def _without_folders(text: str) -> str:
    """Return a text in which files are named below the folder of their package."""
    for folder in sorted(filter(None, sys.path), key=len, reverse=True):
        text = text.replace(f"{folder}/", "")
    return text


def row_of(model: Model) -> dict[str, Any]:
    """Return a model's row, from a process of its own."""
    return in_fork_within(WITHIN, outcome, model) or {"outcome": "no result", "reason": LIMITS}


def main(population: str, out: str, pattern: str = ".") -> None:
    """Sweep a population; write a row a model in place of the one that is there, and print what became of them."""
    torch.set_num_threads(1)
    path, outcomes = Path(out), Counter[str]()
    rows = {(row["population"], row["model"]): row for row in json.loads(path.read_text())} if path.exists() else {}
    for model in import_module(f"results.pytorch_models.{population}").models():
        if re.search(pattern, model.name):
            row = row_of(model)
            rows[population, model.name] = {"population": population, "model": model.name} | row
            outcomes[row["outcome"]] += 1
            print(model.name, row["outcome"], row["reason"], flush=True)
            path.write_text(json.dumps([*rows.values()], indent=1) + "\n")
    print(outcomes)


if __name__ == "__main__":
    main(*sys.argv[1:])
