"""Options of `execute` that say how training goes on, and the request of a job that they make for a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from executor.backend import BackendError, require_dtypes
from executor.checkpoint import Checkpoint, CheckpointError, checkpoints
from executor.data import ARRAYS, DATA_SETS, ROWS, DataError, DataSet, data_set
from executor.job import Interval, JobRequest, read_interval
from executor.schedules import CONSTANT, FORM, read_schedule
from executor.weights import Weights
from planner.errors import InputError
from planner.graph.facts import classification
from planner.plans.plan import Plan
from tensor_partitioner.commands.console import WRITTEN

F = TypeVar("F", bound=Callable[..., Any])

FOLDER = click.Path(file_okay=False, path_type=Path)
EITHER = click.Path(path_type=Path)
FILES = " or ".join([*(f"FILE{suffix}" for suffix in ARRAYS), "a FOLDER of .npy"])
WEIGHTS = "Initial state dict: .safetensors, .npz or a torch.save file.  [default: random]"
ON_NAN = "After a step that is not finite: end with status 1, take it back, or go on without checkpoints."
INTERVAL = "N|step|epoch"
OF_A_JOB = (
    *("steps", "evaluate_every", "log_every", "log_to", "checkpoint", "checkpoint_every", "save_weights"),
    *("on_nan", "agree", "check", "tasks", "graphs"),
)
"""Options that a job takes as they are."""


def _interval(_context: click.Context, _option: click.Parameter, text: str | None) -> Interval | None:
    try:
        return None if text is None else read_interval(text)
    except InputError as error:
        raise click.BadParameter(str(error)) from error


_OPTIONS = (
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
    click.option("--agree/--no-agree", default=True, help="Compare what ranks train on and hold."),
)


def training_options(command: F) -> F:
    """Give a command the options of training."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def job_request(path: Path, plan: Plan, xp: Any, transport: str, options: Mapping[str, Any]) -> JobRequest:
    """Return what the job of a plan does; what the options leave open is as in the checkpoint `resume`.

    Raises InputError or OSError for what does not fit the plan.
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
        xp=xp,
        transport=transport,
        data=data,
        schedule=read_schedule(schedule),
        evaluate=evaluate,
        resume=resume,
        weights=None if options["weights"] is None else Weights.of(options["weights"], plan.graph),
        trace=options["trace_path"] is not None,
        measure_memory=options["memory"],
        **{name: options[name] for name in OF_A_JOB},
    )


def _data(path: Path, plan: Plan, xp: Any, options: Mapping[str, Any], resume: Checkpoint | None) -> DataSet:
    """Return the data set of the options, or of the checkpoint that is resumed, which must have been trained on it."""
    try:
        require_dtypes(xp, (tensor.dtype for tensor in plan.graph.tensors.values()))
        data = data_set(_data_name(options["data"], resume), plan.graph, plan.seed, not options["in_order"])
    except (BackendError, DataError) as error:
        raise InputError(f"{path}: {error}") from error
    if resume is not None and resume.manifest.data != data.identity:
        saved, expected = map(_named, (resume.manifest.data, data.identity))
        raise CheckpointError(f"{resume.folder}: expected data {expected}, found that of {saved}")
    return data


def check_one_plan(plans: int, options: Mapping[str, Any]) -> None:
    """Raise InputError where options are for one plan and there are several, or do not go together."""
    named = [
        name for name in ("weights", "save_weights", "checkpoint", "resume", "log_to") if options[name] is not None
    ]
    if plans > 1 and named:
        raise InputError(f"--{named[0].replace('_', '-')} is of one training: expected one plan, found {plans}")
    if options["checkpoint_every"] is not None and options["checkpoint"] is None:
        raise InputError("--every says how often to write checkpoints: expected --checkpoint DIR, found none")
    if options["resume"] is not None and options["weights"] is not None:
        raise InputError("--resume goes on with the weights of its checkpoint: expected no --weights")
    if options["resume"] is not None and options["check"]:
        raise InputError("--check compares a training from its start: expected no --resume")
    saved = options["save_weights"]
    if saved is not None and saved.exists() and not saved.is_file():
        raise InputError(f"--save-weights {saved}: expected a plain file, which all ranks write, found another")


def _data_name(name: str | None, resume: Checkpoint | None) -> str:
    """Return which data set to make; a user's file is known by what it holds, so it must be named."""
    if name is not None:
        return name
    known = "random" if resume is None else resume.manifest.data.partition(" ")[0]
    if known not in DATA_SETS:
        in_order = " --in-order" if known == ROWS else ""
        raise InputError(f"--resume of a training on a file: expected --data {FILES}{in_order}")
    return known


def _named(identity: str) -> str:
    """Say what a checkpoint knows a data set by: how its digest begins, and of a file whether it is --in-order."""
    known, _, content = identity.partition(" ")
    name = known if known in DATA_SETS else "FILE"
    return f"{name}{content and f' of content {content[:12]}'}{' --in-order' if known == ROWS else ''}"


def _check_folder(folder: Path, resume: Checkpoint | None) -> None:
    """Refuse to mix the checkpoints of two trainings."""
    existing = checkpoints(folder)
    if existing and (resume is None or not resume.folder.exists() or not existing[-1].samefile(resume.folder)):
        raise InputError(
            f"--checkpoint {folder}: expected no checkpoints of another training, found {existing[-1].name}: "
            f"--resume {folder} goes on from it"
        )


def _check_held_out(path: Path, plan: Plan, data: DataSet) -> None:
    if data.held_out is None:
        raise InputError(f"{path}: expected data with samples held out, found {data.identity}")
    if not data.held_out.steps_per_epoch:
        raise InputError(
            f"{path}: --eval by the loss expected a batch of {data.held_out.batch} samples held out, found "
            f"{data.held_out.count}"
        )
    if data.held_out.metric == "logits" and classification(plan.graph) is None:
        raise InputError(f"{path}: --eval expected metrics logits [..., classes] and labels [...], found others")
    if data.held_out.metric not in plan.graph.metrics:
        raise InputError(f"{path}: --eval expected the metric {data.held_out.metric}, found none")
