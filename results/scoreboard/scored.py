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
    expressed = [prediction for prediction in predictions if not prediction.why]
    parts = {name: [prediction for prediction in expressed if prediction.row.part == name] for name in ("test", "fit")}
    rivals = {
        prediction.row.line: _calculon(prediction, known or {})
        for prediction in expressed
        if prediction.error is not None
    }
    timed = [(prediction, row) for prediction in expressed if (row := _timed(prediction)) is not None]
    nulls = {
        prediction.row.line: row.predicted_s for (prediction, _), row in zip(timed, _null_rows(timed)[2], strict=True)
    }
    return {
        "set": measured.name,
        "source": measured.source,
        "assumed": list(measured.assumed),
        "notes": list(measured.notes),
        "rows": len(measured.rows) + len(measured.refused),
        "expressed": len(expressed),
        "not_expressed": _reasons(measured.refused, predictions),
        "failed": sum(prediction.failed for prediction in predictions),
        "not_ended": [
            prediction.row.line
            for prediction in expressed
            if {prediction.ran, prediction.measured_s, prediction.measured_bytes} == {None}
        ],
        "cpu_s": round(all_seconds(predictions), 3),
        "cpu_s_per_row": round(all_seconds(predictions) / max(1, len(predictions)), 4),
        "cpu_s_max": round(max((prediction.cpu_s for prediction in predictions), default=0.0), 3),
        "scores": {"all": _scores(expressed, rivals)}
        | {name: _scores(rows, rivals) for name, rows in parts.items() if rows},
        "by": {axis: table for axis in AXES if len(table := _by(axis, expressed)) > 1},
        "predictions": [
            _plain(prediction, nulls.get(prediction.row.line), rivals.get(prediction.row.line))
            for prediction in predictions
        ],
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
    for refusal in refused:
        lines.setdefault(refusal.why.partition(": ")[2] or refusal.why, []).append(refusal.line)
    for prediction in predictions:
        if prediction.why:
            lines.setdefault(prediction.why, []).append(prediction.row.line)
    reasons = [{"why": why, "rows": len(where), "lines": where} for why, where in lines.items()]
    return sorted(reasons, key=lambda reason: -len(reason["lines"]))


def _scores(predictions: Sequence[Prediction], rivals: dict[int, float | None]) -> Data:
    timed = [(prediction, row) for prediction in predictions if (row := _timed(prediction)) is not None]
    rows = [row for _, row in timed]
    scored: Data = {"time": scores.times(rows)}
    if timed:
        scored["null"] = _null(timed)
        scored["null_of_others"] = scores.times(_null_of_others(timed)) | UNORDERED
        if any(rivals[prediction.row.line] is not None for prediction, _ in timed):
            scored["calculon"] = _of_calculon(timed, rivals)
    pairs = [(prediction.measured_bytes, prediction.predicted_bytes) for prediction in predictions]
    scored["memory"] = scores.memory([(m, p) for m, p in pairs if m is not None and p is not None])
    said = [(prediction.ran, prediction.fits) for prediction in predictions]
    scored["fits"] = scores.verdicts([(did, fits) for did, fits in said if did is not None and fits is not None])
    return scored


def _timed(prediction: Prediction) -> Timed | None:
    if prediction.measured_s is None or prediction.predicted_s is None or prediction.run is None:
        return None
    return Timed(prediction.run.group, prediction.run.batch, prediction.measured_s, prediction.predicted_s)


def _null(timed: Sequence[tuple[Prediction, Timed]]) -> Data:
    """Score one constant, fitted on these: operations over a rate or a share of a peak, whichever is the nearest."""
    name, factor, rows = _null_rows(timed)
    return {"by": name, "constant": 1 / factor, **scores.times(rows)}


def _null_of_others(timed: Sequence[tuple[Prediction, Timed]]) -> list[Timed]:
    """Return each row as the constant predicts it that is fitted on all others, of what is nearest for all of them."""
    if len(timed) == 1:
        return []
    amounts, nulls = _amounts(timed), []
    name, _ = scores.best_null(amounts)
    for at, (_, row) in enumerate(timed):
        _, factor = scores.best_null({name: [*amounts[name][:at], *amounts[name][at + 1 :]]})
        nulls.append(replace(row, predicted_s=factor * amounts[name][at][1]))
    return nulls


def _amounts(timed: Sequence[tuple[Prediction, Timed]]) -> dict[str, list[tuple[float, float]]]:
    """Return of each row the measured seconds and what a constant may be of, by its name."""
    return {
        "rate": [(row.measured_s, prediction.flop / _devices(prediction)) for prediction, row in timed],
        "share of peak": [(row.measured_s, prediction.flop / prediction.peak_flop_per_s) for prediction, row in timed],
        "share of the precision's peak": [
            (row.measured_s, prediction.flop / prediction.own_peak_flop_per_s) for prediction, row in timed
        ],
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


def _devices(prediction: Prediction) -> int:
    return prediction.run.devices if prediction.run else 1


def _of_calculon(timed: Sequence[tuple[Prediction, Timed]], rivals: dict[int, float | None]) -> Data:
    """Score Calculon on the rows that it can express, and ourselves on the same."""
    both = [(row, seconds) for prediction, row in timed if (seconds := rivals[prediction.row.line]) is not None]
    rows = [Timed(row.group, row.samples, row.measured_s, seconds) for row, seconds in both]
    return {**scores.times(rows), "we_on_the_same": scores.times([row for row, _ in both])}


def _by(axis: str, predictions: Sequence[Prediction]) -> list[Data]:
    """Return the mean size and the mean of errors by the values of an axis."""
    groups: dict[Any, list[float]] = {}
    for prediction in predictions:
        value, error = _value(axis, prediction), prediction.error
        if value is not None and error is not None:
            groups.setdefault(value, []).append(error)
    return [
        {"value": value, "rows": len(errors), "error_mean": mean(map(abs, errors)), "bias_mean": mean(errors)}
        for value, errors in sorted(groups.items(), key=lambda item: (str(type(item[0])), item[0]))
    ]


def _value(axis: str, prediction: Prediction) -> Any:
    if prediction.run is None or prediction.way is None:
        return None
    if axis in {"tp", "pp", "dp", "micro_batch", "recompute"}:
        return getattr(prediction.way, axis)
    if axis == "axes":
        return "+".join(name for name in ("dp", "cp", "tp", "pp") if getattr(prediction.way, name) > 1) or "one device"
    if axis == "hidden":
        return prediction.run.size.hidden if prediction.run.size else None
    if axis == "device":
        return prediction.run.machine.built.devices[0].spec.name
    return prediction.run.devices if axis == "devices" else prediction.row.model or prediction.run.name


def _plain(prediction: Prediction, null_s: float | None, rival: float | None) -> Data:
    """Return a row for JSON."""
    said: Data = {
        "line": prediction.row.line,
        "label": label(prediction.row),
        "part": prediction.row.part,
        "cpu_s": round(prediction.cpu_s, 4),
    }
    if prediction.run is None:
        return said | {"why": prediction.why, "failed": prediction.failed}
    run = prediction.run
    return said | {
        "model": run.name,
        "options": {key: value for key, value in run.options if value is not None},
        "batch": run.batch,
        "devices": run.devices,
        "machine": run.machine_name,
        "stack": run.stack,
        "parallel": str(prediction.way) or "dp=1",
        "size": asdict(run.size) if run.size else None,
        "group": run.group,
        "measured_s": prediction.measured_s,
        "predicted_s": prediction.predicted_s,
        "error": prediction.error,
        "measured_bytes": prediction.measured_bytes,
        "predicted_bytes": prediction.predicted_bytes,
        "needed_bytes": prediction.needed_bytes,
        "ran": prediction.ran,
        "fits": prediction.fits,
        "flop": prediction.flop,
        "shares": prediction.shares,
        "null_s": null_s,
        "calculon_s": rival,
    }


def label(row: Row) -> str:
    """Return what a reader calls a row: its model, by name or sizes, and how it is parallel."""
    sizes = "x".join(str(value) for value in (row.layers, row.hidden) if value)
    return (row.model or sizes or f"row {row.line}").rpartition(".py:")[2]
