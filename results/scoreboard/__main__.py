"""Score sets of measured runs: `python -m results.scoreboard SET... [--json [FILE]]`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from planner.failures import BAD_INPUT, describe_failure
from planner.files import write_json
from results.scoreboard.cells import SetError
from results.scoreboard.runs import run_of
from results.scoreboard.scored import score
from results.scoreboard.sets import MeasuredSet, find_sets, own_sets, read_set
from results.scoreboard.tables import summary

STDOUT = "-"
EVERY = 25


def main(arguments: Sequence[str] | None = None) -> int:
    """Score the sets that are named; return an exit status: 2 for one that cannot be read, or has no row expressed."""
    options = _parser().parse_args(arguments)
    if options.json and options.json != STDOUT and Path(options.json).suffix in {".csv", ".yaml", ".yml"}:
        options.sets.append(options.json)  # --json before the sets
        options.json = STDOUT
    try:
        sets = [read_set(path) for name in options.sets or own_sets() for path in find_sets(name)]
        if options.check:
            return _check(sets)
        data = {"sets": [_scored(measured) for measured in sets]}
        if options.json not in {None, STDOUT}:
            write_json(options.json, data)
    except Exception as error:
        message, status = describe_failure(error)
        print(f"error: {message}", file=sys.stderr)
        return status
    if options.json == STDOUT:
        print(json.dumps(data, indent=1, default=str))
    else:
        print("\n\n".join(map(summary, data["sets"])))
    empty = [scores["set"] for scores in data["sets"] if not scores["expressed"]]
    if empty:
        print(f"error: {', '.join(empty)}: expected rows that can be expressed, found none", file=sys.stderr)
    return BAD_INPUT if empty else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m results.scoreboard", description=__doc__)
    parser.add_argument(
        "sets", nargs="*", metavar="SET",
        help=f"a CSV or YAML, a folder of them, or one of {', '.join(own_sets())} (default: all of these)",
    )  # fmt: skip
    parser.add_argument(
        "--json", nargs="?", const=STDOUT, metavar="FILE", help="scores and every row as JSON, in FILE or on stdout"
    )
    parser.add_argument("--check", action="store_true", help="predict nothing; fail for each row that is not expressed")
    return parser


def _scored(measured: MeasuredSet) -> dict[str, Any]:
    def progress(number: int) -> None:
        if number % EVERY == 0 and sys.stderr.isatty():
            print(f"\r{measured.name}: row {number} of {len(measured.rows)} ", end="", file=sys.stderr, flush=True)

    scores = score(measured, progress)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    return scores


def _check(sets: Sequence[MeasuredSet]) -> int:
    """Print, in one line each, what cannot be read or expressed; return 2 where there is anything."""
    problems = [f"{measured.name}: {problem}" for measured in sets for problem in _problems(measured)]
    print("\n".join(problems or ["every row is read and expressed"]))
    return BAD_INPUT if problems else 0


def _problems(measured: MeasuredSet) -> Iterator[str]:
    yield from measured.notes
    yield from (refused.why for refused in measured.refused)
    for row in measured.rows:
        try:
            run_of(row, measured.folder)
        except SetError as error:
            yield f"row {row.line}: {error}"


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # who reads its output may have enough
    sys.exit(main())
