"""Predict runs of which nothing is measured yet, for later: `python -m results.scoreboard.sealed FOLDER SET...`.

A set is a CSV and a YAML as those that are scored, without measured columns. The predictions are written to
FOLDER/NAME.csv, a row each, with the range that 90% of published runs had.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from planner.failures import describe_failure
from results.scoreboard.cells import SetError
from results.scoreboard.predictions import Prediction, predict
from results.scoreboard.sets import find_sets, read_set
from tensor_partitioner.decision.record import band, published_scores

COLUMNS = ("row", "model", "devices", "parallel", "stack", "seconds", "low_s", "high_s", "memory_bytes", "fits", "why")


def main(arguments: Sequence[str]) -> int:
    """Write the predictions of every set; return an exit status."""
    try:
        folder, *names = arguments
        for path in (path for name in names for path in find_sets(name)):
            asked = read_set(path, is_measured=False)
            refused = [_without(row.line, row.why) for row in asked.refused]
            _write(Path(folder) / f"{path.stem}.csv", [*map(_cells, predict(asked)), *refused])
    except ValueError:
        print(f"error: {__doc__.splitlines()[0]}", file=sys.stderr)
        return 2
    except SetError as error:
        message, status = describe_failure(error)
        print(f"error: {message}", file=sys.stderr)
        return status
    return 0


def _write(path: Path, rows: Sequence[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    print(f"{path}: {len(rows)} rows")


def _cells(prediction: Prediction) -> list[object]:
    run, seconds = prediction.run, prediction.predicted_s
    if run is None or seconds is None:
        return _without(prediction.row.line, prediction.why)
    return [
        prediction.row.line, run.name, run.devices, prediction.way, run.stack, *map(_rounded, _range(prediction)),
        round(prediction.predicted_bytes or 0), "yes" if prediction.fits else "no", "",
    ]  # fmt: skip


def _without(line: int, why: str) -> list[object]:
    return [line, *[""] * (len(COLUMNS) - 2), why]


def _range(prediction: Prediction) -> Iterator[float]:
    """Yield the seconds that are predicted, and between which 90% of runs are expected."""
    assert prediction.run is not None
    assert prediction.predicted_s is not None
    experts = prediction.run.size is not None and prediction.run.size.experts > 1
    yield prediction.predicted_s
    for ratio in band(published_scores(), experts=experts):
        yield ratio * prediction.predicted_s


def _rounded(seconds: float) -> str:
    return f"{seconds:.5g}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
