"""Files with something changed at random, of every format that is read: refused in one line, or understood."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from results.experiment import Pages, machine, publish, table
from results.mutants.formats import mutant, shares
from results.mutants.watch import DETECTORS, MEMORY_BYTES, SECONDS, Fault, controls, watched

HERE = Path(__file__).parent
COUNT, SEED = 100_000, 7


def measured_data(count: int, seed: int) -> dict[str, Any]:
    """Read `count` mutants; return how many there were of each format, and every fault."""
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    for name, mutants in shares(count).items():
        faults = faults_of(name, mutants, seed)
        rows.append(
            {
                "format": name,
                "mutants": mutants,
                "faults": [[fault.number, fault.detector, fault.what] for fault in faults],
            }
        )
    return {
        "machine": machine(),
        "seed": seed,
        "seconds": round(time.perf_counter() - began),
        "controls": controls(),
        "rows": rows,
    }


def faults_of(name: str, count: int, seed: int) -> list[Fault]:
    """Return the failures of the first mutants of a format."""
    return watched(range(count), partial(mutant, name, seed))


def says(data: Any) -> str:
    """Return how many mutants were read, and how many failed by detector."""
    rows = data["rows"]
    counted = Counter(fault[1] for row in rows for fault in row["faults"])
    counts = ", ".join(f"{counted[detector]} {detector}" for detector in DETECTORS)
    sure = sum(data["controls"].values())
    return (
        f"{sum(row['mutants'] for row in rows):,} mutants of {len(rows)} formats, seed {data['seed']}: {counts}. "
        f"{sure} of {len(data['controls'])} controls were found. Limits per input: {SECONDS} s of CPU time, "
        f"{MEMORY_BYTES >> 30} GiB. {data['seconds']} s in total. {data['machine']}."
    )


def formats_table(data: Any) -> str:
    """Return the table of formats."""
    rows = [
        (
            row["format"],
            row["mutants"],
            *(sum(fault[1] == detector for fault in row["faults"]) for detector in DETECTORS),
        )
        for row in data["rows"]
    ]
    return table(("format", "mutants", *DETECTORS), rows)


def pages(data: Any) -> Pages:
    """Return what the README says is found."""
    return {"found": says(data), "formats": formats_table(data)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Read mutants; with a count or a seed print what is wrong, else publish."""
    parser = argparse.ArgumentParser(prog="python -m results.mutants", description=__doc__)
    parser.add_argument("--count", type=int, help=f"how many mutants (default: {COUNT})")
    parser.add_argument("--seed", type=int, help=f"what they follow from (default: {SEED})")
    options = parser.parse_args(arguments)
    data = measured_data(
        COUNT if options.count is None else options.count, SEED if options.seed is None else options.seed
    )
    if options.count is None and options.seed is None:
        publish(HERE, data, pages)
    print(says(data))
    for row in data["rows"]:
        for number, detector, what in row["faults"]:
            print(f"{row['format']} {number}: {detector}: {what}")
    return 0 if all(data["controls"].values()) and not any(row["faults"] for row in data["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
