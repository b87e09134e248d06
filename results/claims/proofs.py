"""Claims of Tofu's appendix and of DistPar's."""

from __future__ import annotations

from typing import Any

import tdl
from planner.layout import PARTIAL, Layout, Shard, Ways, elements, owned
from results.claims.claim import FAILS, HOLDS, OTHER, Answer, claim, data, of, statement


@claim("tofu-appendix", (3, 4, 24, 38), "after i steps there are 2^i subgraphs whose tensors have 1/2^i of the size")
def _halves() -> Answer:
    ratios = [model["lemma_2"]["believed"] / model["bytes"] for model in data("theorems")["models"]]
    return Answer(
        f"charged so, the benchmarks' plans would move {min(ratios):.0%} to {max(ratios):.0%} of what they do move",
        FAILS,
        "what a group has fetched is whole in it",
    )


@claim("tofu-appendix", 10, "no operator reads A[i, i]")
def _diagonal() -> Answer:
    diagonals = []
    for name, operator in tdl.catalog.items():
        for rank in (2, 3):
            try:
                description = operator.describe((rank,), {})
            except tdl.TDLError:
                continue
            plain = [[next(iter(i.variables)) for i in access.index if i.is_plain] for access in description.accesses]
            if any(len(names) != len(set(names)) for names in plain):
                diagonals.append(name)
    mxnet = data("operator_coverage")["catalogs"]["MXNet 0.11.0"]
    used = sum(
        any(strategy["operator"] in diagonals for strategy in entry.get("strategies", ())) for entry in mxnet.values()
    )
    return Answer(
        f"of all that are described, {', '.join(sorted(set(diagonals))) or 'none'}; of MXNet's, {used}",
        FAILS if used else HOLDS,
        "core ATen has an operator that does",
    )


@claim("tofu-appendix", (14, 15, 17, 18, 19, 20), "Lemma 2: a step costs a weighted sum of tensor sizes")
def _lemma_2() -> Answer:
    products, windows = (statement("Tofu Lemma 2", f"one step, {kind}") for kind in ("products", "windows"))
    return Answer(
        f"{of(products)} random graphs of products, {of(windows)} with windows",
        HOLDS if products[0] == products[1] else FAILS,
        "windows are outside of its assumptions: their borders do not grow with the tensor",
    )


@claim("tofu-appendix", (21, 22, 23, 26, 35), "Theorem 3: the order of steps does not change the total")
def _order() -> Answer:
    rows = {
        "by Lemma 2": "as in Lemma 2, S",
        "bytes moved by contiguous tiles": "bytes moved, contiguous tiles, S",
        "bytes moved by interleaved parts": "bytes moved, digits, S,R",
    }
    held = {name: statement("Tofu Th. 3", account) for name, account in rows.items()}
    return Answer(
        "; ".join(f"{name}: {of(count)}" for name, count in held.items()),
        OTHER,
        "true of bytes only if parts interleave, so that each step cuts what every other one left",
    )


@claim("tofu-appendix", (27, 29, 30, 31, 32), "Theorem 4: no step costs less than the one before")
def _rising() -> Answer:
    same = statement("Tofu Th. 4", "as in Lemma 2, S")
    extra = statement("Tofu Th. 4, SoyBean Th. 3", "with extra inputs, two factorisations, S")
    return Answer(
        f"{of(same)} by Lemma 2, under which all steps cost the same; {of(extra)} graphs of two factorisations",
        FAILS,
        "the best step is charged by what is there; what it leaves is not what it found",
    )


@claim("tofu-appendix", (5, 9, 33, 39, 40), "Theorem 5: the recursion is optimal")
def _optimal() -> Answer:
    said, moved = (
        statement("Tofu Th. 5", "as in Lemma 2, S"),
        statement("Tofu Th. 5", "charged as in Lemma 2, bytes moved, S"),
    )
    extra = statement("Tofu Th. 5", "with extra inputs, bytes moved, S")
    return Answer(
        f"{of(said)} by Lemma 2; of bytes moved {of(moved)}, and {of(extra)} with what was fetched charged",
        FAILS,
        f"at worst {extra[2]:.2f} times the least",
    )


def _conversion(source: str, target: str, where: str) -> dict[str, Any]:
    conversion: dict[str, Any] = next(
        row[where] for row in data("conversions")["conversions"] if (row["source"], row["target"]) == (source, target)
    )
    return conversion


def _converted(source: str, target: str, text: str) -> Answer:
    """Compare what a conversion moves on the same and on other devices with the text's formula."""
    size = data("conversions")["tensor_bytes"]
    same, other = (_conversion(source, target, where) for where in ("same", "disjoint"))
    verdict = HOLDS if same["bytes"] == same["published_bytes"] else OTHER
    return Answer(
        f"({same['formula']}) |T| ({same['bytes'] / size:g} |T| on {data('conversions')['workers']} devices); between "
        f"disjoint devices ({other['formula']}) |T|",
        verdict,
        f"{text}: a device's own part does not move" if verdict == OTHER else "",
    )


@claim("distpar-appendix", 40, "All2All, between two dimensions, moves |T|")
def _all_to_all() -> Answer:
    return _converted("S0", "S1", "|T| there")


@claim("distpar-appendix", 43, "S to B moves n |T|")
def _all_gather() -> Answer:
    return _converted("S0", "R", "n |T| there")


@claim("distpar-appendix", 47, "P to S moves n |T|")
def _reduce_scatter() -> Answer:
    return _converted("P+", "S0", "n |T| there")


@claim("distpar-appendix", (50, 51, 52), "P to B moves (p1 - 1 + p2) |T|")
def _all_reduce() -> Answer:
    return _converted("P+", "R", "(p1 - 1 + p2) |T| there")


def _held(layout: Layout) -> float:
    return elements(owned((8, 8), layout, Ways((4,)), 0)) / 64


@claim("distpar-appendix", (12, 13), "Reduce-Scatter saves (n - 1) / n of |T| on each device")
def _saved() -> Answer:
    saved = _held((PARTIAL,)) - _held((Shard(0),))
    return Answer(f"{saved:g} |T| on 4 devices", HOLDS if saved == 3 / 4 else FAILS, "a term is whole, a share is not")


@claim("distpar-appendix", 14, "each device exchanges (n - 1) / n of |T|, (n - 1) |T| together")
def _exchanged() -> Answer:
    moved = _conversion("P+", "S0", "same")["bytes"] / data("conversions")["tensor_bytes"]
    return Answer(f"{moved:g} |T| on 4 devices", HOLDS if moved == 3 else FAILS, "")


@claim("distpar-appendix", (19, 20), "the time is about constant, independent of the number of devices")
def _constant() -> Answer:
    shares = {n: (n - 1) / n for n in (2, 4, 8, 16)}
    text = ", ".join(f"{share:.2f} for {n}" for n, share in shares.items())
    return Answer(f"{text} devices, of |T| over the bandwidth", OTHER, "constant only as far as one can do without 1/n")


@claim("distpar-appendix", (16, 17, 18), "Table 1: six ways to place a product's operands and result")
def _table_1() -> Answer:
    signatures = {tuple(row[1:]) for row in data("conversions")["matmul"]}
    expected = {
        ("S0", "R", "S0"), ("R", "S1", "S1"), ("S1", "S0", "P+"), ("P+", "R", "P+"), ("R", "P+", "P+"), ("R", "R", "R"),
    }  # fmt: skip
    return Answer(
        f"{len(signatures & expected)} of {len(expected)}",
        HOLDS if signatures == expected else FAILS,
        "inferred from TDL",
    )


@claim("distpar-appendix", 15, "if one operand is B, the result equals the other operand")
def _either() -> Answer:
    signatures = [row[1:] for row in data("conversions")["matmul"] if "R" in row[1:3]]
    missing = [
        placement
        for placement in ("S1", "S0")
        if [placement, "R", placement] not in signatures or ["R", placement, placement] not in signatures
    ]
    return Answer(
        f"of X = S(1) with W = B, and X = B with W = S(0), none is a way to compute a product ({len(missing)} of 2)",
        FAILS if missing else HOLDS,
        "a summed dimension must be split in both operands",
    )


@claim("distpar-appendix", (22, 25, 26), "a conversion may be a chain of two through another placement")
def _chains() -> Answer:
    counts = data("conversions")["two_steps"]
    return Answer(
        f"of {counts['conversions']}, {counts['composed_moves_more_than_at_once']} move more as a chain than at once",
        OTHER,
        "right, but not for free",
    )
