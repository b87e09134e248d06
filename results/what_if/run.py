"""What random pins cost, by a workbench that is warm and by new searches, and how long each takes.

    python -m results.what_if.run

writes data.json and the tables in README.md. Pins are drawn by chance: a weight, an activation or an operator, of one
layer or of all, and what it is to have, which the plan without pins has not. The workbench and the new search are
asked in turn, in one process.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import planner
from planner.errors import PlanError
from planner.graph.ir import Graph
from planner.layout import Signature, signatures
from results.experiment import Pages, machine, publish, table

HERE = Path(__file__).parent
MODELS = ("gpt2", "transformer-24-2048")
WORKERS = 8
PINS = 25
"""Pins for each model."""

SETTINGS: dict[str, dict[str, Any]] = {"all factorisations": {"workers": WORKERS}, "2 x 2 x 2": {"ways": (2, 2, 2)}}

Row = dict[str, Any]


def drawn_pin(graph: Graph, by_node: Mapping[str, Signature], chance: random.Random) -> str:
    """Return a pin of a tensor or a node, of one layer or of all."""
    tensors = [tensor for tensor in graph.tensors.values() if tensor.role in ("weight", "activation") and tensor.shape]
    if chance.random() < 0.8:
        tensor = chance.choice(tensors)
        name, option = tensor.name, chance.choice(["R", *(f"S{dim}" for dim in range(len(tensor.shape)))])
    else:
        node = chance.choice([node for node in graph.nodes if node.forward is None])
        name, option = node.name, chance.choice(list(by_node[node.name].description.strategies))
    return f"{re.sub('[0-9]+', '*', name) if chance.random() < 0.5 else name}={option}"


def timed(ask: Callable[[], Any]) -> tuple[Any, float]:
    """Return what is found, and its seconds of CPU."""
    started = time.process_time()
    answer = ask()
    return answer, round(time.process_time() - started, 3)


def measured(model: str, setting: str) -> Row:
    """Return a row: seconds of all answers, and how many cost what a new search costs."""
    graph, chance, options = planner.model(model), random.Random(0), SETTINGS[setting]
    by_node = signatures(graph)
    bench, first_s = timed(lambda: planner.Workbench(graph, **options))
    warm, new = list[float](), list[float]()
    equal = refused = 0
    while len(warm) < PINS:
        pin = drawn_pin(graph, by_node, chance)
        try:
            answer, answer_s = timed(partial(bench.why_not, pin))
        except PlanError:  # a placement that some of these tensors cannot have
            refused += 1
            continue
        if answer.is_kept:  # nothing is searched
            continue
        plan, plan_s = timed(partial(planner.plan, graph, **options, pins=[pin]))
        equal += answer.nbytes[1] == plan.total_bytes
        warm.append(answer_s)
        new.append(plan_s)
        print(model, setting, pin, answer.extra, answer_s, plan_s, flush=True)
    return {
        "model": model,
        "setting": setting,
        "first_s": first_s,
        "warm_s": warm,
        "new_s": new,
        "equal": equal,
        "refused": refused,
    }


def cells(row: Row) -> list[str]:
    """Render one row."""
    return [
        f"`{row['model']}`",
        row["setting"],
        f"{row['first_s']:.2f} s",
        f"{median(row['warm_s']):.2f} s",
        f"{max(row['warm_s']):.2f} s",
        f"{median(row['new_s']):.2f} s",
        f"{row['equal']} of {len(row['warm_s'])}",
    ]


COLUMNS = ["model", "ways", "first plan", "answer, median", "answer, most", "new search, median", "equal cost"]


def pages(data: Any) -> Pages:
    """Return the README's table."""
    return {"machine": f"Measured on: {data['machine']}.", "answers": table(COLUMNS, map(cells, data["rows"]))}


def main() -> None:
    """Measure and write; a RuntimeError where an answer is not what a new search finds."""
    rows = [measured(model, setting) for model in MODELS for setting in SETTINGS]
    publish(HERE, {"machine": machine(), "rows": rows}, pages)
    if wrong := [row for row in rows if row["equal"] != len(row["warm_s"])]:
        raise RuntimeError(f"answers that a new search does not find: {wrong}")


if __name__ == "__main__":
    main()
