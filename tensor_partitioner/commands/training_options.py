"""Options of `execute` that control training, and the job request that they make for a plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from executor.backend import BackendError, require_dtypes
from executor.checkpoint import Checkpoint, CheckpointError, checkpoints
from executor.data import ARRAYS, DATA_SETS, ROWS, DataError, DataSet, data_set
from executor.job import JobRequest, read_interval
from executor.schedules import CONSTANT, FORM, read_schedule
from executor.weights import Weights
from planner.errors import InputError
from planner.graph.facts import classification
from planner.plans.plan import Plan
from tensor_partitioner.commands.console import WRITTEN, reads, with_options

FOLDER = click.Path(file_okay=False, path_type=Path)
EITHER = click.Path(path_type=Path)
FILES = " or ".join([*(f"FILE{suffix}" for suffix in ARRAYS), "a FOLDER of .npy"])
WEIGHTS = "Initial state dict: .safetensors, .npz or a torch.save file.  [default: random]"
ON_NAN = "After a step with values that are not finite: end with status 1, undo it, or continue without checkpoints."
INTERVAL = "N|step|epoch"
OF_A_JOB = (
    *("steps", "evaluate_every", "log_every", "log_to", "checkpoint", "checkpoint_every", "save_weights"),
    *("on_nan", "agree", "check", "tasks", "graphs"),
)
"""Options that are passed to a job unchanged."""


_interval = reads(read_interval)

training_options = with_options(
    click.option("--weights", type=WRITTEN, metavar="FILE", help=WEIGHTS),
    click.option("--save-weights", type=WRITTEN, metavar="FILE", help="Write the trained state dict as safetensors."),
    click.option("--data", help=f"One of {', '.join(DATA_SETS)}, or {FILES}.  [default: random, or as resumed]"),
    click.option("--in-order", is_flag=True, help="Read samples in file order instead of shuffling each epoch."),
    click.option("--schedule", help=f"Learning-rate schedule: {FORM}.  [default: constant, or as resumed]"),
    click.option("--eval", "evaluate", is_flag=True, help="Evaluate on held-out samples at the end."),
    click.option("--eval-every", "evaluate_every", metavar=INTERVAL, callback=_interval, help="Evaluation interval."),
    click.option("--log", "--log-every", "log_every", metavar=INTERVAL, callback=_interval, help="Logging interval."),
    click.option("--log-to", type=EITHER, metavar="FILE.csv|DIR", help="Write metrics as CSV or for TensorBoard."),
    click.option("--checkpoint", type=FOLDER, metavar="DIR", help="Checkpoint folder; the last two are kept."),
    click.option("--every", "checkpoint_every", metavar=INTERVAL, callback=_interval, help="Checkpoint interval."),
    click.option("--resume", type=EITHER, metavar="DIR", help="Resume from the last checkpoint, under any plan."),
    click.option("--on-nan", type=click.Choice(["stop", "skip", "continue"]), default="stop", help=ON_NAN),
    click.option("--agree/--no-agree", default=True, help="Check that ranks have the same samples and replicas."),
)
"""Adds the options of training to a command."""


def job_request(path: Path, plan: Plan, xp: Any, transport: str, options: Mapping[str, Any]) -> JobRequest:
    """Return the request of a plan's job. Options that are not given are taken from the checkpoint `resume`.

    Raises InputError or OSError for files that do not fit the plan.
    """
    resume = None if options["resume"] is None else Checkpoint.of(options["resume"], plan)
    if options["checkpoint"] is not None:
        _check_folder(options["checkpoint"], resume)
    data = _data(path, plan, xp, options, resume)
    evaluate = options["evaluate"] or options["evaluate_every"] is not None
    if evaluate:
        _check_held_out(path, plan, data)
    schedule = options["schedule"]
    if schedule is None:
        schedule = CONSTANT.text if resume is None else resume.manifest.schedule
    return JobRequest(
        xp=xp, transport=transport, data=data, schedule=read_schedule(schedule), evaluate=evaluate, resume=resume,
        weights=None if options["weights"] is None else Weights.of(options["weights"], plan.graph),
        trace=options["trace_path"] is not None, measure_memory=options["memory"],
        **{name: options[name] for name in OF_A_JOB},
    )  # fmt: skip


def _data(path: Path, plan: Plan, xp: Any, options: Mapping[str, Any], resume: Checkpoint | None) -> DataSet:
    """Return the data set that the options name, or that of the resumed checkpoint.

    Raises InputError if it does not fit the plan, and CheckpointError if the checkpoint was trained on another.
    """
    try:
        require_dtypes(xp, (tensor.dtype for tensor in plan.graph.tensors.values()))
        data = data_set(_data_name(options["data"], resume), plan.graph, plan.seed, not options["in_order"])
    except (BackendError, DataError) as error:
        raise InputError(f"{path}: {error}") from error
    if resume is not None and resume.manifest.data != data.identity:
        saved, expected = map(_named, (resume.manifest.data, data.identity))
        raise CheckpointError(f"{resume.folder}: expected data {expected}, found {saved}")
    return data


def check_one_plan(plans: int, options: Mapping[str, Any]) -> None:
    """Raise an InputError if options for one plan are given with several, or if options contradict each other."""
    named = [
        name for name in ("weights", "save_weights", "checkpoint", "resume", "log_to") if options[name] is not None
    ]
    if plans > 1 and named:
        raise InputError(f"--{named[0].replace('_', '-')} applies to one training: expected one plan, found {plans}")
    if options["checkpoint_every"] is not None and options["checkpoint"] is None:
        raise InputError("--every is the interval of checkpoints: expected --checkpoint DIR, found none")
    if options["resume"] is not None and options["weights"] is not None:
        raise InputError("--resume uses the weights of its checkpoint: expected no --weights")
    if options["resume"] is not None and options["check"]:
        raise InputError("--check compares training from step 0: expected no --resume")
    saved = options["save_weights"]
    if saved is not None and saved.exists() and not saved.is_file():
        raise InputError(f"--save-weights {saved}: expected a regular file (all ranks write it), found another kind")


def _data_name(name: str | None, resume: Checkpoint | None) -> str:
    """Return the name of the data set. A user's file has no name in a checkpoint, so `--data` must name it."""
    if name is not None:
        return name
    known = "random" if resume is None else resume.manifest.data.partition(" ")[0]
    if known not in DATA_SETS:
        in_order = " --in-order" if known == ROWS else ""
        raise InputError(f"--resume of a training on a file: expected --data {FILES}{in_order}")
    return known


def _named(identity: str) -> str:
    """Return how a checkpoint's data set is shown: its name, the start of its digest, and --in-order if set."""
    known, _, content = identity.partition(" ")
    name = known if known in DATA_SETS else "FILE"
    return f"{name}{content and f' of content {content[:12]}'}{' --in-order' if known == ROWS else ''}"


def _check_folder(folder: Path, resume: Checkpoint | None) -> None:
    """Raise an InputError if the folder holds checkpoints of another training."""
    existing = checkpoints(folder)
    if existing and (resume is None or not resume.folder.exists() or not existing[-1].samefile(resume.folder)):
        raise InputError(
            f"--checkpoint {folder}: expected no checkpoints of another training, found {existing[-1].name}: "
            f"--resume {folder} continues it"
        )


def _check_held_out(path: Path, plan: Plan, data: DataSet) -> None:
    if data.held_out is None:
        raise InputError(f"{path}: expected data with samples held out, found {data.identity}")
    if not data.held_out.steps_per_epoch:
        raise InputError(
            f"{path}: --eval by the loss: expected at least a batch of {data.held_out.batch} held-out samples, found "
            f"{data.held_out.count}"
        )
    if data.held_out.metric == "logits" and classification(plan.graph) is None:
        raise InputError(f"{path}: --eval: expected metrics logits [..., classes] and labels [...], found others")
    if data.held_out.metric not in plan.graph.metrics:
        raise InputError(f"{path}: --eval: expected the metric {data.held_out.metric}, found none")
