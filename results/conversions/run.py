"""DistPar's conversions (A.3) and matmul's signatures (Table 1), counted and derived."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

import tdl
from planner.layout import PARTIAL, REPLICATE, Placement, Shard
from results.conversions.chains import PART_MOVED, SEND, Conversion, Hop, convert, direct, every_layout
from results.conversions.inference import inferences
from results.experiment import Pages, publish, table

HERE = Path(__file__).parent
SHAPE, ITEM_BYTES, WORKERS, FEWER = (64, 48), 4, 4, 2
PLACEMENTS: tuple[Placement, ...] = (Shard(0), Shard(1), REPLICATE, PARTIAL)
SIZE_BYTES = prod(SHAPE) * ITEM_BYTES


def published_bytes(source: Placement, target: Placement, having: int, getting: int) -> int | None:
    """Return A.3's formula for the conversion from `having` to `getting` devices, in bytes, where it has one."""
    if isinstance(source, Shard) and isinstance(target, Shard) and source != target:
        return SIZE_BYTES
    if isinstance(source, Shard) and target == REPLICATE:
        return getting * SIZE_BYTES
    if source == PARTIAL and isinstance(target, Shard):
        return having * SIZE_BYTES
    if (source, target) == (PARTIAL, REPLICATE):
        return (having - 1 + getting) * SIZE_BYTES
    return None


FORMULAS: dict[str, Callable[[int, int], Fraction]] = {
    "0": lambda _p1, _p2: Fraction(0),
    "1": lambda _p1, _p2: Fraction(1),
    "p1": lambda p1, _p2: Fraction(p1),
    "p2": lambda _p1, p2: Fraction(p2),
    "p1 - 1": lambda p1, _p2: Fraction(p1 - 1),
    "1 - 1/n": lambda p1, _p2: PART_MOVED["all-to-all"](p1),
    "n - 1": lambda p1, _p2: PART_MOVED["all-gather"](p1),
    "2(n - 1)": lambda p1, _p2: PART_MOVED["all-reduce"](p1),
}
"""Tensors moved, from p1 workers to p2 others; n = p1 where they are the same."""

SAME = {"all-to-all": "1 - 1/n", "all-gather": "n - 1", "reduce-scatter": "n - 1", "all-reduce": "2(n - 1)"}


def formula(conversion: Conversion) -> list[str]:
    """Return the formulas of the conversion's parts."""
    across = any(hop.atom == SEND for hop in conversion.hops)

    def of(hop: Hop) -> str:
        if hop.atom == SEND:
            return "p1" if PARTIAL in hop.source else "p2" if REPLICATE in hop.target else "1"
        return "p1 - 1" if across and hop.atom == "reduce-scatter" else SAME.get(hop.atom, "0")

    return [text for hop in conversion.hops if (text := of(hop)) != "0"] or ["0"]


def valued(parts: list[str], having: int, getting: int) -> int:
    """Return what the formulas say for these numbers of workers, in bytes."""
    return int(sum((FORMULAS[part](having, getting) for part in parts), Fraction(0)) * SIZE_BYTES)


def row(source: Placement, target: Placement) -> dict[str, Any]:
    """One conversion: among the same workers, to as many others, to fewer others."""
    same = convert(SHAPE, (source,), (target,), (WORKERS,))
    at_once = sum(int(exchange.moved().sum()) for exchange in direct(SHAPE, (source,), (target,), (WORKERS,)))
    conversion: dict[str, Any] = {
        "source": str(source),
        "target": str(target),
        "same": {
            "way": str(same),
            "formula": " + ".join(formula(same)),
            "bytes": same.elements * ITEM_BYTES,
            "formula_bytes": valued(formula(same), WORKERS, WORKERS),
            "at_once_bytes": at_once * ITEM_BYTES,
            "published_bytes": published_bytes(source, target, WORKERS, WORKERS),
        },
    }
    for name, others in (("disjoint", WORKERS), ("fewer", FEWER)):
        across = convert(SHAPE, (source,), (target,), (WORKERS,), (others,))
        conversion[name] = {
            "way": str(across),
            "formula": " + ".join(formula(across)),
            "bytes": across.elements * ITEM_BYTES,
            "formula_bytes": valued(formula(across), WORKERS, others),
            "published_bytes": published_bytes(source, target, WORKERS, others),
        }
    return conversion


def two_steps() -> dict[str, int]:
    """All conversions of the same tensor over 2 x 2 workers: composed, against one exchange for all."""
    ways = (2, 2)
    layouts = every_layout(SHAPE, ways)
    composed = {(a, b): convert(SHAPE, a, b, ways) for a in layouts for b in layouts}
    at_once = {(a, b): sum(int(exchange.moved().sum()) for exchange in direct(SHAPE, a, b, ways)) for a, b in composed}
    by_placement = {
        pair: sum(
            int(exchange.moved().sum())
            for step, after in enumerate(pair[1])
            for exchange in direct(
                SHAPE, (*pair[1][:step], *pair[0][step:]), (*pair[1][: step + 1], *pair[0][step + 1 :]), ways
            )
        )
        for pair in composed
    }
    settled = [pair for pair in composed if all(p != PARTIAL or q == PARTIAL for q, p in zip(*pair, strict=True))]
    return {
        "conversions": len(composed),
        "composed_moves_more_than_at_once": sum(composed[pair].elements > at_once[pair] for pair in composed),
        "of_them_without_becoming_partial": sum(composed[pair].elements > at_once[pair] for pair in settled),
        "without_becoming_partial": len(settled),
        "at_once_moves_more_than_composed": sum(composed[pair].elements < at_once[pair] for pair in composed),
        "step_by_step_moves_more_than_composed": sum(by_placement[p] > composed[p].elements for p in settled),
    }


def signatures() -> list[list[str]]:
    """Return the rows of Table 1: what each choice needs of X and W and gives as Y."""
    rows = inferences(tdl.catalog["mm"].describe((2, 2), {}))
    return [[row.choice, *map(str, row.operands), *map(str, row.outputs)] for row in rows]


def data() -> dict[str, Any]:
    """All that the tables show."""
    return {
        "shape": SHAPE,
        "tensor_bytes": SIZE_BYTES,
        "workers": WORKERS,
        "fewer": FEWER,
        "conversions": [row(source, target) for source in PLACEMENTS for target in PLACEMENTS],
        "two_steps": two_steps(),
        "matmul": signatures(),
    }


def conversion_table(results: dict[str, Any]) -> str:
    """Render the conversions, in tensors moved."""

    def moved(cell: int | None) -> str:
        return "" if cell is None else f"{cell / SIZE_BYTES:g}"

    columns = ["from", "to"]
    columns += ["same workers: way", "formula", "counted", "at once", "published"]
    columns += ["4 others: way", "formula", "counted", "published", "2 others: counted", "published"]
    rows = []
    for conversion in results["conversions"]:
        same, across, fewer = conversion["same"], conversion["disjoint"], conversion["fewer"]
        row = [conversion["source"], conversion["target"], same["way"], same["formula"]]
        row += [moved(same[name]) for name in ("bytes", "at_once_bytes", "published_bytes")]
        row += [across["way"], across["formula"], moved(across["bytes"]), moved(across["published_bytes"])]
        rows.append([*row, moved(fewer["bytes"]), moved(fewer["published_bytes"])])
    return table(columns, rows)


def steps(results: dict[str, Any]) -> str:
    """Say where formulas and chains fall short."""
    two = results["two_steps"]
    settled = two["without_becoming_partial"]
    return f"""- Over several steps the way matters. Of the {two["conversions"]} conversions over 2 x 2 workers,
  {two["composed_moves_more_than_at_once"]} take more than one exchange at once would, but only
  {two["of_them_without_becoming_partial"]} of the {settled} in which nothing becomes partial that was not: all-to-alls
  at both steps, where an element may travel twice. One exchange at once moves more than the best chain in
  {two["at_once_moves_more_than_composed"] or "none"} of them. Converting the steps in their order moves more than the
  best chain in {two["step_by_step_moves_more_than_composed"]} of the {settled}: an all-reduce of the whole tensor at
  step 1, say, where reduce-scatters at both steps and then all-gathers move less."""


def signature_table(results: dict[str, Any]) -> str:
    """Render Table 1 as derived."""
    return table(["choice", "X", "W", "Y"], ([f"`{choice}`", *placements] for choice, *placements in results["matmul"]))


def pages(results: Any) -> Pages:
    """Return the README's tables."""
    return {"conversions": conversion_table(results), "signatures": signature_table(results), "steps": steps(results)}


if __name__ == "__main__":
    publish(HERE, data(), pages)
