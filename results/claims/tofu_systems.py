"""Claims of Tofu about throughput, memory, the machine and the plan of WResNet-152-10."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import planner
from planner.explanations.accounts import stored
from planner.models.classifiers import UNITS
from results.claims.claim import FAILS, GB, HOLDS, OTHER, PART, Answer, claim, data, span, within
from results.searchers import ALL
from topologies import load_topology

FOLDERS = ("wresnet_throughput", "rnn_throughput")
ALTERNATIVES = ("small-batch", "swapping", "op-placement")
SIGNIFICANT = 1.1
"""A ratio that one may call significant."""

NOT_OF_CNNS = "op-placement"
"""What the paper leaves out for wide ResNets."""


def _rates(folder: str) -> dict[str, dict[str, float]]:
    """Return samples per second by model and system; nothing for a system that has no room."""
    rates: dict[str, dict[str, float]] = {}
    for row in data(folder)["rows"]:
        if row.get("samples_per_s") and (folder, row["system"]) != (FOLDERS[0], NOT_OF_CNNS):
            rates.setdefault(row["model"], {})[row["system"]] = row["samples_per_s"]
    return rates


def _models() -> dict[str, dict[str, float]]:
    return {model: rates for folder in FOLDERS for model, rates in _rates(folder).items()}


@claim("tofu", 2, "Tofu enables training very large CNNs and RNNs on 8 GPUs")
def _trains() -> Answer:
    rows = [row for folder in FOLDERS for row in data(folder)["rows"] if row["system"] == "tofu"]
    fits = sum(bool(row.get("samples_per_s")) for row in rows)
    return Answer(f"{fits} of {len(rows)} models of Figures 8 and 9 fit", HOLDS if fits == len(rows) else FAILS, "")


@claim("tofu", (3, 25), "throughput is 25% to 400% higher than that of alternatives")
def _faster() -> Answer:
    gains = [
        rates["tofu"] / rates[other] - 1
        for rates in _models().values()
        if "tofu" in rates
        for other in ALTERNATIVES
        if other in rates
    ]
    verdict = HOLDS if within(gains, 0.25, 4.0) else PART if max(gains) > 0.25 else FAILS
    above = sum(gain > 0 for gain in gains)
    return Answer(
        f"{span(gains, '.0%')}; higher than {above} of {len(gains)} alternatives",
        verdict,
        "small-batch counts no communication; simulated on the published figures of the machine",
    )


@claim("tofu", 172, "within 60% to 98% of ideal")
def _of_ideal() -> Answer:
    shares = [rates["tofu"] / rates["ideal"] for rates in _models().values() if {"tofu", "ideal"} <= rates.keys()]
    return Answer(span(shares, ".0%"), HOLDS if within(shares, 0.6, 0.98) else OTHER, "simulated")


@claim("tofu", 172, "but for a few exceptions, better than small batches, swapping and op-placement")
def _outperforms() -> Answer:
    cases = [rates for rates in _models().values() if "tofu" in rates]
    best = sum(all(rates["tofu"] >= rates[other] for other in ALTERNATIVES if other in rates) for rates in cases)
    why = "simulated"
    return Answer(f"best of {best} of {len(cases)} models", HOLDS if best > 0.75 * len(cases) else FAILS, why)


def _quality() -> dict[str, dict[str, dict[str, Any]]]:
    plans: dict[str, dict[str, dict[str, Any]]] = {}
    for row in data("search_quality")["rows"]:
        plans.setdefault(row["model"], {})[row["search"]] = row
    return plans


@claim("tofu", 172, "the recursion's plans train faster than those of other algorithms")
def _better_plans() -> Answer:
    ratios = {
        (model, name): row["seconds"] / searches["recursive"]["seconds"]
        for model, searches in _quality().items()
        for name, row in searches.items()
        if name not in ("recursive", "joint")
    }
    as_fast = {f"{name} on {model}": ratio for (model, name), ratio in ratios.items() if ratio < 1.01}
    named = f"; within 1% or faster: {', '.join(as_fast)}" if as_fast else ""
    worst = FAILS if min(ratios.values()) < 0.99 else PART
    return Answer(
        f"{span(ratios.values())} times as long{named}",
        worst if as_fast else HOLDS,
        "simulated, of cuts by two, under S",
    )


@claim("tofu", 20, "the strategy that icml18 misses significantly reduces memory")
def _icml18() -> Answer:
    ratios = {
        model: searches["icml18"]["arena_bytes"] / searches["recursive"]["arena_bytes"]
        for model, searches in _quality().items()
    }
    text = ", ".join(f"{model} {ratio:.2f}" for model, ratio in ratios.items())
    verdict = HOLDS if min(ratios.values()) > SIGNIFICANT else PART if max(ratios.values()) > SIGNIFICANT else FAILS
    return Answer(f"without it {text} times the memory", verdict, "buffers of fetches are used again in an arena")


@claim("tofu", 101, "less communication tends to give less time")
def _time_follows_bytes() -> Answer:
    pairs = [pair for searches in _quality().values() for pair in combinations(searches.values(), 2)]
    alike = sum((a["bytes"] - b["bytes"]) * (a["seconds"] - b["seconds"]) >= 0 for a, b in pairs)
    return Answer(
        f"{alike} of {len(pairs)} pairs of plans rank alike",
        HOLDS if alike > 0.75 * len(pairs) else FAILS,
        "Figure 10's",
    )


@claim("tofu", (104, 105), "memory for buffers is proportional to communication, so less of it takes less memory")
def _memory_follows_bytes() -> Answer:
    pairs = [pair for searches in _quality().values() for pair in combinations(searches.values(), 2)]
    alike = sum((a["bytes"] - b["bytes"]) * (a["arena_bytes"] - b["arena_bytes"]) >= 0 for a, b in pairs)
    return Answer(
        f"{alike} of {len(pairs)} pairs of plans rank alike",
        HOLDS if alike == len(pairs) else PART if alike > 0.75 * len(pairs) else FAILS,
        "buffers are used again, so what counts is the largest that live at once, not their sum",
    )


@claim("tofu", 36, "the bandwidth required far exceeds a network's 25 Gbit/s")
def _bandwidth() -> Answer:
    need = {
        model: 8 * searches["recursive"]["bytes"] / searches["recursive"]["seconds_without_communication"] / GB
        for model, searches in _quality().items()
    }
    text = ", ".join(f"{model} {value:.0f} Gbit/s" for model, value in need.items())
    return Answer(
        text, HOLDS if min(need.values()) > 25 else FAILS, "bytes of the plan over seconds without communication"
    )


def _memory() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = data("tofu_memory")["rows"]
    return rows


def _taken(row: dict[str, Any], reuse: str, fetching: str) -> float:
    rule = next(rule for rule in row["rules"] if (rule["reuse"], rule["fetching"]) == (reuse, fetching))
    return float(rule["caching"])


@claim("tofu", (31, 163), "each of k devices takes about a k-th of the memory of one")
def _kth() -> Answer:
    ratios = [8 * row["arena"] / row["alone"] for row in _memory()]
    return Answer(
        f"{span(ratios)} times an eighth", HOLDS if within(ratios, 0.9, 1.1) else OTHER, "static arenas, under S"
    )


@claim("tofu", 164, "without control dependencies memory far exceeds that")
def _exceeds() -> Answer:
    ratios = [8 * _taken(row, "data", "split") / row["alone"] for row in _memory()]
    return Answer(
        f"{span(ratios)} times an eighth",
        HOLDS if min(ratios) > 1.5 else PART if max(ratios) > 1.5 else FAILS,
        "least for the transformer",
    )


@claim("tofu", 162, "two optimizations are crucial to memory")
def _crucial() -> Answer:
    saved = [1 - _taken(row, "operators", "fused") / _taken(row, "data", "split") for row in _memory()]
    return Answer(
        f"both save {span(saved, '.0%')}",
        HOLDS if min(saved) > 0.3 else PART if max(saved) > 0.3 else FAILS,
        "of a caching allocator's memory",
    )


def _variant(row: dict[str, Any], name: str) -> dict[str, Any]:
    variant: dict[str, Any] = next(variant for variant in row["variants"] if variant["variant"] == name)
    return variant


@claim("tofu", (168, 169), "spreading out reductions avoids a bottleneck")
def _spread() -> Answer:
    times = [
        _variant(row, "reductions by one worker")["seconds"] / _variant(row, "as it is")["seconds"] for row in _memory()
    ]
    return Answer(
        f"an iteration takes {span(times)} times as long without", HOLDS if min(times) > 1 else OTHER, "simulated"
    )


@claim("tofu", (170, 171), "fetches that run early occupy memory for longer")
def _early() -> Answer:
    early = [
        max(_variant(row, "fetches as early as can be")["arenas"]) / max(_variant(row, "as it is")["arenas"])
        for row in _memory()
    ]
    return Answer(
        f"{span(early)} times the memory of delayed ones", HOLDS if min(early) > 1 else OTHER, "static arenas"
    )


@claim("tofu", 103, "what is stored is the same for every plan, a k-th on each device")
def _stored() -> Answer:
    graph = planner.model("mlp-4-256", batch=64)
    shares = {}
    for placements in ("S", "S,R"):
        held = [
            sum(
                group.most_held_bytes
                for group in stored(planner.plan(graph, ways=(2, 2, 2), placements=placements, searcher=name))
            )
            for name in ("recursive", "joint", "data-parallel" if "R" in placements else ALL["equalchop"].name)
        ]
        shares[placements] = [8 * nbytes / sum(tensor.nbytes for tensor in graph.tensors.values()) for nbytes in held]
    holds = within(shares["S"], 0.99, 1.01)
    return Answer(
        f"{span(shares['S'])} times a k-th under S, {span(shares['S,R'])} with replication",
        HOLDS if holds else FAILS,
        "Tofu's plans replicate nothing",
    )


@claim("tofu", (177, 178, 180), "8 K80 with 12 GB each, 21 GB/s between peers, 10 GB/s to the CPU")
def _machine() -> Answer:
    machine = load_topology("p2.8xlarge")
    memory = machine.memories[machine.devices[0].memory].nbytes
    links = [machine.resources[number] for number, _ in machine.route(0, 1).uses]
    one_way = min(link.capacity for link in links if link.kind == "link")
    return Answer(
        f"{len(machine.devices)} halves of K80 boards; a driver reports {memory / GB:.2f} GB; {one_way / GB:.1f} GB/s "
        "in each direction assumed",
        OTHER,
        "SoyBean writes 20 GB/s of the same machine, in both directions together",
    )


@claim("tofu", 206, "ResNet-152 has 4 groups of blocks of 3 convolutions, 3, 8, 36 and 3 of them")
def _blocks() -> Answer:
    graph = planner.model("wresnet-152-1", batch=8)
    names = {node.name.rsplit(".", 1)[0] for node in graph.nodes if node.op == "convolution" and ".unit" in node.name}
    counts = tuple(sum(name.startswith(f"stage{stage}.") for name in names) for stage in range(1, 5))
    return Answer(str(counts), HOLDS if counts == UNITS[152] == (3, 8, 36, 3) else FAILS, "counted in the graph")


@claim("tofu", 207, "lower blocks have larger feature maps and smaller weights")
def _lower() -> Answer:
    first, last = (data("partition_picture")["blocks"][at]["convolutions"]["conv2"] for at in (1, -1))
    text = ", ".join(f"{conv['x_megabytes']:.0f} and {conv['w_megabytes']:.0f} MB" for conv in (first, last))
    holds = first["x_megabytes"] > last["x_megabytes"] and first["w_megabytes"] < last["w_megabytes"]
    return Answer(f"first and last 3x3 convolution: {text}", HOLDS if holds else FAILS, "")


def _fetched(stage: str) -> tuple[float, float]:
    gigabytes = data("partition_picture")["gigabytes"][stage]
    return gigabytes["weights"], gigabytes["activations"]


@claim("tofu", 208, "repeated blocks are partitioned alike but for the first; lower layers fetch weights")
def _lower_layers() -> Answer:
    weights, activations = _fetched("stage1")
    blocks = [block["blocks"] for block in data("partition_picture")["blocks"] if block["first"].startswith("stage")]
    return Answer(
        f"stage 1 moves {weights:.2f} GB of weights, {activations:.2f} of activations; {len(blocks)} kinds of blocks",
        HOLDS if weights > activations and len(blocks) == 8 else FAILS,
        "of each stage the first block and the others",
    )


@claim("tofu", 209, "higher layers fetch activations")
def _higher_layers() -> Answer:
    fetched = {stage: _fetched(stage) for stage in ("stage3", "stage4")}
    text = "; ".join(f"{stage} {w:.2f} GB of weights, {a:.2f} of activations" for stage, (w, a) in fetched.items())
    return Answer(text, HOLDS if all(w < a for w, a in fetched.values()) else FAILS, "")


@claim("tofu", 214, "Tofu partitions every operator and tensor over all workers")
def _every() -> Answer:
    plan = planner.plan(planner.model("wresnet-14-1", batch=32, image=32), ways=(2, 2, 2), placements="S")
    whole = sum("R" in map(str, layout) for layout in plan.layouts.values())
    return Answer(
        f"{len(plan.layouts) - whole} of {len(plan.layouts)} tensors, under S",
        HOLDS if whole < 0.1 * len(plan.layouts) else FAILS,
        "what has no extent to cut, as the loss, cannot be",
    )
