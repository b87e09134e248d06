"""Modules of PyTorch imported, planned for 8 workers and simulated on two machines."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from results.experiment import ROOT, Pages, Within, in_process_within, machine, publish, table
from results.pytorch_models import population
from tensor_partitioner.display import quantity, seconds

HERE = Path(__file__).parent
EXAMPLES = ROOT / "examples"
TRANSFORMERS = EXAMPLES / "transformers_models.py"
WITHIN = Within(900)

COLUMNS = (
    "model",
    "parameters",
    "batch",
    "nodes",
    "import, s",
    "plan, s",
    "moved",
    "data parallel",
    "p2.8xlarge: step",
    "data parallel",
    "hgx-h100: step",
    "data parallel",
)


LOOPS = ("transformers", "lightning")
"""Libraries whose trainers have examples."""


def examples() -> Iterator[str]:
    """Yield every example in its full size, but those of other libraries' loops, which tests train."""
    for path in sorted(EXAMPLES.glob("*.py")):
        body = ast.parse(path.read_text()).body
        if any(isinstance(part, ast.ImportFrom) and part.module in LOOPS for part in body):
            continue
        functions = (part.name for part in body if isinstance(part, ast.FunctionDef))
        yield from (f"examples/{path.name}:{name}" for name in functions if name.startswith("make"))


def architectures() -> Iterator[str]:
    """Yield every architecture of `transformers`, small."""
    (table_of,) = (
        statement.value for statement in ast.parse(TRANSFORMERS.read_text()).body
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == "ARCHITECTURES"
    )  # fmt: skip
    if not isinstance(table_of, ast.Dict):
        raise TypeError(f"{TRANSFORMERS}: expected a literal dict of architectures, found another")
    yield from (f"examples/{TRANSFORMERS.name}:{ast.literal_eval(key)}" for key in table_of.keys if key is not None)


def cells(row: dict[str, Any]) -> list[str]:
    """Render a model that was planned."""
    steps = [row[kind][name] for name in row["step_s"] for kind in ("step_s", "data_parallel_step_s")]
    return [
        name_of(row),
        quantity(row["parameters"], ""),
        f"{row['batch']}",
        f"{row['nodes']:,}",
        f"{row['import_s']:.1f}",
        f"{row['plan_s']:.1f}",
        *(quantity(row[kind], "B") for kind in ("bytes", "data_parallel_bytes")),
        *map(seconds, steps),
    ]


def name_of(row: dict[str, Any]) -> str:
    """Return what a row is about."""
    file, name = row["model"].removeprefix("examples/").split(":")
    return f"`{name}`" if file == TRANSFORMERS.name else f"`{file}:{name}`"


def says(rows: list[dict[str, Any]], what: str) -> str:
    """Say how many were planned, and what was not and why."""
    planned = [row for row in rows if "bytes" in row]
    lines = [f"{len(planned)} of {len(rows)} {what} are imported and planned."]
    lines += [f"Refused: {name_of(row)}: {row['refused']}." for row in rows if "refused" in row]
    lines += [f"Not done within {row['over']}: {name_of(row)}." for row in rows if "over" in row]
    less = [1 - row["bytes"] / row["data_parallel_bytes"] for row in planned if row["data_parallel_bytes"]]
    if less:
        lines.append(f"Their plans move {min(less):.0%} to {max(less):.0%} fewer bytes than data parallelism does.")
    return " ".join(lines)


def pages(data: Any) -> Pages:
    """Return the README's tables."""
    blocks = {}
    for kind, what in (("examples", "examples"), ("transformers", "architectures")):
        rows = data[kind]
        blocks[kind] = table(COLUMNS, (cells(row) for row in rows if "bytes" in row))
        blocks[f"{kind}-said"] = says(rows, what)
    return {"machine": f"Seconds of {data['machine']}.", **blocks, **population.pages()}


def measured(source: str) -> dict[str, Any]:
    """Measure a module in a process of its own."""
    outcome: dict[str, Any] = in_process_within(WITHIN, "results.pytorch_models.measure", source)
    return {"model": source} | outcome


if __name__ == "__main__":
    data = {"examples": [*map(measured, examples())], "transformers": [*map(measured, architectures())]}
    publish(HERE, {"machine": machine(), **data}, pages)
