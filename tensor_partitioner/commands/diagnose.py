"""The command `diagnose`: whether a launch fits, whether its pace is as predicted, and what would be faster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import click

from planner.errors import GraphError, InputError, PlanError
from planner.failures import JobError
from planner.files import write_json
from planner.graph.facts import amounts, batch_size
from planner.parallel import Parallel
from planner.search.alternatives.labels import experts_of
from simulator.projection.network import Cluster, cluster
from simulator.projection.result import Projection
from tensor_partitioner import display
from tensor_partitioner.commands.console import WRITTEN, Command, command_errors, stdout
from tensor_partitioner.commands.planning_options import MACHINES, MODELS, TOPO_HELP, begin
from tensor_partitioner.commands.projecting import StackType
from tensor_partitioner.decision.answer import TOLD_SHARE, fact
from tensor_partitioner.decision.measured import seconds_of
from tensor_partitioner.decision.record import COVERAGE, band, published_scores
from tensor_partitioner.decision.sources import require_alike, source_of
from tensor_partitioner.launch import read_launch
from tensor_partitioner.launch.launch import LaunchFile, with_effect
from tensor_partitioner.projection import project_source
from tensor_partitioner.replicas import Source

CHANGES = 3
"""Number of suggested settings, fastest first."""

LEAST_GAIN = 0.01
"""Suggestions that save less than this share of a step are left out."""


@dataclass(frozen=True, slots=True)
class OtherSetting:
    """A changed setting of a launch: old and new value by word, the resulting parallelism, and its predicted step."""

    words: Mapping[str, tuple[object, object]]
    parallel: Parallel
    step: Projection


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A launch on all devices of a machine, its predicted step, and its measured seconds per step, if given.

    `band` is the range of measured over predicted seconds that holds 90% of published runs. `tokens` are per step; None
    for a model without sequences. `changes` are faster settings; if the launch does not fit, settings that fit.
    """

    launch: LaunchFile
    machine: Cluster
    parallel: Parallel
    step: Projection
    tokens: int | None
    band: tuple[float, float]
    measured_s: float | None
    changes: tuple[OtherSetting, ...]

    @property
    def verdict(self) -> str:
        """How the measured pace compares with the prediction; "" without a measurement."""
        if self.measured_s is None:
            return ""
        ratio, (low, high) = self.measured_s / self.step.seconds, self.band
        runs = f"the range of {COVERAGE:.0%} of published runs"
        if ratio > high:
            return f"slow: {ratio - 1:.0%} longer than predicted, outside {runs}"
        if ratio < low:
            return f"faster than expected: {1 - ratio:.0%} shorter than predicted, outside {runs}"
        return f"normal: {abs(ratio - 1):.0%} {'longer' if ratio > 1 else 'shorter'} than predicted, within {runs}"


def diagnose(launch: LaunchFile, machine: Cluster, measured: str | None = None) -> Diagnosis:
    """Predict a launch on all devices of a machine. Raises InputError, naming the file, if that is impossible."""
    try:
        parallel, batch = launch.parallel(machine.devices), launch.samples(machine.devices)
        source, _ = source_of(launch.model, machine.built, batch, launch.options)
        step = project_source(source, batch, parallel, machine, launch.stack)
        graph = source.whole(parallel.micro_batch or 1)
    except (PlanError, GraphError) as error:
        raise InputError(f"{launch.path}: {error}") from error
    tokens = amounts(graph).get("tokens")
    tokens = None if tokens is None else tokens * batch // (batch_size(graph) or 1)
    per_device = launch.engine == "torchtitan"
    return Diagnosis(
        launch=launch, machine=machine, parallel=parallel, step=step, tokens=tokens,
        band=band(published_scores(), experts=experts_of(graph) > 1),
        measured_s=None if measured is None else seconds_of(measured, step, tokens, tps_of_device=per_device),
        changes=tuple(_changes(launch, source, machine, parallel, step)),
    )  # fmt: skip


def _changes(
    launch: LaunchFile, source: Source, machine: Cluster, parallel: Parallel, step: Projection
) -> Iterator[OtherSetting]:
    """Yield the changes of a single setting that fit and gain most."""
    most = step.seconds * (1 - LEAST_GAIN) if step.fits else float("inf")
    faster: list[OtherSetting] = []
    for other in dict.fromkeys(_neighbours(parallel)):
        words = _words(parallel, other)
        spelled = [(launch.spelled.get(word), {*map(str, pair)}) for word, pair in words.items()]
        if not words.keys() <= launch.names.keys() or any(of and not pair <= of.keys() for of, pair in spelled):
            continue
        try:
            projected = project_source(source, step.samples, other, machine, launch.stack)
        except (PlanError, GraphError):
            continue
        if projected.fits and projected.seconds < most:
            faster.append(OtherSetting(words, other, projected))
    yield from sorted(faster, key=lambda change: change.step.seconds)[:CHANGES]


def _words(before: Parallel, after: Parallel) -> dict[str, tuple[object, object]]:
    pairs = {field.name: (getattr(before, field.name), getattr(after, field.name)) for field in fields(Parallel)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1] and name != "dp"}


def _neighbours(at: Parallel) -> Iterator[Parallel]:
    """Yield the parallelisms over the same devices that differ in one setting. The model may not be divisible so."""
    micro_batch = at.micro_batch or 1
    single: list[dict[str, object]] = [{"micro_batch": count} for count in (2 * micro_batch, micro_batch // 2)]
    single += [{"recompute": kind} for kind in ("none", "selective", "full")]
    single += [{"zero": stage} for stage in range(4)]
    single += [{"sp": not at.sp}]
    single += [{"schedule": schedule} for schedule in ("1f1b", "interleaved:2", "interleaved:4")]
    for axis in ("tp", "pp", "cp"):
        degree = getattr(at, axis)
        if at.dp % 2 == 0:
            single.append({axis: 2 * degree, "dp": at.dp // 2})
        if degree % 2 == 0:
            single.append({axis: degree // 2, "dp": at.dp * 2})
    for other in single:
        with suppress(PlanError):
            yield with_effect({**asdict(at), **other})


HELP = """Say if a launch file fits on all devices of a machine, what pace to expect of it, and what would be faster.

LAUNCH_FILE is a Megatron-LM script or its printed arguments, a torchtitan TOML, a DeepSpeed JSON, or a YAML of NeMo,
Accelerate or Axolotl. Values it omits are assumed and listed. The exit status is 1 if it does not fit."""
MODEL_HELP = "Model in place of the file's: a zoo name or hf:ORG/NAME. Required for DeepSpeed and Accelerate files."
MEASURED_HELP = "What was measured: '1880 tok/s/GPU', '4.97 s', '296 TFLOP/s' (per GPU) or '41 % MFU'."
WIDTH = 100
EXAMPLES = (
    "diagnose train_llama.sh --topo hgx-h100 --measured '9800 tok/s/GPU'",
    "diagnose llama3_8b.toml --topo hgx-h100-nodes-8",
    "diagnose ds_config.json --model hf:Qwen/Qwen2.5-7B --topo dgx-a100",
)


@command_errors
@click.command("diagnose", cls=Command, examples=EXAMPLES, context_settings={"show_default": True}, help=HELP)
@click.argument("launch_file")
@click.option("--topo", required=True, shell_complete=MACHINES, help=TOPO_HELP)
@click.option("--measured", metavar="VALUE", help=MEASURED_HELP)
@click.option("--model", shell_complete=MODELS, help=MODEL_HELP)
@click.option("--stack", type=StackType(), metavar=StackType.name, help="Software stack instead of the file's.")
@click.option("--json", "json_path", type=WRITTEN, help="Write the diagnosis as JSON.")
def main(launch_file: str, **options: Any) -> None:
    """Run the command. `HELP` describes it."""
    begin({**options, "operator_files": ()}, ("json_path",), (launch_file,))
    launch, machine = read_launch(launch_file, options["model"]), cluster(options["topo"])
    require_alike(machine)
    launch = replace(launch, stack=options["stack"] or launch.stack)
    diagnosis = diagnose(launch, machine, options["measured"])
    if options["json_path"] is not None:
        write_json(options["json_path"], diagnosis_data(diagnosis))
    width = min(stdout().width, WIDTH)
    for name, text in facts(diagnosis):
        stdout().print("\n".join(fact(name, text, width)), markup=False, highlight=False, soft_wrap=True)
    if not diagnosis.step.fits:
        lacking = display.quantity(-diagnosis.step.margin_bytes, "B")
        raise JobError(f"{launch_file}: out of memory by {lacking} on {options['topo']}")


def facts(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """Yield the lines of a diagnosis, as pairs of a label and a text."""
    launch, step, machine, tokens = diagnosis.launch, diagnosis.step, diagnosis.machine, diagnosis.tokens
    device = machine.built.devices[0].spec.name
    yield "runs", f"{launch.model} by {launch.engine} on {machine.devices} x {device}, priced by stack {launch.stack}"
    options = [f"{name.replace('_', ' ')} {value}" for name, value in launch.options.items()]
    yield "", ", ".join((f"--parallel {diagnosis.parallel}", f"batch {step.samples}", *options))
    low, high = (display.seconds(float(f"{ratio * step.seconds:.3g}")) for ratio in diagnosis.band)
    expected = f"{display.seconds(step.seconds)} (range of {COVERAGE:.0%} of published runs: {low} to {high})"
    yield "expected", f"{expected}, {pace(diagnosis, step.seconds)}"
    if diagnosis.measured_s is not None:
        yield "measured", f"{display.seconds(diagnosis.measured_s)}, {pace(diagnosis, diagnosis.measured_s)}"
        yield "verdict", diagnosis.verdict
    needed, capacity = (display.quantity(nbytes, "B") for nbytes in (step.needed_bytes, step.capacity_bytes))
    spare = display.quantity(abs(step.margin_bytes), "B")
    yield "memory", f"{needed} of {capacity} on the fullest device: {spare} {'free' if step.fits else 'over'}"
    yield "time", ", ".join(_causes(diagnosis))
    if launch.devices not in {None, machine.devices}:
        yield "note", f"the file is for {launch.devices} devices; predicted for all {machine.devices} of {machine.name}"
    own = [f"sequence {tokens // step.samples}"] if tokens and "sequence" not in launch.options else []
    yield "assumed", ", ".join((*launch.assumed, *own, "the batch stays as it is where a setting changes"))
    if launch.not_priced:
        yield "unpriced", ", ".join(launch.not_priced)
    for number, change in enumerate(diagnosis.changes):
        yield "" if number else "try", _told(diagnosis, change)
    if not diagnosis.changes:
        none = "no single setting is predicted to be faster" if step.fits else "no single setting makes it fit"
        yield "try", f"{none}; decide searches all of them together"


def pace(diagnosis: Diagnosis, seconds: float) -> str:
    """Return the throughput of a step that takes `seconds`: samples or tokens, TFLOP/s per device, and MFU."""
    step = diagnosis.step
    done, what = (step.samples, "samples") if diagnosis.tokens is None else (diagnosis.tokens, "tokens")
    flop_per_s = step.flop_per_s_per_device * step.seconds / seconds
    return (
        f"{display.number(done / seconds / step.devices)} {what}/s/device, {flop_per_s / 1e12:.4g} TFLOP/s/device, "
        f"{flop_per_s / step.peak_flop_per_s:.1%} MFU ({step.dtype})"
    )


def _causes(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the causes of a step's time with their shares of the measured time, or else of the predicted time."""
    step = diagnosis.step
    whole = diagnosis.measured_s or step.seconds
    for cause, seconds in sorted(step.shares.items(), key=lambda item: -item[1]):
        if seconds >= TOLD_SHARE * whole:
            yield f"{cause} {seconds / whole:.0%}"
    if whole > step.seconds * (1 + TOLD_SHARE):
        yield f"unexplained (clocks, network, data loading, software) {1 - step.seconds / whole:.0%}"


def _told(diagnosis: Diagnosis, change: OtherSetting) -> str:
    """Return a changed setting, in the launch file's own names, with its predicted time and memory."""
    launch = diagnosis.launch

    def spelled(word: str, value: object) -> str:
        return launch.spelled.get(word, {}).get(str(value), str(value))

    changes = ((word, spelled(word, old), spelled(word, new)) for word, (old, new) in change.words.items())
    words = ", ".join(f"{launch.names[word]} {old} -> {new}" for word, old, new in changes)
    gain = 1 - change.step.seconds / diagnosis.step.seconds
    memory = display.quantity(change.step.needed_bytes, "B")
    return f"{words}: {display.seconds(change.step.seconds)} ({-gain:+.0%}), {memory}"


def diagnosis_data(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis as JSON-compatible data. Times are in seconds, sizes in bytes."""
    step = diagnosis.step
    return {
        "launch": diagnosis.launch, "machine": diagnosis.machine.name, "parallel": str(diagnosis.parallel),
        "seconds": step.seconds, "band": [ratio * step.seconds for ratio in diagnosis.band],
        "measured_s": diagnosis.measured_s, "verdict": diagnosis.verdict, "utilisation": step.utilisation,
        "tokens": diagnosis.tokens, "needed_bytes": step.needed_bytes, "capacity_bytes": step.capacity_bytes,
        "fits": step.fits, "shares": step.shares,
        "changes": [
            {"parallel": str(c.parallel), "seconds": c.step.seconds, "needed_bytes": c.step.needed_bytes}
            for c in diagnosis.changes
        ],
    }  # fmt: skip
