"""Every set of the project, predicted and scored: `python -m results scoreboard`."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from pathlib import Path
from typing import Any

from planner.files import write_json
from results.experiment import Pages, publish, read_data, table
from results.scoreboard import picture, tables
from results.scoreboard.anchored import anchored
from results.scoreboard.scored import score
from results.scoreboard.scores import percentile, spread_within
from results.scoreboard.sets import find_sets, own_sets, read_set
from tensor_partitioner.decision.measured import prior
from tensor_partitioner.decision.record import PATH, PublishedScore

HERE = Path(__file__).parent
DIGITS = 5
STEPS = 20
"""Between the percentiles of a set's ratios that are published."""
KEPT = (
    "line", "label", "part", "batch", "devices", "parallel", "machine", "measured_s", "predicted_s", "null_s",
    "calculon_s", "error", "measured_bytes", "predicted_bytes", "why",
)  # fmt: skip
AXES = ("device", "axes", "tp", "pp", "micro_batch", "hidden", "devices")


def kept(data: dict[str, Any]) -> dict[str, Any]:
    """Return what the pages are made of: figures rounded, groups by number, causes of the worst rows alone."""
    groups: dict[str, int] = {}
    worst = {prediction["line"] for prediction in tables.worst(data)}
    rows = []
    for prediction in data["predictions"]:
        row = {key: prediction[key] for key in KEPT if prediction.get(key) is not None}
        if "group" in prediction:
            row["group"] = groups.setdefault(prediction["group"], len(groups))
        if prediction["line"] in worst:
            row["shares"] = prediction["shares"]
        rows.append(row)
    sizes = [prediction["size"] for prediction in data["predictions"] if prediction.get("size")]
    experts = bool(sizes) and all(size["experts"] > 1 for size in sizes)
    rounded: dict[str, Any] = _rounded(data | {"predictions": rows, "experts": experts})
    return rounded


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def overview(data: dict[str, Any]) -> str:
    """Return a line for each set: what was not fitted on, beside the null model and Calculon."""
    rows = []
    for scored in data["sets"]:
        part = _unfitted(scored)
        scores = scored["scores"][part]
        time = scores["time"]
        cells = tables.times({**time, **time.get("same_batch", {})})
        nulls = [tables.percent(scores.get(name, {}).get("error_mean")) for name in ("null", "null_of_others")]
        rival = scores.get("calculon")
        calculon = f"{tables.percent(rival['error_mean'])} of {rival['rows']}" if rival else ""
        memory = tables.percent(scored["scores"]["all"]["memory"].get("error_mean"))
        expressed = f"{scored['expressed']} of {scored['rows']}"
        null = scores.get("null", {}).get("error_mean")
        beaten = "" if null is None or not time["rows"] else "yes" if time["error_mean"] < null else "**no**"
        one_run = tables.percent(scored["anchored"]["error_mean"])
        mean, *others = cells[1:6]
        rows.append(
            [
                f"[{scored['set']}](#{scored['set']})",
                expressed,
                part,
                mean,
                one_run,
                *others,
                *nulls,
                beaten,
                calculon,
                memory,
            ]
        )
    rivals = ("null, fitted", "null of others", "fitted null beaten", "Calculon mean")
    mean, *others = tables.COLUMNS[1:6]
    columns = ("set", "expressed", "part", mean, "with one run", *others, *rivals, "memory")
    return table(columns, rows)


def published(data: dict[str, Any]) -> tuple[PublishedScore, ...]:
    """Return what a decision's page says of every set with times, of the part that was not fitted on."""
    entries = []
    for scored in data["sets"]:
        scores = scored["scores"].get("test", {}).get("time", {})
        if scores.get("rows"):
            tested = [row for row in scored["predictions"] if row["part"] == "test"]
            held = [row["measured_bytes"] / row["predicted_bytes"] for row in tested if row.get("measured_bytes")]
            rows = [row for row in tested if "error" in row]
            ratios = [row["measured_s"] / row["predicted_s"] for row in rows]
            entries.append(
                PublishedScore(
                    source=scored["source"],
                    assumed=tuple(scored["assumed"]),
                    runs=scores["rows"],
                    mean=scores["error_mean"],
                    p90=scores["error_p90"],
                    bias=scores["bias_mean"],
                    experts=scored["experts"],
                    ratios=_percentiles(ratios),
                    memory=_percentiles(held) if held else (),
                    within=_rounded(
                        spread_within((row["group"], log(of)) for row, of in zip(rows, ratios, strict=True))
                    ),
                )
            )
    return tuple(entries)


def _percentiles(ratios: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(percentile(ratios, share / STEPS), 4) for share in range(STEPS + 1))


def _unfitted(scored: dict[str, Any]) -> str:
    return next(name for name in ("test", "fit", "all") if name in scored["scores"])


def block(data: dict[str, Any]) -> str:
    """Return all that is said of one set."""
    parts = [f"Source: {data['source']}."]
    if data["assumed"]:
        parts.append("Assumed:\n\n" + "\n".join(f"- {assumption}" for assumption in data["assumed"]))
    if data["not_expressed"]:
        reasons = [f"- {reason['rows']} rows: {tables.short(reason['why'])}" for reason in data["not_expressed"]]
        parts.append("Not expressed:\n\n" + "\n".join(reasons))
    if data["scores"]["all"]["time"]["rows"]:
        parts += [tables.scores_table(data), "Furthest off:", tables.worst_table(data)]
    parts += ["\n".join(f"- {line}" for line in tables.further_lines(data))]
    axes = [axis for axis in AXES if axis in data["by"]]
    if axes:
        parts += ["Error by what rows have in common:", tables.by_axes(data, axes)]
    return "\n\n".join(part for part in parts if part)


def pages(data: dict[str, Any]) -> Pages:
    """Return the README's tables, and a picture a set."""
    rendered: Pages = {"overview": overview(data)}
    for scored in data["sets"]:
        rendered[scored["set"]] = block(scored)
        rendered[f"{scored['set']}.svg"] = picture.draw(scored)
    return rendered


def calculons(data: dict[str, Any], name: str) -> dict[int, float]:
    """Return Calculon's seconds of a set as they are in the data, by line."""
    rows = (row for scored in data["sets"] if scored["set"] == name for row in scored["predictions"])
    return {row["line"]: row["calculon_s"] for row in rows if "calculon_s" in row}


def main() -> None:
    """Predict and score every set; where Calculon is not there, its seconds are those of the last time."""
    sets = [read_set(path) for name in own_sets() for path in find_sets(name)]
    before = read_data(HERE)
    data = {"sets": [kept(score(measured, known=calculons(before, measured.name))) for measured in sets]}
    for measured, scored in zip(sets, data["sets"], strict=True):
        others = published({"sets": [other for other in data["sets"] if other is not scored]})
        variances = prior(others, experts=scored["experts"])
        scored["anchored"] = _rounded(anchored(measured, _unfitted(scored), variances))
    publish(HERE, data, pages)
    write_json(PATH, published(data))


if __name__ == "__main__":
    main()
