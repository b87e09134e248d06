"""The page of the runs that are kept: what ran, what is right, how fast, and how near what was predicted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from results.experiment import Pages, table
from results.gpu.__main__ import DEFAULT_S, STAGES
from results.gpu.processes import OVER_TIME
from results.gpu.rate_tables import rates
from results.gpu.settings import FULL, TRIAL, Model

MILLISECONDS, MEGABYTE = 1e3, 1e6
SIDES = {
    "eager": "PyTorch, eager",
    "compiled": "PyTorch, compiled",
    "torch": "ours, PyTorch's kernels",
    "graph": "ours, PyTorch's kernels, a graph",
    "arrays": "ours, array kernels",
}
"""How the page calls those who train."""

Row = Mapping[str, Any]
Data = Mapping[str, Any]
"""A run's files, by the names of its stages, and `summary`."""


def read_run(folder: Path) -> Data:
    """Read a run's files."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def pages(here: Path, names: Sequence[str]) -> Pages:
    """Return the README's blocks, made from the runs of these names."""
    runs = {name: read_run(here / name) for name in names}
    return {
        "stages": stages(),
        "models": models(),
        "state": state(runs),
        "runs": "\n\n".join(map(section, runs.values())),
    }


def stages() -> str:
    """Render the limits."""
    rows = [[f"`{stage.name}`", f"{stage.most_s:g}"] for stage in STAGES]
    return table(["stage", "seconds, at most"], [*rows, ["all", f"{DEFAULT_S:g}"]])


def models() -> str:
    """Render what is trained on a GPU, and in a trial."""
    rows = [[name, _model(FULL.models[name]), _model(TRIAL.models[name])] for name in FULL.models]
    return table(["model", "on a GPU", "in a trial"], rows)


def _model(model: Model) -> str:
    options = ", ".join(f"{name} {value}" for name, value in model.options.items())
    return f"`{model.name}`, {options}"


def state(runs: Mapping[str, Data]) -> str:
    """Say which devices have run it."""
    devices = [str(run["probe"]["device"]) for run in runs.values() if run["summary"]["backend"] != "numpy"]
    if devices:
        return f"It has run on: {', '.join(devices)}."
    return "**No device has run it yet.** Below is a trial on a host's processor, in small: its seconds say nothing."


def section(run: Data) -> str:
    """Render a run: its title, and every part whose stage wrote something."""
    probe, summary = run["probe"], run["summary"]
    kind = "a trial on a processor" if summary["backend"] == "numpy" else "a GPU"
    parts = [part(run[name]) for name, part in PARTS if name in run]
    return "\n\n".join([f"## {probe.get('device', 'no device')}, {summary['date'][:10]}: {kind}", *filter(None, parts)])


def ended(summary: Row) -> str:
    """Render how the stages ended."""
    rows = [[f"`{row['name']}`", _status(row["status"]), f"{row['seconds']:.0f}"] for row in summary["stages"]]
    return table(["stage", "ended", "seconds"], rows)


STATUSES = {None: "not begun", 0: "as it should", 1: "with something wrong", OVER_TIME: "at its limit"}
"""How a stage ended, by the exit status of its process."""


def _status(status: int | None) -> str:
    return STATUSES.get(status, f"status {status}")


def notes(data: Row) -> str:
    """List what is to be known of a run that no stage measures, such as what was corrected since."""
    return "\n".join(["**To be known of this run:**\n", *(f"- {note}" for note in data["notes"])])


def machine(probe: Row) -> str:
    """Say what the machine is, and render what the executor relies on."""
    if "error" in probe:
        return f"The backend cannot be used: {probe['error']}."
    versions = ", ".join(f"{name} {version}" for name, version in probe["versions"].items())
    driver = [f"driver {probe['smi'].get('driver_version')}"] if probe["smi"] else []
    memory = f"{probe['memory_bytes'] / 1e9:.0f} GB"
    about = f"{'; '.join([str(probe['device']), memory, *driver, str(probe['host']), versions])}."
    rows = [[name, "works" if check["works"] else "fails", check["says"]] for name, check in probe["checks"].items()]
    return f"{about}\n\n{table(['what the executor relies on', '', 'it says'], rows)}" if rows else about


def operators(data: Row) -> str:
    """Render the largest errors of operators, and what is wrong."""
    rows = []
    for kind, title in (("small", "small cases"), ("real", "real sizes")):
        for (library, precision), errors in _errors(data["errors"][kind]).items():
            wrong = sum(error is None or error > data["tolerance"][precision] for error in errors)
            largest = max((error for error in errors if error is not None), default=0.0)
            limit = f"{data['tolerance'][precision]:.0e}"
            rows.append([title, library, precision, len(errors), f"{largest:.1e}", limit, wrong])
    columns = ["operators", "kernels", "precision", "compared", "largest error", "allowed", "wrong"]
    wrong = sorted({f"`{row['operator']}` ({row['library']}, {row['precision']})" for row in data["wrong"]})
    return "\n\n".join(
        [table(columns, rows), *([f"Wrong: {', '.join(wrong)}."] if wrong else []), *_failures(data["failed"])]
    )


def _errors(of_operators: Row) -> Mapping[tuple[str, str], list[float | None]]:
    """Return the errors of all operators by library and precision."""
    errors: dict[tuple[str, str], list[float | None]] = {}
    for libraries in of_operators.values():
        for library, precisions in libraries.items():
            for precision, error in precisions.items():
                errors.setdefault((library, precision), []).append(error)
    return errors


def _failures(failed: Row) -> list[str]:
    """Say what failed, grouped by how."""
    names: dict[str, list[str]] = {}
    for name, reason in failed.items():
        names.setdefault("ended at a limit" if reason.startswith("ended after") else reason, []).append(name)
    said = [f"{reason}: {', '.join(group)}" for reason, group in names.items()]
    return [f"Failed: {'; '.join(said)}."] if said else []


def plans(data: Row) -> str:
    """Render how many random plans are equal to one worker's training."""
    groups: dict[tuple[int, str, str], list[Row]] = {}
    for row in data["rows"]:
        groups.setdefault((row["workers"], row["transport"], row["kernels"]), []).append(row)
    rows = []
    for (workers, transport, kernels), group in groups.items():
        counts = [sum(bool(row.get(what)) for row in group) for what in ("ran", "equal", "bytes_equal", "arena_equal")]
        gap = max((row["loss_gap"] for row in group if row.get("loss_gap") is not None), default=None)
        figures = [f"{counts[0]} of {len(group)}", *counts[1:], "" if gap is None else f"{gap:.1e}"]
        rows.append([workers, f"`{transport}`", kernels, *figures])
    columns = ["ranks", "transport", "kernels", "plans that ran", "equal to one worker", "bytes as planned"]
    return "\n\n".join(
        [table([*columns, "arenas as planned", "largest gap of losses"], rows), *_failures(data["failed"])]
    )


def tests(data: Row) -> str:
    """Say how the tests marked `gpu` ended."""
    counts = Counter[str](data["counts"])
    said = f"Tests marked `gpu`: {counts['passed']} passed, {counts['failure'] + counts['error']} failed"
    wrong = f": {', '.join(data['wrong'])}" if data["wrong"] else ""
    return f"{said}{wrong}; {counts['skipped']} were skipped{' as there is no GPU' if not counts['passed'] else ''}."


def steps(data: Row) -> str:
    """Render the steps of every model, and the seconds of its classes of kernels, predicted and measured."""
    by_model: dict[str, dict[str, Row]] = {}
    for row in data["rows"]:
        by_model.setdefault(row["model"], {})[row["side"]] = row
    columns = ["model", "trained by", "step (ms)", "of eager's", "predicted (ms)", "launches", "memory (MB)"]
    rows = [line for sides in by_model.values() for line in _step_lines(sides)]
    classes = [line for sides in by_model.values() for line in _class_lines(sides)]
    losses = [f"{row['model']}, {SIDES[row['side']]}: {_equal(row)}" for row in data["losses"]]
    return "\n\n".join(
        [
            table([*columns, "predicted (MB)", "arena (MB)", "planned (MB)"], rows),
            f"Losses of the first steps, relative to the first side's: {'; '.join(losses)}.",
            table(["model", "class", "predicted (ms)", *(SIDES[side] for side in ("torch", "arrays"))], classes),
        ]
    )


def _equal(row: Row) -> str:
    gaps = row["first"], row["later"]
    gap = "no number" if None in gaps else f"{max(gaps):.0e}"
    return f"{'equal' if row['equal'] else 'NOT equal'} ({gap})"


def _step_lines(sides: Mapping[str, Row]) -> Iterator[list[str]]:
    """Yield a line for every side of a model, in the order of `SIDES`."""
    eager = sides.get("eager", {}).get("seconds")
    for side, row in ((side, sides[side]) for side in SIDES if side in sides):
        seconds, predicted, memory = row.get("seconds"), row.get("predicted", {}), row.get("memory", {})
        kernels = row.get("launches", {}).get("kernels")
        yield [
            row["model"],
            SIDES[side],
            "failed" if seconds is None else _ms(seconds),
            f"{seconds / eager:.2f}" if seconds and eager else "",
            _ms(predicted.get("seconds")),
            "" if kernels is None else f"{kernels:,}",
            _mb(memory.get("card", memory.get("process"))),
            _mb(predicted.get("memory_bytes")),
            _mb(row.get("arena_bytes")),
            _mb(predicted.get("arena_bytes")),
        ]


def _class_lines(sides: Mapping[str, Row]) -> Iterator[list[str]]:
    """Yield a line for every class of kernels of a model."""
    ours = [sides.get(side, {}) for side in ("torch", "arrays")]
    predicted: Row = next((row["predicted"]["classes"] for row in ours if "predicted" in row), {})
    for name in predicted:
        measured = [row.get("parts", {}).get("classes", {}).get(name) for row in ours]
        model = next(str(row["model"]) for row in sides.values())
        yield [model, name, _ms(predicted[name]), *map(_ms, measured)]


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{MILLISECONDS * seconds:.3g}"


def _mb(nbytes: int | None) -> str:
    return "" if nbytes is None else f"{nbytes / MEGABYTE:,.0f}"


def calibrations(data: Row) -> str:
    """Render what is predicted after a calibration."""
    failed = {backend: result["failure"] for backend, result in data.items() if result["failure"]}
    rows = [
        [model, backend, _ms(predicted["seconds"])]
        for backend, result in data.items()
        for model, predicted in result.get("models", {}).items()
    ]
    columns = ["model", "calibrated with", "predicted step (ms)"]
    return "\n\n".join([*([table(columns, rows)] if rows else []), *_failures(failed)])


PARTS: Sequence[tuple[str, Callable[[Row], str]]] = (
    ("notes", notes),
    ("probe", machine),
    ("summary", ended),
    ("operators", operators),
    ("plans", plans),
    ("marked_tests", tests),
    ("steps", steps),
    ("calibrate", calibrations),
    ("rates", rates),
)
"""What a section has, by the stage that measured it."""
