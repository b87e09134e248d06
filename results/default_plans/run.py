"""The plan that is found by default beside those of every alternative, under S and S,R.

    python -m results.default_plans.run [--missing] [MODEL...]

writes data.json and the tables in README.md after every model, batch and number of workers, each measured in a process
of its own (measure.py). With models named, only theirs are made anew; with `--missing`, only what is not there.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

from results.experiment import Pages, Within, in_process_within, machine, publish, read_data, table

HERE = Path(__file__).parent
MODELS = (
    "mlp-4-1024",
    "cnn-5-64",
    "alexnet",
    "vgg-16",
    "wresnet-50-2",
    "rnn-2-512",
    "transformer-12-768",
    "encoder-decoder-6-512",
    "classifier-85742",
)
BATCHES = (64, 256)
WORKERS = (2, 4, 8, 16)
CASES = tuple(product(MODELS, BATCHES, WORKERS))
SECONDS = 20.0
"""Of CPU: what one alternative may take, over all factorisations."""

WITHIN = Within(900.0)
"""What a process may take, which searches all alternatives of one case."""

Row = dict[str, Any]


def case(row: Row) -> tuple[str, int, int]:
    """Return what a row is about."""
    return row["model"], row["batch"], row["workers"]


def measured(model: str, batch: int, workers: int) -> Row:
    """Return a row: the default plan and the alternatives'. A RuntimeError where the process takes too much."""
    how = (model, str(batch), str(workers), str(SECONDS))
    outcome = in_process_within(WITHIN, "results.default_plans.measure", *how)
    if "over" in outcome:
        raise RuntimeError(f"{model}, batch {batch}, {workers} workers: over {outcome['over']}")
    print(*how, outcome["default"], flush=True)
    return {"model": model, "batch": batch, "workers": workers, **outcome}


def finished(row: Row) -> list[Row]:
    """Return the alternatives that found a plan."""
    return [alternative for alternative in row["alternatives"] if alternative["bytes"] is not None]


def least(row: Row) -> Row:
    """Return the alternative that moves the fewest bytes."""
    best: Row = min(finished(row), key=lambda alternative: int(alternative["bytes"]))
    return best


def cells(row: Row) -> list[str]:
    """Render one case."""
    default, other = row["default"], least(row)
    over = [
        f"{alternative['search']} ({alternative['placements']})"
        for alternative in row["alternatives"]
        if alternative["left"]
    ]
    return [
        f"`{row['model']}`",
        f"{row['batch']}",
        f"{row['workers']}",
        f"{default['bytes']:,}",
        default["winner"],
        f"{other['search']} ({other['placements']})",
        f"{other['bytes']:,}",
        f"{other['bytes'] / default['bytes']:.3f}" if default["bytes"] else "",
        ", ".join(over),
    ]


COLUMNS = [
    "model",
    "batch",
    "workers",
    "default, bytes",
    "found by",
    "least alternative",
    "its bytes",
    "ratio",
    "over time",
]


def beaten(rows: list[Row]) -> list[tuple[Row, Row]]:
    """Return the alternatives that move fewer bytes than the default plan of their case, with the case."""
    return [
        (row, alternative)
        for row in rows
        for alternative in finished(row)
        if alternative["bytes"] < row["default"]["bytes"]
    ]


def compared(rows: list[Row]) -> str:
    """Say how many plans there are, and how many move fewer bytes than the default."""
    plans = [alternative for row in rows for alternative in finished(row)]
    equal = sum(alternative["bytes"] == row["default"]["bytes"] for row in rows for alternative in finished(row))
    return (
        f"{len(plans)} comparisons in {len(rows)} of {len(CASES)} cases: the default plan moves more bytes in "
        f"{len(beaten(rows))}, as many in {equal} and fewer in {len(plans) - equal - len(beaten(rows))}"
    )


def says(rows: list[Row], seconds: float) -> str:
    """Say what the table shows, and what is missing in it."""
    late = [alternative for row in rows for alternative in row["alternatives"] if alternative["left"]]
    none = sum(alternative["bytes"] is None for alternative in late)
    return (
        f"{compared(rows)}. {len(late)} alternatives took over {seconds:g} s: {len(late) - none} of them count with "
        f"the factorisations that were searched until then, {none} found no plan and are compared with nothing."
    )


def pages(data: Any) -> Pages:
    """Return the README's table."""
    rows = data["rows"]
    at = f"Measured on: {data['machine']}. An alternative may take {data['limit_s']:g} s of CPU."
    return {"machine": at, "says": says(rows, data["limit_s"]), "plans": table(COLUMNS, map(cells, rows))}


def main(arguments: list[str]) -> None:
    """Measure, and write what is found after every case. A RuntimeError where an alternative is better."""
    models = [argument for argument in arguments if argument != "--missing"] or MODELS
    kept = {case(row): row for row in read_data(HERE)["rows"]} if arguments and (HERE / "data.json").exists() else {}
    for asked in CASES:
        if asked[0] not in models or ("--missing" in arguments and asked in kept):
            continue
        kept[asked] = measured(*asked)
        rows = [kept[known] for known in CASES if known in kept]
        publish(HERE, {"machine": machine(), "limit_s": SECONDS, "rows": rows}, pages)
    if worse := beaten(list(kept.values())):
        raise RuntimeError(f"alternatives beat the default plan: {worse}")


if __name__ == "__main__":
    main(sys.argv[1:])
