"""Claims of SoyBean."""

from __future__ import annotations

from collections import Counter
from typing import Any

import planner
from planner.explanations.accounts import flows
from results.claims.claim import FAILS, GB, HOLDS, MB, OTHER, PART, Answer, claim, data, of, span, statement, within
from topologies import load_topology


def _speedups() -> list[float]:
    """Return how much faster SoyBean's plans are than data parallelism, where both fit the published machine."""
    seconds: dict[tuple[str, int], dict[str, float]] = {}
    for row in data("soybean_scaling")["rows"]:
        if row["machine"] == "p2.8xlarge" and row["fits"]:
            seconds.setdefault((row["model"], row["batch"]), {})[row["system"]] = row["seconds"]
    others = [name for name in next(iter(seconds.values())) if name != "data"]
    if len(others) != 1:
        raise ValueError(f"expected one system beside data parallelism, found {others}")
    return [by_system["data"] / by_system[others[0]] for by_system in seconds.values() if len(by_system) > 1]


@claim("soybean", (5, 19), "1.5 to 4 times as fast as data parallelism for AlexNet and VGG")
def _faster() -> Answer:
    speedups = _speedups()
    verdict = HOLDS if within(speedups, 1.5, 4) else PART if max(speedups) >= 1.5 else FAILS
    return Answer(
        f"{span(speedups)} times, of batches of 128 to 2048 that fit",
        verdict,
        "simulated; least with the largest batches",
    )


def _data_parallel(model: str) -> list[dict[str, Any]]:
    rows = data("soybean_scaling")["rows"]
    return [
        row
        for row in rows
        if (row["model"], row["system"], row["machine"]) == (model, "data", "p2.8xlarge") and row["fits"]
    ]


@claim("soybean", (1, 9, 33), "data parallelism needs large batches for computation to outweigh communication")
def _large_batches() -> Answer:
    shares = {
        model: [1 - row["without_communication"] / row["seconds"] for row in _data_parallel(model)]
        for model in ("AlexNet", "VGG-16")
    }
    falls = all(curve == sorted(curve, reverse=True) for curve in shares.values())
    text = ", ".join(f"{model} {curve[0]:.0%} to {curve[-1]:.0%}" for model, curve in shares.items())
    return Answer(
        f"part of an iteration for communication, from batch 128 to the largest that fits: {text}",
        HOLDS if falls else FAILS,
        "",
    )


@claim("soybean", 34, "throughput can always be scaled by larger batches")
def _throughput() -> Answer:
    rates = [[row["batch"] / row["seconds"] for row in _data_parallel(model)] for model in ("AlexNet", "VGG-16")]
    rises = all(curve == sorted(curve) for curve in rates)
    text = ", ".join(f"{curve[0]:.0f} to {curve[-1]:.0f}" for curve in rates)
    return Answer(
        f"samples/s from batch 128 to the largest that fits, up to 2048: {text}",
        HOLDS if rises else FAILS,
        "as long as memory lasts",
    )


@claim("soybean", 8, "AlexNet had about 150 MB of parameters")
def _alexnet() -> Answer:
    graph = planner.model("alexnet")
    size = sum(tensor.nbytes for tensor in graph.tensors.values() if tensor.role == "weight" and tensor.init)
    close = within([size / MB], 135, 165)
    return Answer(f"{size / MB:.0f} MB", HOLDS if close else OTHER, f"{size / 4e6:.0f} million weights of 4 bytes")


def _example(scheme: str, batch: int = 400) -> dict[str, Any]:
    account: dict[str, Any] = next(
        row for row in data("soybean_example")["accounts"] if (row["scheme"], row["batch"]) == (scheme, batch)
    )
    return account


def _planned(searcher: str, ways: list[int]) -> int:
    rows = data("soybean_example")["plans"]
    plan = next(row for row in rows if (row["searcher"], row["placements"], row["ways"]) == (searcher, "S,R", ways))
    return int(plan["bytes"])


@claim("soybean", (36, 37, 38), "five layers of 300 with batch 400: 1.8 MB of weights, 2.4 MB of activations")
def _sizes() -> Answer:
    graph = planner.model("mlp-5-300", batch=400)
    weights = sum(tensor.nbytes for tensor in graph.tensors.values() if tensor.role == "weight" and tensor.init) / MB
    activations = 5 * 400 * 300 * 4 / MB
    return Answer(
        f"{weights:.1f} MB and {activations:.1f} MB", HOLDS if (weights, activations) == (1.8, 2.4) else FAILS, ""
    )


@claim("soybean", 39, "on 16 GPUs data parallelism moves 57.6 MB, model parallelism 76.8 MB")
def _both() -> Answer:
    plain, model = _example("data"), _example("model")
    return Answer(
        f"{plain['moved'] / MB:.1f} and {model['moved'] / MB:.1f} MB",
        OTHER,
        "the text counts a device's own share as sent to itself",
    )


@claim("soybean", 40, "with batch 400 and layers of 300 data parallelism moves less than model parallelism")
def _data_better() -> Answer:
    plain, model = _example("data")["moved"], _example("model")["moved"]
    best = _planned("model-parallel", [2, 2, 2, 2])
    return Answer(
        f"{plain / MB:.1f} and {model / MB:.1f} MB",
        HOLDS if plain < model else FAILS,
        f"of the scheme that the text has in mind; the best model parallelism in four steps moves {best / MB:.1f} MB",
    )


@claim("soybean", 41, "with batch 300 and layers of 400 model parallelism moves less")
def _model_better() -> Answer:
    plain, model = _example("data", 300)["moved"], _example("model", 300)["moved"]
    return Answer(f"{plain / MB:.1f} and {model / MB:.1f} MB", HOLDS if model < plain else FAILS, "")


@claim("soybean", 42, "a hybrid of both is better still")
def _hybrid_better() -> Answer:
    hybrid = _example("hybrid")["moved"]
    best = _planned("joint", [2, 2, 2, 2])
    return Answer(
        f"{hybrid / MB:.1f} MB; the best plan found moves {best / MB:.1f} MB",
        HOLDS if hybrid < _example("data")["moved"] else FAILS,
        "",
    )


@claim("soybean", (43, 44, 45, 46, 47, 48), "4 groups of 4: 14.4 MB among them, 4.8 MB in each, 33.6 MB in all")
def _hybrid() -> Answer:
    account = _example("hybrid")
    return Answer(
        f"{account['moved'] / MB:.1f} MB in all", OTHER, "the text counts a device's own share as sent to itself"
    )


@claim("soybean", 49, "which saves 41.7% and 56.2%")
def _saved() -> Answer:
    moved = {scheme: _example(scheme)["moved"] for scheme in ("data", "model", "hybrid")}
    saved = [1 - moved["hybrid"] / moved[scheme] for scheme in ("data", "model")]
    return Answer(" and ".join(f"{share:.1%}" for share in saved), OTHER, "without devices' own shares")


@claim("soybean", 57, "data parallelism communicates gradients alone, nothing in forward and backward pass")
def _gradients_only() -> Answer:
    plan = planner.plan(planner.model("mlp-4-256", batch=64), ways=(4,), searcher="data-parallel")
    moved: Counter[bool] = Counter()
    for flow in flows(plan):
        moved[plan.graph.tensors[flow.tensor].nbytes > 4] += flow.nbytes
    weights = moved[True]
    return Answer(
        f"{weights:,} bytes of weights' gradients and weights, {moved[False]:,} of the loss",
        HOLDS,
        "a perceptron; batch norm adds its statistics",
    )


@claim("soybean", (3, 17, 63, 120, 127, 132, 133), "the k-cuts algorithm finds the optimal tiling")
def _optimal() -> Answer:
    plain = statement("Tofu Th. 5", "as in Lemma 2, S,R")
    moved = statement("Tofu Th. 5", "with extra inputs, bytes moved, S,R")
    order = statement("Tofu Th. 3", "as in Lemma 2, S,R")
    example = _planned("recursive", [4, 4]), _planned("joint", [4, 4])
    return Answer(
        f"{of(plain)} random graphs by the text's account, {of(moved)} of bytes moved; the order of cuts changes "
        f"nothing in {of(order)}; in its own example on 4 x 4, {example[0] / MB:.1f} MB where {example[1] / MB:.1f} do",
        FAILS,
        "replication does not halve a tensor, so that cuts do not commute by that account",
    )


@claim("soybean", (100, 108, 110, 114), "dynamic programming over breadth-first levels finds the best one-cut tiling")
def _levels() -> Answer:
    held = [statement("SoyBean eq. 4, 5", f"two devices, {tilings}") for tilings in ("R and C", "R, C and r")]
    holds = all(count[0] == count[1] for count in held)
    return Answer(" and ".join(map(of, held)), HOLDS if holds else FAILS, "against enumeration, random graphs")


@claim("soybean", (89, 90, 91, 92), "a product has three aligned tilings, of which two need no communication")
def _aligned() -> Answer:
    held = statement("SoyBean Fig. 6", "einsum")
    return Answer(
        f"{of(held)} products: just the strategies of its description", HOLDS if held[0] == held[1] else FAILS, ""
    )


@claim("soybean", 118, "an MLP of N layers has 3 N matrix products")
def _products() -> Answer:
    counts = {
        first: sum(node.op == "mm" for node in planner.model("mlp-4-64", first_input_gradient=first).nodes)
        for first in (False, True)
    }
    return Answer(
        f"{counts[False]} of 4 layers, {counts[True]} with the gradient of the data",
        HOLDS if counts[False] == 12 else OTHER,
        "nobody needs the first layer's data gradient",
    )


@claim("soybean", 119, "the dynamic program is linear in the number of layers")
def _linear() -> Answer:
    exponents = [row["exponent"] for row in data("scaling")["depths"]]
    return Answer(
        f"seconds grow with depth to the power of {span(exponents)}",
        HOLDS if max(exponents) < 1.2 else OTHER,
        "our recursion",
    )


@claim("soybean", (124, 125, 126), "Theorem 1: the total is the weighted sum of the cuts' costs")
def _total() -> Answer:
    plain = statement("SoyBean Th. 1", "steps as in Lemma 2, against bytes moved")
    extra = statement("SoyBean Th. 1", "steps with extra inputs, against bytes moved")
    return Answer(
        f"of bytes moved in {of(plain)} random plans; in {of(extra)} where a cut is charged what earlier ones fetched",
        FAILS if plain[0] < plain[1] else HOLDS,
        f"the sum is up to {plain[2]:.1f} times off: what a group fetched is whole to the cuts within it",
    )


@claim("soybean", (128, 129), "Theorem 2: a composed tiling says only how often each dimension is cut")
def _flattening() -> Answer:
    plain = statement("SoyBean Th. 2", "contiguous tiles")
    digits = statement("SoyBean Th. 2", "digits, but for the indices' numbering")
    return Answer(f"{of(plain)}; for interleaved parts {of(digits)} up to numbering", HOLDS, "random tilings")


@claim("soybean", (130, 131), "Theorem 3: each cut costs at least as much as the one before")
def _greedy() -> Answer:
    held = statement("Tofu Th. 4, SoyBean Th. 3", "with extra inputs, perceptrons, S,R")
    other = statement("Tofu Th. 4, SoyBean Th. 3", "with extra inputs, two factorisations, S")
    return Answer(
        f"{of(held)} perceptrons; {of(other)} graphs of two factorisations", FAILS, "counter-examples in theorems"
    )


@claim("soybean", 139, "tilings of the image are strictly worse than data parallelism")
def _images() -> Answer:
    few = planner.plan(planner.model("cnn-5-16", batch=4, image=64, batch_norm=False), ways=(2, 2, 2))
    many = planner.plan(planner.model("cnn-5-16", batch=8, image=64, batch_norm=False), ways=(2, 2, 2))
    used = [
        sum(bool({"y", "x"} & {*plan.strategies[node.name]}) for node in plan.graph.nodes if node.op == "convolution")
        for plan in (few, many)
    ]
    return Answer(
        f"the plan found splits images in {used[0]} of 5 convolutions for 4 samples on 8 workers, in {used[1]} for 8",
        FAILS if used[0] else HOLDS,
        "with fewer samples than workers there is no data parallelism, and borders of rows are less than channels",
    )


@claim("soybean", 140, "the larger the image, the better is data parallelism")
def _larger_images() -> Answer:
    ratios = []
    for image in (12, 24, 48):
        graph = planner.model("cnn-5-64", batch=32, image=image)
        plans = [planner.plan(graph, ways=(2, 2), searcher=name) for name in ("model-parallel", "data-parallel")]
        ratios.append(plans[0].total_bytes / plans[1].total_bytes)
    text = ", ".join(f"{ratio:.1f}" for ratio in ratios)
    return Answer(
        f"model parallelism moves {text} times as much for 12, 24 and 48 pixels",
        HOLDS if ratios == sorted(ratios) else FAILS,
        "",
    )


@claim("soybean", (143, 145), "the first cut, at the slowest links, has the least communication")
def _placement() -> Answer:
    models = [model["levels"] for model in data("theorems")["models"]]
    least = sum(levels[0] == min(levels) for levels in models)
    return Answer(
        f"least crosses the first cut in {least} of {len(models)} plans of the benchmarks",
        FAILS if least < len(models) else HOLDS,
        "what later cuts move crosses it as well, between parts that lie on both sides",
    )


@claim("soybean", (153, 154), "8 GK210 of 12 GB, 480 GB of memory, 20 GB/s in both directions")
def _machine() -> Answer:
    machine = load_topology("p2.8xlarge")
    links = [machine.resources[number] for number, _ in machine.route(0, 1).uses]
    one_way = min(link.capacity for link in links if link.kind == "link")
    return Answer(
        f"{2 * one_way / GB:.0f} GB/s in both directions, as Tofu has it", OTHER, "Tofu's is the same machine"
    )
