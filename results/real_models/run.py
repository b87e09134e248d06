"""Import and decide on published modules at their real size, on 8 H100s, each in a process of its own.

    python -m results.real_models.run [NAME...]

writes data.json and the table in README.md after every model; with names, only theirs are made anew. Needs
transformers, timm, torchvision, diffusers and torch_geometric.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

import tensor_partitioner
from planner.errors import GraphError, PlanError
from results.experiment import ROOT, Pages, in_process, machine, publish, read_data, table

HERE = Path(__file__).parent
MODELS: dict[str, dict[str, Any]] = msgspec.yaml.decode((HERE / "models.yaml").read_bytes())
TOPOLOGY, BUDGET_S, CPU_S, BYTES = "hgx-h100", 120, 30, 3e9
"""The machine, the search's seconds, which others share, and what import and decision together may take."""

SINGLE = "--one"
Row = dict[str, Any]


def __getattr__(name: str) -> Callable[[], tuple[Any, ...]]:
    """Return the function that makes a model, which `decide` finds by its name in this file."""
    if name not in MODELS:
        raise AttributeError(name)
    return partial(built, MODELS[name])


def built(model: dict[str, Any]) -> tuple[Any, ...]:
    """Return a module, what it is called with and, where it returns none, its loss."""
    package, _, name = model["module"].rpartition(".")
    classes = import_module(package)
    build, fields = getattr(classes, name), model["fields"]
    module = build(getattr(classes, model["config"])(**fields)) if "config" in model else build(**fields)
    inputs = {name: tensor(shape) for name, shape in model["inputs"].items()}
    return (module, inputs, distance, tensor(model["target"])) if "target" in model else (module, inputs)


def tensor(shape: Any) -> Any:
    """Return an example of a shape, of whole numbers or, where that ends in "float", of others."""
    torch = import_module("torch")
    if not isinstance(shape, list):
        return shape
    return torch.zeros(shape[:-1]) if shape[-1] == "float" else torch.ones(shape, dtype=torch.long)


def distance(result: Any, target: Any) -> Any:
    """Return the mean square of the difference from a target."""
    result = result[0] if isinstance(result, tuple) else getattr(result, "sample", result)
    return (result - target).square().mean()


def decided(name: str) -> Row:
    """Decide on a model in this process; return what that took and answered."""
    import_module("torch")  # which a function is known by that needs it
    model, row = MODELS[name], Row()
    batch = {"batch": model["batch"]} if "source" in model else {}
    source = model.get("source", f"{Path(__file__).relative_to(ROOT)}:{name}")
    try:
        decision = tensor_partitioner.decide(source, TOPOLOGY, budget=BUDGET_S, **batch)
    except (GraphError, PlanError) as error:
        row = {"refused": str(error)}
    else:
        search, families = decision.search, decision.of_families()
        row = {
            "parameters": decision.model.parameters,
            "best": decision.best.parallel or decision.best.family,
            "seconds": decision.best.seconds_per_step,
            "fits": decision.best.fits,
            "candidates": search.considered,
            "priced": search.projected,
            "proved": not search.unfinished,
            "families": [candidate.family for candidate in families],
        }
    used = resource.getrusage(resource.RUSAGE_SELF)
    taken = {"cpu_s": used.ru_utime + used.ru_stime, "bytes": used.ru_maxrss * 1024, "machine": machine()}
    return {"name": name, **row, **taken}


def passes(row: Row) -> bool:
    """True for a model that is decided, with standard ways beside the answer, within time and memory."""
    return bool(row.get("proved")) and row["cpu_s"] <= CPU_S and row["bytes"] <= BYTES


def pages(rows: list[Row]) -> Pages:
    """Return the sentence and the table of README.md."""
    refused, kinds = sum("refused" in row for row in rows), len({MODELS[row["name"]]["kind"] for row in rows})
    missing = [f"`{name}`" for name in MODELS if name not in {row["name"] for row in rows}]
    says = (
        f"{len(rows)} modules of {kinds} kinds: {len(rows) - refused} are decided, {sum(map(passes, rows))} of them "
        f"proved within {CPU_S} s of CPU and {BYTES / 1e9:g} GB; refused: {refused}."
    )
    says += f" {len(missing)} have no row yet: {', '.join(missing)}." if missing else ""
    machines = ", ".join(sorted({row["machine"] for row in rows}))
    return {"says": says, "machine": f"Measured on: {machines}.", "models": table(COLUMNS, map(_cells, rows))}


COLUMNS = ("model", "kind", "parameters", "CPU", "memory", "priced", "proved", "fastest", "families")


def _cells(row: Row) -> tuple[str, ...]:
    named = (f"`{row['name']}`", MODELS[row["name"]]["kind"])
    taken = (f"{row['cpu_s']:.0f} s", f"{row['bytes'] / 1e9:.1f} GB")
    if "refused" in row:
        return (*named, "", *taken, "", "", f"refused: {row['refused'][:160]}", "")
    priced = f"{row['priced']:,} of {row['candidates']:,}"
    proved = "yes" if row["proved"] else "no"
    return (
        *named,
        f"{row['parameters'] / 1e6:,.1f} M",
        *taken,
        priced,
        proved,
        row["best"],
        ", ".join(row["families"]),
    )


def main(names: list[str]) -> None:
    """Decide on models, each in a process of its own, by default on all."""
    for name in names or MODELS:
        rows = {row["name"]: row for row in read_data(HERE)} if (HERE / "data.json").exists() else {}
        rows[name] = in_process("results.real_models.run", SINGLE, name)
        publish(HERE, [rows[known] for known in MODELS if known in rows], pages)


if __name__ == "__main__":
    if sys.argv[1:2] == [SINGLE]:
        print(json.dumps(decided(sys.argv[2])))
    else:
        main(sys.argv[1:])
