"""A set with its scores as plain data, which is what is printed, drawn and written as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import mean
from typing import Any

from results.scoreboard import calculon_rows, scores
from results.scoreboard.cells import SetError
from results.scoreboard.predictions import Prediction, all_seconds, predict
from results.scoreboard.row import Row
from results.scoreboard.scores import Timed
from results.scoreboard.sets import MeasuredSet, Refused

Data = dict[str, Any]

AXES = ("device", "devices", "axes", "tp", "pp", "dp", "micro_batch", "hidden", "model", "recompute")
"""What errors are summed up by."""

UNORDERED: Data = {"tau": None, "regret_mean": None, "regret_max": None, "same_batch": {}}
"""What is not said of rows that are predicted by constants of their own, whose order says nothing."""


def score(
    measured: MeasuredSet, progress: Callable[[int], None] = lambda _: None, known: Mapping[int, float] | None = None
) -> Data:
    """Predict a set and score it: all of it, and apart what something was fitted on and what not.

    `known` are Calculon's seconds by line, for where it is not there.
    """
    predictions = list(predict(measured, progress))
    expressed = [one for one in predictions if not one.why]
    parts = {name: [one for one in expressed if one.row.part == name] for name in ("test", "fit")}
    rivals = {one.row.line: _calculon(one, known or {}) for one in expressed if one.error is not None}
    timed = [(one, row) for one in expressed if (row := _timed(one)) is not None]
    nulls = {one.row.line: row.predicted_s for (one, _), row in zip(timed, _null_rows(timed)[2], strict=True)}
    return {
        "set": measured.name,
        "source": measured.source,
        "assumed": list(measured.assumed),
        "notes": list(measured.notes),
        "rows": len(measured.rows) + len(measured.refused),
        "expressed": len(expressed),
        "not_expressed": _reasons(measured.refused, predictions),
        "failed": sum(one.failed for one in predictions),
        "not_ended": [one.row.line for one in expressed if {one.ran, one.measured_s, one.measured_bytes} == {None}],
        "cpu_s": round(all_seconds(predictions), 3),
        "cpu_s_per_row": round(all_seconds(predictions) / max(1, len(predictions)), 4),
        "cpu_s_max": round(max((one.cpu_s for one in predictions), default=0.0), 3),
        "scores": {"all": _scores(expressed, rivals)}
        | {name: _scores(rows, rivals) for name, rows in parts.items() if rows},
        "by": {axis: table for axis in AXES if len(table := _by(axis, expressed)) > 1},
        "predictions": [_plain(one, nulls.get(one.row.line), rivals.get(one.row.line)) for one in predictions],
    }


def _calculon(prediction: Prediction, known: Mapping[int, float]) -> float | None:
    """Return Calculon's seconds, None where it cannot express the run, or is not there and they are not known."""
    if calculon_rows.version() is None or prediction.run is None:
        return known.get(prediction.row.line)
    try:
        return calculon_rows.seconds(prediction.run)
    except SetError:
        return None


def _reasons(refused: Sequence[Refused], predictions: Iterable[Prediction]) -> list[Data]:
    """Return why rows are not expressed, the commonest reason first, with their lines."""
    lines: dict[str, list[int]] = {}
    for one in refused:
        lines.setdefault(one.why.partition(": ")[2] or one.why, []).append(one.line)
    for prediction in predictions:
        if prediction.why:
            lines.setdefault(prediction.why, []).append(prediction.row.line)
    found = [{"why": why, "rows": len(where), "lines": where} for why, where in lines.items()]
    return sorted(found, key=lambda one: -len(one["lines"]))


def _scores(predictions: Sequence[Prediction], rivals: dict[int, float | None]) -> Data:
    timed = [(one, row) for one in predictions if (row := _timed(one)) is not None]
    rows = [row for _, row in timed]
    found: Data = {"time": scores.times(rows)}
    if timed:
        found["null"] = _null(timed)
        found["null_of_others"] = scores.times(_null_of_others(timed)) | UNORDERED
        if any(rivals[one.row.line] is not None for one, _ in timed):
            found["calculon"] = _of_calculon(timed, rivals)
    pairs = [(one.measured_bytes, one.predicted_bytes) for one in predictions]
    found["memory"] = scores.memory([(m, p) for m, p in pairs if m is not None and p is not None])
    said = [(one.ran, one.fits) for one in predictions]
    found["fits"] = scores.verdicts([(did, fits) for did, fits in said if did is not None and fits is not None])
    return found


def _timed(one: Prediction) -> Timed | None:
    if one.measured_s is None or one.predicted_s is None or one.run is None:
        return None
    return Timed(one.run.group, one.run.batch, one.measured_s, one.predicted_s)


def _null(timed: Sequence[tuple[Prediction, Timed]]) -> Data:
    """Score one constant, fitted on these: operations over a rate or a share of a peak, whichever is the nearest."""
    name, factor, rows = _null_rows(timed)
    return {"by": name, "constant": 1 / factor, **scores.times(rows)}


def _null_of_others(timed: Sequence[tuple[Prediction, Timed]]) -> list[Timed]:
    """Return each row as the constant predicts it that is fitted on all others, of what is nearest for all of them."""
    if len(timed) == 1:
        return []
    amounts, found = _amounts(timed), []
    name, _ = scores.best_null(amounts)
    for at, (_, row) in enumerate(timed):
        _, factor = scores.best_null({name: [*amounts[name][:at], *amounts[name][at + 1 :]]})
        found.append(replace(row, predicted_s=factor * amounts[name][at][1]))
    return found


def _amounts(timed: Sequence[tuple[Prediction, Timed]]) -> dict[str, list[tuple[float, float]]]:
    """Return of each row the measured seconds and what a constant may be of, by its name."""
    return {
        "rate": [(row.measured_s, one.flop / _devices(one)) for one, row in timed],
        "share of peak": [(row.measured_s, one.flop / one.peak_flop_per_s) for one, row in timed],
        "share of the precision's peak": [(row.measured_s, one.flop / one.own_peak_flop_per_s) for one, row in timed],
    }


def _null_rows(timed: Sequence[tuple[Prediction, Timed]]) -> tuple[str, float, list[Timed]]:
    """Return what the constant is of, seconds of one unit of it, and the rows as it predicts them."""
    if not timed:
        return "rate", 1.0, []
    amounts = _amounts(timed)
    name, factor = scores.best_null(amounts)
    pairs = zip(timed, amounts[name], strict=True)
    rows = [replace(row, predicted_s=factor * amount) for (_, row), (_, amount) in pairs]
    return name, factor, rows


def _devices(one: Prediction) -> int:
    return one.run.devices if one.run else 1


def _of_calculon(timed: Sequence[tuple[Prediction, Timed]], rivals: dict[int, float | None]) -> Data:
    """Score Calculon on the rows that it can express, and ourselves on the same."""
    both = [(row, seconds) for one, row in timed if (seconds := rivals[one.row.line]) is not None]
    rows = [Timed(row.group, row.samples, row.measured_s, seconds) for row, seconds in both]
    return {**scores.times(rows), "we_on_the_same": scores.times([row for row, _ in both])}


def _by(axis: str, predictions: Sequence[Prediction]) -> list[Data]:
    """Return the mean size and the mean of errors by the values of an axis."""
    groups: dict[Any, list[float]] = {}
    for one in predictions:
        value, error = _value(axis, one), one.error
        if value is not None and error is not None:
            groups.setdefault(value, []).append(error)
    return [
        {"value": value, "rows": len(errors), "error_mean": mean(map(abs, errors)), "bias_mean": mean(errors)}
        for value, errors in sorted(groups.items(), key=lambda item: (str(type(item[0])), item[0]))
    ]


def _value(axis: str, one: Prediction) -> Any:
    if one.run is None or one.way is None:
        return None
    if axis in {"tp", "pp", "dp", "micro_batch", "recompute"}:
        return getattr(one.way, axis)
    if axis == "axes":
        return "+".join(name for name in ("dp", "cp", "tp", "pp") if getattr(one.way, name) > 1) or "one device"
    if axis == "hidden":
        return one.run.size.hidden if one.run.size else None
    if axis == "device":
        return one.run.machine.built.devices[0].spec.name
    return one.run.devices if axis == "devices" else one.row.model or one.run.name


def _plain(one: Prediction, null_s: float | None, rival: float | None) -> Data:
    """Return a row for JSON."""
    said: Data = {"line": one.row.line, "label": label(one.row), "part": one.row.part, "cpu_s": round(one.cpu_s, 4)}
    if one.run is None:
        return said | {"why": one.why, "failed": one.failed}
    run = one.run
    return said | {
        "model": run.name,
        "options": {key: value for key, value in run.options if value is not None},
        "batch": run.batch,
        "devices": run.devices,
        "machine": run.machine_name,
        "stack": run.stack,
        "parallel": str(one.way) or "dp=1",
        "size": asdict(run.size) if run.size else None,
        "group": run.group,
        "measured_s": one.measured_s,
        "predicted_s": one.predicted_s,
        "error": one.error,
        "measured_bytes": one.measured_bytes,
        "predicted_bytes": one.predicted_bytes,
        "needed_bytes": one.needed_bytes,
        "ran": one.ran,
        "fits": one.fits,
        "flop": one.flop,
        "shares": one.shares,
        "null_s": null_s,
        "calculon_s": rival,
    }


def label(row: Row) -> str:
    """Return what a reader calls a row: its model, by name or sizes, and how it is parallel."""
    sizes = "x".join(str(value) for value in (row.layers, row.hidden) if value)
    return (row.model or sizes or f"row {row.line}").rpartition(".py:")[2]
