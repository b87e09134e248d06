"""Pipelines that nobody searched, on real ranks: what moves, and what they learn, beside simulation and one worker.

    python -m results.pipelines.drawn [--plans 40] [--ranks 8] [--transports p2p,shared,torchrun]

draws plans by seeds: a model with extents that divide evenly by little, stages of runs of links between random cuts, a
schedule, any layout and strategy that the rules allow within a stage; or unlike shares, and tensors and nodes of any
group. Every plan trains for three steps in float64 on as many ranks, under each transport: `p2p` and `shared` of MPI's
ranks, and ranks of torchrun.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from planner.graph.chain import chain_of
from planner.graph.ir import Graph
from planner.layout import EVERYWHERE, PARTIAL, REPLICATE, TERMS, At, Shard, Ways, can_split, eligible, signatures
from planner.models import build
from planner.plans.check import check_plan
from planner.plans.plan import Plan
from planner.plans.records import SearchRecord, read_schedule
from planner.program.lower import lower
from planner.report.schema import Report, read_reports
from planner.search.stages.staged import staged
from results.experiment import ROOT, launcher, publish, read_data, run_command
from results.pipelines.run import HERE, pages
from simulator.simulation import simulated
from topologies import load_topology

SCHEDULES = ("gpipe", "1f1b", "interleaved:2", "zero-bubble", "accumulation")
MODELS: Mapping[str, Mapping[str, object]] = {
    "mlp-17-10": {"optimizer": "adam"},
    "cnn-3-6": {"image": 6, "classes": 9, "channels": 2, "batch_norm": True, "running_statistics": True},
    "rnn-3-9": {"unroll": 3, "input_width": 8, "classes": 11, "optimizer": "adam"},
    "transformer-4-12": {"heads": 3, "dropout": 0.2, "sequence": 5, "vocabulary": 19, "optimizer": "momentum"},
    "llama-4-24": {"heads": 4, "sequence": 6, "vocabulary": 21, "tied": True, "optimizer": "adamw"},
}
"""The transformers' tables of tokens are their output layers, too; all timesteps of an RNN use its weights."""

WITHIN: Mapping[int, Sequence[tuple[int, ...]]] = {1: [()], 2: [(2,)], 4: [(4,), (2, 2)]}
OF_GROUPS = 0.25
"""Which part of plans is no pipeline: shares differ, and at the first step tensors and nodes may be of one group."""

SAMPLES, STEPS = 9, 3
"""Samples of a micro-batch; training steps."""

TORCHRUN = "torchrun"
"""Ranks of torchrun, which exchange over gloo."""


def draw(ranks: int, rng: random.Random) -> Plan | None:
    """Return a plan; None where the model has fewer links than runs."""
    model, schedule = rng.choice([*MODELS]), rng.choice(SCHEDULES)
    stages = rng.choice([count for count in (2, 4, 8) if ranks % count == 0 and ranks // count in WITHIN])
    count = stages if schedule.startswith("interleaved") else rng.choice([2, 3, 5])
    graph = build(model, batch=SAMPLES * count, micro_batches=count, dtype="float64", **MODELS[model])
    record = SearchRecord(model=model, searcher="drawn")
    if rng.random() < OF_GROUPS:
        ways = Ways(
            (stages, *rng.choice(WITHIN[ranks // stages])), tuple(rng.choice((1, 1, 2, 3)) for _ in range(ranks))
        )
        plan = Drawing(graph, ways, rng, groups_at=0).plan()
        check_plan(plan)
        return replace(plan, search=record)
    ways = Ways(rng.choice(WITHIN[ranks // stages]))
    chain, runs = chain_of(graph), stages * read_schedule(schedule)[1]
    if chain.links < runs:
        return None
    cut = (0, *sorted(rng.sample(range(1, chain.links), runs - 1)), chain.links)
    plan = staged(Drawing(graph, ways, rng).plan(), chain, cut, schedule)
    check_plan(plan)
    return replace(plan, search=record)


class Drawing:
    """Draws where tensors lie, and how nodes are divided."""

    def __init__(self, graph: Graph, ways: Ways, rng: random.Random, groups_at: int | None = None) -> None:
        self._graph, self._ways, self._rng = graph, ways, rng
        self._groups = {} if groups_at is None else {groups_at: range(ways[groups_at])}
        self._signatures = signatures(graph)
        self._whole = {*graph.updates, *graph.updates.values(), *graph.metrics.values()}
        self._layouts: dict[str, tuple[Any, ...]] = {}

    def plan(self) -> Plan:
        """Draw a plan of one stage."""
        strategies = {}
        for tensor in self._graph.tensors.values():
            if tensor.init is not None:
                self._layouts[tensor.name] = self._layout(tensor.name, ())
        for node in self._graph.nodes:
            chosen = tuple(self._choice(node.name, node.inputs, step) for step in range(len(self._ways)))
            rules = self._signatures[node.name].description.strategies
            summed = [
                n for n, how in enumerate(chosen) if how == TERMS or (how in rules and rules[how].reducer == "Sum")
            ]
            strategies[node.name] = chosen
            self._layouts |= {out: self._layout(out, () if out in self._whole else summed) for out in node.outputs}
        self._layouts |= {new: self._layouts[old] for old, new in self._graph.updates.items()}
        return Plan(self._graph, 0, self._ways, self._layouts, strategies)

    def _layout(self, name: str, summed: Sequence[int]) -> tuple[Any, ...]:
        shape = self._graph.tensors[name].shape
        return tuple(
            self._rng.choice(
                [
                    *(Shard(dim) for dim, extent in enumerate(shape) if eligible(extent, self._ways, step)),
                    REPLICATE,
                    *[PARTIAL] * (2 * (step in summed)),
                    *map(At, self._groups.get(step, ())),
                ]
            )
            for step in range(len(self._ways))
        )

    def _choice(self, node: str, inputs: Sequence[str], step: int) -> str:
        signature = self._signatures[node]
        described = signature.description
        fits = [index for index in described.strategies if can_split(signature, index, self._ways, step)]
        options = [*fits, EVERYWHERE] if described.is_elementwise or described.is_opaque or not fits else fits
        terms = frozenset(n for n, name in enumerate(inputs) if self._layouts[name][step] == PARTIAL)
        groups = [f"@{group}" for group in self._groups.get(step, ())]
        return self._rng.choice([*options, *groups, *[TERMS] * (3 * bool(terms and described.linear(terms)))])


def drawn(ranks: int) -> Iterator[Plan]:
    """Yield plans, one a seed."""
    number = 0
    while True:
        if (plan := draw(ranks, random.Random(f"{ranks} ranks, plan {number}"))) is not None:
            yield plan
        number += 1


def row(plan: Plan, reports: Mapping[str, Report]) -> dict[str, Any]:
    """Compare a plan with its simulation, and with its runs by transport."""
    program = lower(plan)
    simulated_bytes = simulated(program, load_topology(f"uniform-{plan.workers}")).timeline.bytes
    arenas = tuple(worker.arena_bytes for worker in program.workers)
    checks = {transport: report.check for transport, report in reports.items()}
    return {
        "ranks": plan.workers,
        "model": plan.search.model,
        "ways": list(plan.ways),
        "shares": list(plan.ways.shares),
        "schedule": plan.schedule,
        "micro_batches": plan.graph.micro_batches,
        "bytes": plan.total_bytes,
        "simulated_equal": bool(np.array_equal(simulated_bytes, plan.bytes)),
        "run_equal": all(np.array_equal(np.array(report.bytes), plan.bytes) for report in reports.values()),
        "arenas_equal": all(report.arena_bytes == arenas for report in reports.values()),
        "tensors": {transport: check and check.tensors for transport, check in checks.items()},
        "differences": {transport: check and check.worst_difference for transport, check in checks.items()},
    }


def measured(plans: Sequence[Plan], transports: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """Train every plan under every transport, checked against one worker."""
    paths, by_transport = [folder / f"{number}.json" for number in range(len(plans))], {}
    for path, plan in zip(paths, plans, strict=True):
        plan.save(path)
    for transport in transports:
        _train(paths, plans[0].workers, transport, folder / transport)
        by_transport[transport] = read_reports(folder / transport)
    reports = [{name: of_all[number] for name, of_all in by_transport.items()} for number in range(len(plans))]
    return [row(*pair) for pair in zip(plans, reports, strict=True)]


def _train(paths: Sequence[Path], ranks: int, transport: str, written: Path) -> None:
    options = ("--steps", STEPS, "--check", "--backend", "numpy", "--json", written)
    if transport != TORCHRUN:
        before = (launcher(), "-n", ranks)
        run_command("execute", *paths, *options, "--transport", transport, before=before)
        return
    start = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks)
    line = map(str, (*start, "-m", "executor", *paths, *options))
    subprocess.run([*line], stdout=subprocess.DEVNULL, check=True, cwd=ROOT)


def also(known: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return rows that are known and new ones, those of a plan under several transports as one."""
    merged = {_identity(old): old for old in known}
    for new in rows:
        before = merged.get(_identity(new), new)
        both = {name: {**before[name], **new[name]} for name in ("tensors", "differences")}
        equal = {name: new[name] and before[name] for name in ("simulated_equal", "run_equal", "arenas_equal")}
        merged[_identity(new)] = {**new, **both, **equal}
    return [*merged.values()]


def _identity(entry: Mapping[str, Any]) -> str:
    return json.dumps(
        [entry[fact] for fact in ("ranks", "model", "ways", "shares", "schedule", "micro_batches", "bytes")]
    )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=40)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--transports", default="p2p,shared,torchrun")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        plans = [*islice(drawn(options.ranks), options.plans)]
        rows = measured(plans, options.transports.split(","), Path(name))
    data = read_data(HERE)
    publish(HERE, data | {"drawn": also(data.get("drawn", []), rows)}, pages)


if __name__ == "__main__":
    main()
