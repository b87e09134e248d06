"""SoyBean's Theorems 1 to 3, Tofu's Lemma 2 and Theorems 3 to 5, tried on random cases; counter-examples."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from results import paper_operators
from results.experiment import Pages, publish, table
from results.theorems import models, statements

HERE = Path(__file__).parent


def verdicts_table(verdicts: list[dict[str, Any]]) -> str:
    """Render the verdicts for the README."""
    return table(
        ["source", "statement", "counted how, on what", "held", "worst"],
        [
            (
                f"{number}. {verdict['source']}",
                verdict["says"],
                verdict["account"],
                held(verdict),
                f"{verdict['worst_ratio']:.2f}x" if verdict["worst_ratio"] > 1 else "",
            )
            for number, verdict in enumerate(verdicts, start=1)
        ],
    )


def held(verdict: dict[str, Any]) -> str:
    """Say in how many of the cases a statement held."""
    if verdict["held"] == verdict["draws"]:
        return f"all {verdict['draws']}"
    return f"{verdict['held'] or 'none'} of {verdict['draws']}"


def of_models(rows: list[dict[str, Any]]) -> str:
    """Render the models' steps and levels, in GB."""

    def listed(values: list[int]) -> str:
        return " + ".join(f"{value / 1e9:.3g}" for value in values)

    return table(
        ["model", "placements", "steps", "levels", "moved", "Lemma 2's recursion believes", "it moves"],
        [
            (
                f"`{row['model']}`, batch {row['batch']}",
                row["placements"],
                listed(row["steps"]),
                listed(row["levels"]),
                f"{row['bytes'] / 1e9:.3f}",
                f"{listed(row['lemma_2']['believed_steps'])} = {row['lemma_2']['believed'] / 1e9:.3f}",
                f"{row['lemma_2']['bytes'] / 1e9:.3f} ({row['lemma_2']['bytes'] / row['bytes'] - 1:+.0%})",
            )
            for row in rows
        ],
    )


def pages(data: Any) -> Pages:
    """Return the README's tables."""
    verdicts, rows = data["statements"], data["models"]
    tables = {"statements": verdicts_table(verdicts), "models": of_models(rows)}
    tables["counter-examples"] = "\n".join(
        f"- {number}: {verdict['counter_example']}."
        for number, verdict in enumerate(verdicts, start=1)
        if verdict["counter_example"]
    )
    return tables


if __name__ == "__main__":
    paper_operators.register()
    verdicts = [asdict(statements.try_statement(statement)) for statement in statements.STATEMENTS]
    publish(HERE, {"statements": verdicts, "models": models.rows()}, pages)
