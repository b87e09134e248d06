"""Tables and pictures of what every system makes of a family of models, as Tofu's Figures 8 and 9 draw them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from results.experiment import table
from results.pictures import Bar, Panel, draw_bars
from results.throughput import DEVICES, MACHINE, Row
from results.wresnet_throughput.systems.host import with_host_memory
from topologies import load_topology

PAPER = ("ideal", "small-batch", "swapping", "op-placement", "tofu")
ALTERNATIVES = ("small-batch", "swapping", "op-placement")
OTHERS = ("ideal", "1f1b", "data-parallel", "zero-1", "zero-2", "zero-3", "tofu", "planned")
COLOURS = {
    "ideal": "#555555",
    "small-batch": "#d98b2b",
    "swapping": "#7fb069",
    "op-placement": "#8e6bb0",
    "tofu": "#34699a",
    "planned": "#1f9e9e",
    "1f1b": "#c0392b",
    "data-parallel": "#b5a642",
    "zero-1": "#e6a0c4",
    "zero-2": "#c66a9a",
    "zero-3": "#8d2f63",
}
NOT_MEASURED, FULL = "not measured", "OOM"

Cells = Mapping[tuple[str, str], Row]


def by_cell(data: Any) -> Cells:
    """Return the rows by model and system."""
    return {(row["model"], row["system"]): row for row in data["rows"]}


def rate(cells: Cells, model: str, system: str) -> float | None:
    """Return samples per second; None where nothing fits, or nothing is known."""
    return cells.get((model, system), {}).get("samples_per_s")


def _said(cells: Cells, model: str, system: str, key: str = "samples_per_s") -> str:
    row = cells.get((model, system))
    return NOT_MEASURED if row is None else FULL if row.get(key) is None else f"{row[key]:.3g}"


def rates_table(data: Any, models: Sequence[str], systems: Sequence[str], key: str = "samples_per_s") -> str:
    """Show samples per second; of `halves_samples_per_s`, those if the boards are in two halves."""
    cells = by_cell(data)
    rows = [[model, *(_said(cells, model, system, key=key) for system in systems)] for model in models]
    return table(["model", *systems], rows)


def batches_table(data: Any, models: Sequence[str]) -> str:
    """Show the samples of a step over all devices, and the largest arena."""
    cells = by_cell(data)

    def cell(model: str, system: str) -> str:
        row = cells.get((model, system), {})
        fits = "arena_bytes" in row
        return f"{row['samples']}, {row['arena_bytes'] / 1e9:.1f} GB" if fits else _said(cells, model, system)

    return table(["model", *COLOURS], [[model, *(cell(model, system) for system in COLOURS)] for model in models])


def swapping_table(data: Any, models: Sequence[str]) -> str:
    """Show what was tried, what the fastest moves, and for how much of the step that keeps the host's link busy."""
    cells, rows = by_cell(data), []
    host = with_host_memory(load_topology(MACHINE), DEVICES).bandwidth_bytes_per_s(0, DEVICES)
    for model in models:
        row = cells.get((model, "swapping"), {})
        if "samples" in row:
            tried = ", ".join(f"{batch}: {samples_per_s:.3g}" for batch, samples_per_s in row["tried"].items())
            busy = row["moved_bytes"] / 2 / host / row["seconds"]
            rows.append([model, tried, row["batch"], f"{row['moved_bytes'] / 1e9:.0f}", f"{busy:.0%}"])
    return table(
        ["model", "batch on a GPU: samples/s", "batch", "GB moved", "link busy, mean of both directions"], rows
    )


def verdict(data: Any, models: Sequence[str], published: Mapping[str, Any]) -> str:
    """Say what Tofu says of itself, with our figures."""
    return "\n".join(f"- {line}" for line in _verdicts(by_cell(data), models, published))


def _verdicts(cells: Cells, models: Sequence[str], published: Mapping[str, Any]) -> Iterator[str]:
    shares = _ratios(cells, models, "tofu", "ideal")
    low, high = published["share_of_ideal"]
    if shares:
        yield f"`tofu` reaches {_range(shares)} of ideal (Tofu: {low:.0%} to {high:.0%}, both figures together)"
    best = {model: name for model in models if (name := _best(cells, model, ALTERNATIVES))}
    gains = {m: (rate(cells, m, "tofu") or 0) / (rate(cells, m, name) or 1) for m, name in best.items()}
    won = {model: gain - 1 for model, gain in gains.items() if gain > 1}
    lost = {model: gain for model, gain in gains.items() if gain <= 1}
    low, high = published["gain"]
    if won:
        yield (
            f"`tofu` is faster than the best of {', '.join(f'`{name}`' for name in ALTERNATIVES)} on {len(won)} of "
            f"{len(gains)} models, by {_range(won)} (Tofu: by {low:.0%} to {high:.0%}, with a few exceptions)"
        )
    if lost:
        listed = ", ".join(f"{model} ({best[model]}, {gain:.2f} of it)" for model, gain in lost.items())
        yield f"it is not on {listed}"
    for system, other in (("planned", "tofu"), ("zero-3", "tofu"), ("1f1b", "tofu")):
        ratios = _ratios(cells, models, system, other)
        if ratios:
            mean = geometric_mean(list(ratios.values()))
            yield f"`{system}` beside `{other}`: {_range(ratios)} of its samples per second, {mean:.0%} in the mean"
    halves = [row["halves_samples_per_s"] / row["samples_per_s"] for row in cells.values() if _is_of(row, "tofu")]
    if halves:
        yield f"if the boards are in two halves, `tofu` trains {min(halves):.0%} to {max(halves):.0%} of that"
    full = sum(_full(row) for row in cells.values())
    missing = sum((model, system) not in cells for model in models for system in COLOURS)
    unknown = f"; {missing} are not measured" if missing else ""
    yield f"{full} of {len(cells)} bars are out of memory with any batch{unknown}"


def _is_of(row: Row, system: str) -> bool:
    return bool(row["system"] == system and not _full(row))


def _full(row: Row) -> bool:
    return "samples_per_s" not in row


def _best(cells: Cells, model: str, systems: Sequence[str]) -> str | None:
    return max(
        (system for system in systems if rate(cells, model, system)),
        key=lambda system: rate(cells, model, system) or 0,
        default=None,
    )


def _ratios(cells: Cells, models: Sequence[str], system: str, other: str) -> dict[str, float]:
    pairs = {model: (rate(cells, model, system), rate(cells, model, other)) for model in models}
    return {model: a / b for model, (a, b) in pairs.items() if a and b}


def _range(ratios: Mapping[str, float]) -> str:
    return f"{min(ratios.values()):.0%} to {max(ratios.values()):.0%}"


def blocks(data: Any, models: Sequence[str], published: Mapping[str, Any]) -> dict[str, str]:
    """Return the tables that either family's page has, of all systems."""
    sending = [system for system in COLOURS if system not in ("ideal", "small-batch")]
    return {
        "verdict": verdict(data, models, published),
        "rates": rates_table(data, models, list(COLOURS)),
        "halves": rates_table(data, models, sending, "halves_samples_per_s"),
        "swapping": swapping_table(data, models),
        "batches": batches_table(data, models),
    }


Panels = Mapping[str, Mapping[str, str]]
"""Models by what is under them, by the panel's title."""


def picture(  # noqa: PLR0913 -- what is drawn, by name
    data: Any,
    title: str,
    panels: Panels,
    systems: Sequence[str],
    across: str,
    *,
    band: tuple[float, float] | None = None,
) -> str:
    """Draw rates relative to ideal; `band` is what the paper's text says of tofu's."""
    cells = by_cell(data)
    drawn = [
        Panel(
            name,
            {under: [_bar(cells, model, system) for system in systems] for under, model in models.items()},
            across,
            "samples per second / ideal",
            band,
        )
        for name, models in panels.items()
    ]
    note = "at each bar: samples per second over 8 GPUs; OOM: out of memory with any batch"
    note += f"; shaded: tofu's in Tofu's text, {band[0]:.0%} to {band[1]:.0%}" if band else ""
    colours = {system: COLOURS[system] for system in systems}
    return draw_bars(title, drawn, colours, columns=1, note=note, width=10)


def _bar(cells: Cells, model: str, system: str) -> Bar:
    share, ideal = rate(cells, model, system), rate(cells, model, "ideal")
    height = share / ideal if share and ideal else 0.0
    label = _said(cells, model, system)
    return Bar(system, height, label="?" if label == NOT_MEASURED else label)
