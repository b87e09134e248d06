"""Scores as tables: for a terminal, and in Markdown for the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from results.experiment import table

Data = Mapping[str, Any]
MOST_REASONS = 5
WORST = 5
COLUMNS = ("rows", "mean", "90th", "bias", "tau", "regret", "worst regret")
SECONDS = ("measured s", "predicted s", "error")


def percent(value: float | None, sign: str = "") -> str:
    """Write a share as a percentage; empty for None."""
    return "" if value is None else f"{value:{sign}.1%}"


def times(scores: Data) -> list[str]:
    """Return the cells of scores of times, in the order of `COLUMNS`."""
    if not scores["rows"]:
        return ["0", *[""] * (len(COLUMNS) - 1)]
    tau = "" if scores["tau"] is None else f"{scores['tau']:.2f}"
    return [
        str(scores["rows"]), percent(scores["error_mean"]), percent(scores["error_p90"]),
        percent(scores["bias_mean"], "+"), tau, percent(scores["regret_mean"]), percent(scores["regret_max"]),
    ]  # fmt: skip


def predictors(data: Data) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the parts of a set and who predicts them: part, predictor, cells."""
    for part, scores in data["scores"].items():
        if part == "all" and len(data["scores"]) == 2:
            continue
        if not scores["time"]["rows"]:
            continue
        yield part, "predicted", times(scores["time"])
        yield part, f"null: constant {scores['null']['by']}, fitted on these rows", times(scores["null"])
        yield part, "null: of the other rows", times(scores["null_of_others"])
        if rival := scores.get("calculon"):
            yield part, "Calculon", times(rival)
            if rival["rows"] != scores["time"]["rows"]:
                yield part, "predicted, where Calculon can", times(rival["we_on_the_same"])


def summary(data: Data) -> str:
    """Return a set's scores for a terminal."""
    lines = [
        f"{data['set']}: {data['expressed']} of {data['rows']} rows expressed, {data['cpu_s_per_row']:.2f} CPU s each",
        *(f"  note: {note}" for note in data["notes"]),
    ]
    if data["failed"]:
        lines.append(f"  the predictor failed on {data['failed']} rows")
    lines += [
        f"  not expressed: {reason['rows']} rows ({_some(reason['lines'])}): {reason['why']}"
        for reason in data["not_expressed"][:MOST_REASONS]
    ]
    if more := data["not_expressed"][MOST_REASONS:]:
        lines.append(
            f"  not expressed: {sum(reason['rows'] for reason in more)} rows for {len(more)} other reasons (--check)"
        )
    if failed := data["not_ended"]:
        lines.append(f"  not scored: {len(failed)} rows ({_some(failed)}) are of runs that did not end")
    rows = [[part, who, *cells] for part, who, cells in predictors(data)]
    if rows:
        lines += _aligned([["part", "seconds of a step", *COLUMNS], *rows])
        off = [
            [f"row {row['line']}", f"{row['label']} {row['parallel']}", str(row["devices"]), *_seconds(row)]
            for row in worst(data)
        ]
        lines += _aligned([["furthest off", "", "devices", *SECONDS], *off])
    lines += [f"  {line}" for line in further_lines(data)]
    return "\n".join(lines)


def further_lines(data: Data) -> Iterator[str]:
    """Yield what there is to say about the order of runs of equal batches, and about memory."""
    scores = data["scores"]["all"]
    alike = scores["time"].get("same_batch", {})
    if alike.get("groups") and alike["tau"] is not None:
        yield (
            f"order within equal batches, {alike['groups']} groups: tau {alike['tau']:.2f}, regret "
            f"{percent(alike['regret_mean'])}, worst {percent(alike['regret_max'])}"
        )
    if (memory := scores["memory"])["rows"]:
        yield (
            f"memory: {memory['rows']} rows, error {percent(memory['error_mean'])} in the mean, 90th percentile "
            f"{percent(memory['error_p90'])}, bias {percent(memory['bias_mean'], '+')}"
        )
    if (fits := scores["fits"])["rows"]:
        ran, out = fits["of_those_that_ran"], fits["of_those_out_of_memory"]
        text = f"fits or not: right for {ran[0]} of {ran[1]} that ran"
        yield text + (f", {out[0]} of {out[1]} out of memory" if out[1] else "")


def _some(lines: Sequence[int]) -> str:
    return ", ".join(map(str, lines[:4])) + (" ..." if len(lines) > 4 else "")


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(w) if at < 2 else cell.rjust(w) for at, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  " + "  ".join(cells).rstrip()


def scores_table(data: Data) -> str:
    """Return a set's scores in Markdown."""
    return table(
        ["part", "seconds of a step", *COLUMNS], [[part, who, *cells] for part, who, cells in predictors(data)]
    )


def worst(data: Data) -> list[Data]:
    """Return the rows whose seconds are furthest off, of rows alike in all but the batch the first."""
    rows = sorted(
        (row for row in data["predictions"] if row.get("error") is not None), key=lambda row: -abs(row["error"])
    )
    distinct: dict[tuple[str, str], Data] = {}
    for row in rows:
        distinct.setdefault((row["label"], row["parallel"]), row)
    return list(distinct.values())[:WORST]


def worst_table(data: Data) -> str:
    """Return the rows that are furthest off, and where their time is said to go."""
    return table(
        ["row", "devices", "batch", "parallel", *SECONDS, "largest shares"],
        [
            [row["label"], row["devices"], row["batch"], f"`{row['parallel']}`", *_seconds(row), largest_shares(row)]
            for row in worst(data)
        ],
    )


def _seconds(row: Data) -> list[str]:
    """Return a row's cells in the order of `SECONDS`."""
    return [f"{row['measured_s']:.3g}", f"{row['predicted_s']:.3g}", percent(row["error"], "+")]


def largest_shares(row: Data, most: int = 3) -> str:
    """Return the causes that take most of a predicted step."""
    shares = sorted(row["shares"].items(), key=lambda item: -item[1])[:most]
    return ", ".join(f"{what} {seconds / row['predicted_s']:.0%}" for what, seconds in shares)


def by_axes(data: Data, axes: Sequence[str]) -> str:
    """Return errors by the values of several axes."""
    return table(
        ["", "rows", "mean error", "bias"],
        [
            [f"{axis} {group['value']}", group["rows"], percent(group["error_mean"]), percent(group["bias_mean"], "+")]
            for axis in axes
            for group in data["by"][axis]
        ],
    )


def short(why: str) -> str:
    """Return a reason without the list of what would do."""
    return why.partition(": expected one of ")[0]
