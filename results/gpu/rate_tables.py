"""Tables of the rates of kernels: by data and power, by the alignment of extents, attention by a head's width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from results.experiment import table

TERA, MICRO = 1e12, 1e6
Row = Mapping[str, Any]


def rates(data: Row) -> str:
    """Render what was measured of kernels."""
    return "\n\n".join([sustained(data["sustained"]), alignment(data["alignment"]), attention(data["attention"])])


def sustained(rows: Sequence[Row]) -> str:
    """Render the rate of a long run of one product, by its data, and what limits it."""
    lines = []
    for row in rows:
        samples = [sample.split(", ") for sample in row["samples"][len(row["samples"]) // 3 :]]
        clocks, power = (median(float(sample[at]) for sample in samples) for at in (0, 2))
        rate = [row["flop_per_s"][0], median(row["flop_per_s"][len(row["flop_per_s"]) // 3 :])]
        lines.append([row["data"], row["n"], *(f"{of / TERA:.3g}" for of in rate), f"{clocks:.0f}", f"{power:.0f}"])
    columns = ["data", "extents", "first tenth of a second (Tflop/s)", "then", "clock (MHz)", "power (W)"]
    return f"Calls without a pause for seconds; products in bfloat16 unless said:\n\n{table(columns, lines)}"


def alignment(rows: Sequence[Row]) -> str:
    """Render the rates of products by the largest power of two, up to 16, that divides the extents in memory."""
    groups: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        contiguous = {"forward": ("n", "k"), "input gradient": ("n", "k"), "weight gradient": ("m", "n")}[row["role"]]
        aligned = min(16, *(row[of] & -row[of] for of in contiguous))
        groups.setdefault((row["role"], aligned), []).append(row["flop_per_s"])
    lines = [
        [role, aligned, len(group), f"{min(group) / TERA:.0f}", f"{max(group) / TERA:.0f}"]
        for (role, aligned), group in sorted(groups.items())
    ]
    columns = ["product of a linear layer", "extents divisible by", "shapes", "least (Tflop/s)", "most"]
    return f"Products in bfloat16 with an extent beside a power of two, and of vocabularies:\n\n{table(columns, lines)}"


def attention(rows: Sequence[Row]) -> str:
    """Render the seconds of attention by a head's width, of 8192 tokens with 4096 elements each or a little less."""
    by_width: dict[int, dict[str, Row]] = {}
    for row in rows:
        if row["sequence"] == 2048 and row["groups"] == 1 and row["causal"]:
            by_width.setdefault(row["width"], {})[row["library"]] = row
    lines = [
        [width, *(_us(libraries[name].get(way)) for name in ("flash", "cudnn") for way in ("forward_s", "backward_s"))]
        for width, libraries in by_width.items()
    ]
    columns = ["head", "FlashAttention, forward (us)", "backward", "cuDNN, forward (us)", "backward"]
    return f"Causal attention over 2048 tokens, as many heads as fit in 4096 elements:\n\n{table(columns, lines)}"


def _us(seconds: float | None) -> str:
    return "refused" if seconds is None else f"{MICRO * seconds:.0f}"
