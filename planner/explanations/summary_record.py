"""The summary of a plan as one record: written as JSON, or shown in tables that stay short for any number of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from planner.grouping import grouped, summed
from tensor_partitioner import display
from tensor_partitioner.display import Shown, grid, percent, quantity, seconds, table

PARAMETERS_SHOWN, PRODUCTS_SHOWN, CAUSES_SHOWN, LAYERS_SHOWN, SECONDS_SHOWN = 8, 5, 5, 3, 6
VECTORS = "norms, biases"
SHARE_SHOWN = 0.0005
"""Causes below this fraction of all bytes are shown together."""


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters of equivalent layers with equal layouts, and their optimizer state.

    `layer` is their part of the network, such as `h.*` or `embedding`. `pattern` is a glob that matches `names`;
    `layers` is the number of layers with a parameter of this name. `dtensor` has an entry per step and describes the
    parameter in the dimensions of its module. `megatron` and `fsdp` are empty if these engines have no term.
    `held_bytes` and `state_held_bytes` are the parameters and their state on the worker that holds most of both.
    """

    pattern: str
    layer: str
    names: tuple[str, ...]
    layers: int
    shape: tuple[int, ...]
    dtype: str
    layout: tuple[str, ...]
    split: str
    state_split: str
    dtensor: tuple[str, ...]
    megatron: str
    fsdp: str
    is_contracted: bool
    nbytes: int
    held_bytes: int
    state_held_bytes: int


@dataclass(frozen=True, slots=True)
class OperatorGroup:
    """Nodes of equivalent layers with one strategy, and the bytes moved for them; `phase`: forward, backward, update.

    `seconds` is predicted for all of them together; None if unknown.
    """

    pattern: str
    layer: str
    op: str
    phase: str
    names: tuple[str, ...]
    strategy: tuple[str, ...]
    split: str
    is_contraction: bool
    nbytes: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """Why bytes move: `kind` is the purpose, `layers` the part of the network."""

    kind: str
    layers: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Spent:
    """Predicted seconds of an iteration, for a part of the network or a level of the machine."""

    what: str
    seconds: float


@dataclass(frozen=True, slots=True, repr=False)
class Summary(Shown):
    """Summary of a plan: `parameters` and `operators` in the order of the model, `causes` with most bytes first.

    `held_bytes` and `state_held_bytes` are the parameters and optimizer state on the worker that holds most of both.
    """

    model: str
    workers: int
    ways: tuple[int, ...]
    total_bytes: int
    parameters: tuple[ParameterGroup, ...]
    operators: tuple[OperatorGroup, ...]
    causes: tuple[Cause, ...]
    seconds: tuple[Spent, ...]
    held_bytes: int
    state_held_bytes: int


@display.tables.register
def tables(summary: Summary) -> tuple[Table, ...]:
    """Return the tables of a summary."""
    spent = (seconds_table(summary),) if summary.seconds else ()
    return (parameters_table(summary), operators_table(summary), causes_table(summary), *spent)


def parameters_table(summary: Summary) -> Table:
    """Return the table of how parameters are split; parameters read only element by element share a row per split."""
    kinds: dict[tuple[str, ...], list[ParameterGroup]] = {}
    for group in sorted(summary.parameters, key=lambda group: not group.is_contracted):
        name = group.pattern if group.is_contracted else VECTORS
        kinds.setdefault((name, group.split, _known_as(group)), []).append(group)
    rows = [_parameter_row(groups) for groups in list(kinds.values())[:PARAMETERS_SHOWN]]
    if more := [group for groups in list(kinds.values())[PARAMETERS_SHOWN:] for group in groups]:
        rows.append([f"{sum(len(group.names) for group in more)} more", *_held(more), "", ""])
    held = summary.held_bytes, summary.state_held_bytes
    rows.append(["fullest worker holds", *(quantity(nbytes, "B") for nbytes in held), "", ""])
    columns = ["parameters", "held", "state", "split", "known as"]
    title = f"how parameters are split over {grid(summary.ways)} workers"
    return table(title, columns, rows, text=("split", "known as"))


def _parameter_row(groups: Sequence[ParameterGroup]) -> list[str]:
    first, names = groups[0], [name for group in groups for name in group.names]
    if len(names) == 1:
        title = names[0]
    elif first.is_contracted:
        layers = max(group.layers for group in groups)
        title = first.pattern if len(names) >= layers else f"{first.pattern}, {len(names)} of {layers}"
    else:
        title = f"{len(names)} {VECTORS}"
    return [title, *_held(groups), first.split, _known_as(first)]


def _held(groups: Sequence[ParameterGroup]) -> tuple[str, str]:
    held = sum(group.held_bytes for group in groups), sum(group.state_held_bytes for group in groups)
    return quantity(held[0], "B"), quantity(held[1], "B")


def _known_as(group: ParameterGroup) -> str:
    return ", ".join(filter(None, (group.fsdp, group.megatron)))


def operators_table(summary: Summary) -> Table:
    """Return the table of how forward products are split, a row per split, and the most frequent split of others."""
    splits: dict[str, list[OperatorGroup]] = {}
    others: dict[str, list[OperatorGroup]] = {}
    for group in summary.operators:
        if group.phase == "forward" and group.is_contraction:
            splits.setdefault(group.split, []).append(group)
        else:
            name = "other operators" if group.phase == "forward" else OTHERS[group.phase]
            others.setdefault(name, []).append(group)
    rows = [_products_row(groups) for groups in list(splits.values())[:PRODUCTS_SHOWN]]
    if more := [group for groups in list(splits.values())[PRODUCTS_SHOWN:] for group in groups]:
        rows.append(_others_row("more products", more))
    rows += [_others_row(name, groups) for name, groups in others.items()]
    return table("how operators are split", ["operators", "bytes", "split"], rows, text=("split",))


OTHERS = {"backward": "of the backward pass", "update": "of the update"}


def _products_row(groups: Sequence[OperatorGroup]) -> list[str]:
    patterns = list(dict.fromkeys(group.pattern for group in groups))
    names = f"{patterns[0]} and {len(patterns) - 1} more" if len(patterns) > 2 else ", ".join(patterns)
    return [names, quantity(sum(group.nbytes for group in groups), "B"), groups[0].split]


def _others_row(name: str, groups: Sequence[OperatorGroup]) -> list[str]:
    splits = summed((group.split, len(group.names)) for group in groups)
    (split, number), total = splits.most_common(1)[0], splits.total()
    how = split if number == total else f"{split} ({number} of {total})"
    return [f"{total} {name}", quantity(sum(group.nbytes for group in groups), "B"), how]


def causes_table(summary: Summary) -> Table:
    """Return the table of why bytes move, and for which parts of the network most."""
    kinds = grouped((cause.kind, cause) for cause in summary.causes)
    totals = {kind: sum(cause.nbytes for cause in causes) for kind, causes in kinds.items()}
    least = SHARE_SHOWN * summary.total_bytes
    shown = [kind for kind in sorted(kinds, key=lambda kind: -totals[kind])[:CAUSES_SHOWN] if totals[kind] >= least]
    rows = []
    for kind in shown:
        largest = ", ".join(f"{each.layers} {quantity(each.nbytes, 'B')}" for each in kinds[kind][:LAYERS_SHOWN])
        rows.append([kind, quantity(totals[kind], "B"), percent(totals[kind] / summary.total_bytes), largest])
    if (rest := summary.total_bytes - sum(totals[kind] for kind in shown)) >= least and rest:
        rows.append(["other", quantity(rest, "B"), percent(rest / summary.total_bytes), ""])
    columns = ["for", "bytes", "share", "most for"]
    return table("why bytes move", columns, rows, text=("most for",))


def seconds_table(summary: Summary) -> Table:
    """Return the table of where predicted seconds go."""
    largest = sorted(summary.seconds, key=lambda spent: -spent.seconds)
    rows = [[spent.what, seconds(spent.seconds)] for spent in largest[:SECONDS_SHOWN]]
    if more := largest[SECONDS_SHOWN:]:
        rows.append([f"{len(more)} more", seconds(sum(spent.seconds for spent in more))])
    return table("where predicted seconds go", ["for", "seconds"], rows)
