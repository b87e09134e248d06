"""Claims of Tofu about operators, graphs and searches."""

from __future__ import annotations

from collections import Counter
from itertools import combinations_with_replacement
from typing import Any

import planner
from planner.layout import Shard, Ways, needed, owned, signatures
from planner.layout.geometry import reached
from planner.layout.region import elements
from results.claims.claim import FAILS, GB, HOLDS, OTHER, Answer, claim, data, of, published, span, statement
from results.paper_operators import conv1d, shift_two


def _searches(search: str, **where: Any) -> dict[str, dict[str, Any]]:
    """Return by model the search's row of 8 workers under S."""
    where = {"workers": 8, "placements": "S", "graph": "default", "search": search} | where
    rows = ((model, row) for model, rows in data("search_time")["rows"].items() for row in rows)
    return {model: row for model, row in rows if all(row.get(key) == value for key, value in where.items())}


BENCHMARKS = ("wresnet-152-10", "rnn-10-8k")
MODERATE = ("mlp-4-8192", "cnn-5-512", "alexnet", "vgg-16", "encoder-decoder-2-512", "classifier-85742")
"""Models of plan_bytes that one GPU of 12 GB holds."""


@claim("tofu", (1, 140, 141, 142, 145, 147), "the recursion finds the plan of least communication")
def _optimal() -> Answer:
    recursive, joint = _searches("recursive", graph="tied"), _searches("joint", graph="tied")
    more = [
        recursive[model]["plan_bytes"] / joint[model]["lower_bound"] - 1
        for model in joint
        if joint[model].get("lower_bound")
    ]
    said = statement("Tofu Th. 5", "as in Lemma 2, S")
    moved = statement("Tofu Th. 5", "with extra inputs, bytes moved, S")
    return Answer(
        f"{of(said)} random graphs in the text's account; of bytes moved, {of(moved)}; on the benchmarks up to "
        f"{max(more):.1%} above the least that any plan can move",
        FAILS,
        "the account charges a step as if all tensors were halved already; what was fetched is not",
    )


@claim("tofu", 19, "MXNet has 139 operators")
def _operators() -> Answer:
    count = data("operator_coverage")["counts"]["MXNet 0.11.0"]["operators"]
    return Answer(f"{count} registered forward operators", OTHER, "the text does not list which it counts")


@claim("tofu", 55, "341 operators in TensorFlow and 139 in MXNet")
def _operators_again() -> Answer:
    counts = data("operator_coverage")["counts"]
    others = ", ".join(f"{name} {catalog['operators']}" for name, catalog in counts.items())
    return Answer(others, OTHER, "MXNet's are counted from its sources; TensorFlow's list of the time is not at hand")


@claim("tofu", 68, "TDL describes 134 of MXNet's 139 operators")
def _described() -> Answer:
    counts = data("operator_coverage")["counts"]["MXNet 0.11.0"]
    share = counts["described"] / counts["operators"]
    return Answer(f"{counts['described']} of {counts['operators']} ({share:.0%})", OTHER, "more operators are counted")


@claim("tofu", (69, 96), "77 are element-wise, 2 opaque, 11 of the other 47 have output reductions")
def _kinds() -> Answer:
    counts = data("operator_coverage")["counts"]["MXNet 0.11.0"]
    others = counts["described"] - counts["element-wise"]
    kinds = f"{counts['element-wise']} element-wise, {counts['opaque']} with opaque functions"
    return Answer(
        f"{kinds}, {counts['output reduction']} of {others} others with output reductions",
        OTHER,
        "more operators are counted, and those made from parts count by their parts",
    )


@claim("tofu", 70, "most descriptions have fewer than three lines")
def _lines() -> Answer:
    lines: Counter[int] = Counter()
    for kind in data("operator_coverage")["lines"].values():
        lines.update({int(count): number for count, number in kind.items()})
    share = sum(number for count, number in lines.items() if count < 3) / lines.total()
    return Answer(f"{share:.0%} of {lines.total()}", HOLDS if share > 0.5 else FAILS, "counted in our descriptions")


@claim("tofu", (73, 74), "MXNet has no operators that index by data")
def _indexing() -> Answer:
    selections = data("operator_coverage")["counts"]["MXNet 0.11.0"]["selection by value"]
    return Answer(
        f"{selections} operators read an index from a tensor, as `take`, `pick` and `one_hot` do",
        FAILS if selections else HOLDS,
        "described here as a selection among all by value, which can be split",
    )


@claim("tofu", 80, "for outputs 0 to 4 of shift_two a worker needs 2 to 6, for 5 to 9 it needs 7 to 11")
def _shift() -> Answer:
    description = shift_two.describe((1,), {})
    index = description.accesses[0].index[0]
    ranges = [reached(index, {"i": 10}, {"i": (bounds,)}, 12)[0] for bounds in ((0, 5), (5, 10))]
    text = " and ".join(f"{low} to {high - 1}" for low, high in ranges)
    return Answer(text, HOLDS if ranges == [(2, 7), (7, 12)] else FAILS, "from the operator's description")


def _conv1d(choice: str) -> dict[str, float]:
    """Return which parts of data and filters each of two workers needs."""
    b = planner.GraphBuilder("float32")
    x, w = b.input("x", (8, 4, 16)), b.input("w", (4, 6, 3))
    y = b.apply(conv1d.name, x, w, name="y")
    graph = planner.Graph(b.tensors, tuple(b.nodes), {}, {"y": y})
    signature = signatures(graph)["y"]
    sizes = [8 * 4 * 16, 4 * 6 * 3]
    return {
        name: elements(needed(signature, operand, (choice,), Ways((2,)))[0]) / sizes[operand]
        for operand, name in enumerate(("data", "filters"))
    }


@claim("tofu", (52, 94), "split by b, a worker of conv1d reads half of the data and all of the filters")
def _split_batch() -> Answer:
    shares = _conv1d("b")
    holds = shares == {"data": 0.5, "filters": 1.0}
    return Answer(f"{shares['data']:g} and {shares['filters']:g}", HOLDS if holds else FAILS, "from its description")


@claim("tofu", 95, "split by ci, it reads half of either, and results are summed")
def _split_channels() -> Answer:
    shares = _conv1d("ci")
    holds = shares == {"data": 0.5, "filters": 0.5}
    return Answer(f"{shares['data']:g} and {shares['filters']:g}", HOLDS if holds else FAILS, "from its description")


@claim("tofu", 21, "the graph of a 152-layer ResNet has over 1500 operators, ten times as many as layers")
def _nodes() -> Answer:
    nodes = _searches("recursive")["wresnet-152-10"]["nodes"]
    holds = nodes > 1500 and nodes / 152 >= 10
    return Answer(f"{nodes:,} operators, {nodes / 152:.0f} a layer", HOLDS if holds else FAILS, "the zoo's graph")


@claim("tofu", 81, "of thousands of operators many are identical but for shapes")
def _alike() -> Answer:
    graph = planner.model("wresnet-152-10", batch=8)
    distinct = len(set(map(id, signatures(graph).values())))
    names = len({node.op for node in graph.nodes})
    return Answer(
        f"{len(graph.nodes):,} nodes of {distinct} kinds, shapes included, of {names} operators",
        HOLDS,
        "WResNet-152-10",
    )


@claim("tofu", 112, "coarsened graphs of MLPs and CNNs are linear")
def _linear() -> Answer:
    models = {"mlp-8-256": {"batch": 64}, "cnn-5-64": {"batch": 64, "image": 24}}
    plans = [
        planner.plan(planner.model(name, **options), ways=(2,), placements="S", ties="all")
        for name, options in models.items()
    ]
    widths = [int(plan.search.details["width"]) for plan in plans]
    return Answer(
        f"eliminating variable by variable meets up to {max(widths)} neighbours, whatever the depth",
        OTHER,
        "not chains but strings of bounded width: optimizer state, gradients and losses have variables of their own, "
        "which is all that the dynamic program needs",
    )


@claim("tofu", 115, "a group has typically 2 backward operators")
def _backward() -> Answer:
    graph = planner.model("wresnet-152-10", batch=8)
    counts = Counter(Counter(node.forward for node in graph.nodes if node.forward).values())
    typical, number = counts.most_common(1)[0]
    return Answer(
        f"{typical} behind {number} of {counts.total()} forward operators of WResNet-152-10",
        HOLDS if typical == 2 else OTHER,
        "one for data, one for weights",
    )


@claim("tofu", 118, "an element-wise operator's tensors should always be partitioned identically")
def _elementwise() -> Answer:
    graph = planner.model("transformer-2-128", batch=8)
    tied, free = (
        planner.plan(graph, ways=(2, 2, 2), placements="S", ties=ties).total_bytes
        for ties in ("all", "gradients,updates,unrolled,repeats")
    )
    return Answer(
        f"tying them costs {tied / free - 1:.1%} of the bytes of a small transformer's plan",
        FAILS if tied > free else HOLDS,
        "a residual and the gradient beside it may well lie differently; the tie makes the search quicker",
    )


@claim(
    "tofu", (121, 122, 131, 157), "Table 1: the recursion takes 8.3 s and 66.6 s, without it 8 hours and over 24 hours"
)
def _table_1() -> Answer:
    recursive, joint = _searches("recursive"), _searches("joint", graph="tied")
    texts = []
    for model in BENCHMARKS:
        other = joint[model]
        rest = f"over {other['over']}" if "over" in other else f"{other['seconds']:.1f} s"
        texts.append(f"{model} {recursive[model]['seconds']:.1f} s, all steps at once {rest}")
    times = "; ".join(f"{row['model']} {row['recursion']}" for row in published("search_time")["tofu"]["rows"])
    return Answer(
        "; ".join(texts),
        OTHER,
        f"(there: {times}) identical layers are searched once; all steps at once are bounded, not enumerated",
    )


@claim("tofu", (129, 130), "20 ways to partition a 4D tensor over 8 workers, 20^6 = 6.4 x 10^7 configurations")
def _ways_of_tensors() -> Answer:
    ways = len(list(combinations_with_replacement(range(4), 3)))
    return Answer(
        f"{ways}, and {ways**6:.1e}",
        HOLDS if (ways, ways**6) == (20, 64_000_000) else FAILS,
        f"where the order of steps does not matter; as it does to interleaved parts, {4**3} and {4**18:.1e}",
    )


@claim("tofu", (150, 151, 156), "3 steps of 4^6 = 4096 configurations are far fewer than 20^6")
def _configurations() -> Answer:
    return Answer(f"{4**6} and {20**6 / (3 * 4**6):,.0f} times fewer", HOLDS, "arithmetic")


@claim("tofu", (132, 155), "row then column gives a grid of 2 x 2, row twice four parts of rows")
def _grid() -> Answer:
    def shape(*dims: int) -> tuple[int, ...]:
        region = owned((8, 8), tuple(map(Shard, dims)), Ways((2, 2)), 0)
        return tuple(sum(stop - start for start, stop in runs) for runs in region)

    shapes = shape(0, 1), shape(0, 0)
    return Answer(
        f"of 8 x 8 a worker holds {shapes[0]} and {shapes[1]}", HOLDS if shapes == ((4, 4), (2, 8)) else FAILS, ""
    )


@claim(
    "tofu",
    (153, 154),
    "Figure 6: with all matrices in rows, the other group's row of B is fetched, and is an extra input",
)
def _extra_inputs() -> Answer:
    b = planner.GraphBuilder("float32")
    y = b.apply("mm", b.input("a", (2, 2)), b.input("b", (2, 2)), name="y")
    graph = planner.Graph(b.tensors, tuple(b.nodes), {}, {"y": y})
    whole = elements(needed(signatures(graph)["y"], 1, ("i",), Ways((2,)))[0])
    held = elements(owned((2, 2), (Shard(0),), Ways((2,)), 0))
    believed = [model["lemma_2"]["believed"] / model["bytes"] for model in data("theorems")["models"]]
    return Answer(
        f"a group needs {whole} elements of B and holds {held}",
        HOLDS,
        "Lemma 2's proof forgets it: by its account the benchmarks' plans move "
        f"{min(believed):.0%} to {max(believed):.0%} of what they move",
    )


@claim("tofu", 144, "no step costs less than the one before (Theorem 1)")
def _rising() -> Answer:
    source = "Tofu Th. 4, SoyBean Th. 3"
    held = [statement(source, f"with extra inputs, perceptrons, {placements}") for placements in ("S", "S,R")]
    models = [model["steps"] for model in data("theorems")["models"]]
    rises = sum(steps == sorted(steps) for steps in models)
    against = statement(source, "with extra inputs, two factorisations, S")
    all_hold = all(count[0] == count[1] for count in (*held, against)) and rises == len(models)
    return Answer(
        f"perceptrons: {of(held[0])} under S, {of(held[1])} under S,R; {rises} of {len(models)} plans of benchmarks; "
        f"{of(against)} graphs of two factorisations of matrices",
        HOLDS if all_hold else FAILS,
        "the best step by itself may leave a better one for later",
    )


@claim("tofu", 149, "a number of workers that is no power of two is factorised, larger factors first")
def _any_number() -> Answer:
    plan = planner.plan(planner.model("mlp-4-96", batch=48), workers=6)
    tried = [str(tuple(factorisation.ways)) for factorisation in plan.search.factorisations]
    return Answer(f"6 workers: {', '.join(tried)} are tried, {tuple(plan.ways)} is best", HOLDS, "")


@claim("tofu", (158, 160), "earlier steps, which move less, suit the slow top of a hierarchy of links")
def _top() -> Answer:
    source = "SoyBean Sec 5.1, Tofu Sec 5.2"
    step, least_at_top = (statement(source, "bytes moved, S", says) for says in ("a step's cost", "where steps rise"))
    models = [model["levels"] for model in data("theorems")["models"]]
    least = sum(levels[0] == min(levels) for levels in models)
    return Answer(
        f"a step's cost is what crosses its level in {step[0]} of {step[1]} random plans; the top is crossed least in "
        f"{least} of {len(models)} plans of the benchmarks ({of(least_at_top)} random plans whose steps rise)",
        FAILS,
        "what later steps move crosses the top as well: interleaved parts lie on both sides",
    )


@claim("tofu", 27, "for models that fit one GPU, no better than data parallelism")
def _moderate() -> Answer:
    ratios = []
    for model in MODERATE:
        costs = {
            (row["search"], row["placements"]): row["bytes"]
            for row in data("plan_bytes")["plans"][model]
            if row["workers"] == 8 and "bytes" in row
        }
        ratios.append(costs["data-parallel", "S,R"] / costs["recursive", "S"])
    less = sum(ratio > 1 for ratio in ratios)
    return Answer(
        f"of bytes, data parallelism moves {span(ratios)} times what the recursion moves; the recursion moves less in "
        f"{less} of {len(ratios)} cases",
        FAILS if less > len(ratios) / 2 else HOLDS,
        f"{', '.join(MODERATE)} of plan_bytes, 8 workers; of bytes, not of time, which kernels of small parts take",
    )


@claim("tofu", 167, "Table 2: weights, gradients and histories of 21 models")
def _table_2() -> Answer:
    errors = sorted((abs(cell["error"]), cell["model"]) for cell in data("table_2")["cells"])
    return Answer(
        f"{len(errors) - 1} of {len(errors)} within {errors[-2][0]:.1%}; {errors[-1][1]} off by {errors[-1][0]:.1%}",
        OTHER,
        "GB are GiB there; one cell does not fit its neighbours, most likely a slip of the pen",
    )


@claim("tofu", 24, "most of the models do not fit a single GPU")
def _do_not_fit() -> Answer:
    sizes = [cell["bytes"] for cell in data("table_2")["cells"]]
    over = sum(size > 12 * GB for size in sizes)
    return Answer(
        f"{over} of {len(sizes)} have over 12 GB in weights, gradients and histories alone",
        HOLDS if over > len(sizes) / 2 else FAILS,
        "",
    )


@claim("tofu", 194, "a model of weights W needs at least 3 W for weight, gradient and history")
def _three() -> Answer:
    graph = planner.model("mlp-4-1024", optimizer="momentum")
    adam = planner.model("mlp-4-1024", optimizer="adam")

    def kept(model: planner.Graph) -> float:
        sizes = {
            role: sum(t.nbytes for t in model.tensors.values() if t.role == role and t.init)
            for role in ("weight", "state")
        }
        return 2 + sizes["state"] / sizes["weight"]

    return Answer(f"{kept(graph):.0f} W with momentum, {kept(adam):.0f} W with Adam", HOLDS, "")
