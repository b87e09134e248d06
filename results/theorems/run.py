"""SoyBean's Theorems 1 to 3, Tofu's Lemma 2 and Theorems 3 to 5, tried on random cases; counter-examples.

    python results/theorems/run.py

writes data.json, statements.svg, levels.svg and the tables in README.md, all beside this file.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import drawings
import models
import statements

HERE = Path(__file__).parent


def table(verdicts: list[dict[str, Any]]) -> str:
    """Render the verdicts for the README."""
    lines = ["| source | statement | counted how, on what | held | worst |", "|---|---|---|---|---|"]
    for number, one in enumerate(verdicts, start=1):
        held = "always" if one["held"] == one["draws"] else "never" if not one["held"] else f"{one['held']}"
        worst = f"{one['worst_ratio']:.2f}x" if one["worst_ratio"] > 1 else ""
        lines.append(
            f"| {number}. {one['source']} | {one['says']} | {one['account']} | {held} of {one['draws']} | {worst} |"
        )
    return "\n".join(lines).replace("always of", "all").replace("never of", "none of")


def counter_examples(verdicts: list[dict[str, Any]]) -> str:
    """Render the smallest counter-examples."""
    return "\n".join(
        f"- {number}: {one['counter_example']}."
        for number, one in enumerate(verdicts, start=1)
        if one["counter_example"]
    )


def of_models(rows: list[dict[str, Any]]) -> str:
    """Render the models' steps and levels, in GB."""

    def listed(values: list[int]) -> str:
        return " + ".join(f"{value / 1e9:.3g}" for value in values)

    lines = [
        "| model | placements | steps | levels | moved | Lemma 2's recursion believes | it moves |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{one['model']}`, batch {one['batch']} | {one['placements']} | {listed(one['steps'])} "
        f"| {listed(one['levels'])} | {one['bytes'] / 1e9:.3f} | {listed(one['lemma_2']['believed_steps'])} = "
        f"{one['lemma_2']['believed'] / 1e9:.3f} | {one['lemma_2']['bytes'] / 1e9:.3f} "
        f"({one['lemma_2']['bytes'] / one['bytes'] - 1:+.0%}) |"
        for one in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Try every statement, plan the models, write the files."""
    verdicts = [statements.record(statements.try_statement(one)) for one in statements.STATEMENTS]
    rows = models.rows()
    (HERE / "data.json").write_text(json.dumps({"statements": verdicts, "models": rows}, indent=1) + "\n")
    (HERE / "statements.svg").write_text(drawings.statements(verdicts))
    (HERE / "levels.svg").write_text(drawings.levels(rows))
    readme = HERE / "README.md"
    written = readme.read_text()
    parts = {"statements": table(verdicts), "counter-examples": counter_examples(verdicts), "models": of_models(rows)}
    for name, content in parts.items():
        marks = rf"(<!-- {name}: written by run.py -->\n).*?(<!-- end of {name} -->)"
        written = re.sub(marks, lambda found, content=content: f"{found[1]}{content}\n{found[2]}", written, flags=re.S)
    readme.write_text(written)
    print(table(verdicts), of_models(rows), sep="\n\n")


if __name__ == "__main__":
    main()
