"""Decisions for several values of options and machines: one row for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import msgspec
from rich.table import Table

from planner.errors import GraphError, InputError, PlanError
from planner.models import model_options
from simulator.projection.network import cluster
from tensor_partitioner import display
from tensor_partitioner.decision.answer import rate
from tensor_partitioner.decision.deciding import decide
from tensor_partitioner.decision.record import Decision
from tensor_partitioner.launch.launch import SWITCHES
from topologies import TopologyError
from topologies.load import LINE, line_of

OF_MACHINE = ("topo", "nodes", "devices", "device", "nic")
"""What can vary in a machine: the machine, its number of nodes or devices, their type, the Gbit/s of each adapter."""

FAMILY = re.compile(r"(.+-)([1-9]\d*)")
TRILLION, MILLION, SECONDS_PER_HOUR = 1e12, 1e6, 3600
NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kKmM]?)")
SCALES = {"": 1, "k": 1024, "m": 1024**2}
COLUMNS = ("strategy", "samples", "step", "pace", "MFU", "memory")
WHOLE = {"nodes": r"[1-9]\d*", "devices": r"[1-9]\d*", "nic": r"[1-9]\d*G?"}


class Varied(msgspec.Struct, frozen=True, kw_only=True):
    """A combination of values, as they were written, and its decision, or the error.

    `price` is in dollars per trillion tokens, or per million samples for models without sequences.
    """

    values: dict[str, str]
    decision: Decision | None = None
    error: str = ""
    price: float | None = None


def read_varied(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Read values to vary, as in `batch=8,16`. Raises InputError for an unknown name."""
    known = ("stack", *OF_MACHINE, *model_options())
    varied: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        name = name.strip().replace("-", "_")
        chosen = tuple(value.strip() for value in values.split(";" if ";" in values else ","))
        if name == "stack" and any("=" in value and "," not in value for value in chosen):
            raise InputError(f"--vary: expected ';' between stacks, as in 'nemo;megatron,jitter=0', found {text!r}")
        if name not in known or not all(chosen):
            shown = ", ".join(of.replace("_", "-") for of in known)
            raise InputError(f"--vary: expected NAME=VALUE,VALUE with one of the names {shown}; found {text!r}")
        if name in varied:
            raise InputError(f"--vary: expected {name} once, found it twice")
        varied[name] = chosen
    return varied


def decide_combinations(
    model: str, machine: str, varied: Mapping[str, Sequence[str]], prices: Mapping[str, float],
    done: Callable[[], None], **options: Any,
) -> tuple[Varied, ...]:  # fmt: skip
    """Decide for every combination of values.

    `options` are passed to `decide`; `prices` are dollars per device-hour, by device type. The price of "" applies to
    all other types. `done` is called after each decision. Raises InputError if a value cannot be read, if no
    combination can be decided, or if there is a price for a type that none has.
    """
    read = {name: [_value(name, text) for text in texts] for name, texts in varied.items()}
    cells = []
    for chosen, given in zip(product(*varied.values()), product(*read.values()), strict=True):
        values = dict(zip(varied, chosen, strict=True))
        others = {name: value for name, value in zip(varied, given, strict=True) if name not in OF_MACHINE}
        try:
            decision = decide(model, machine_of(machine, values), **{**options, **others})
            cells.append(Varied(values=values, decision=decision, price=_price(decision, prices)))
        except (GraphError, PlanError, TopologyError) as error:
            cells.append(Varied(values=values, error=str(error)))
        done()
    types = {cell.decision.machine.device for cell in cells if cell.decision is not None}
    if not types:
        raise InputError(cells[0].error)
    priced = {"", *types, *(name.partition("-")[0] for name in types)}
    if unpriced := [name for name in prices if name not in priced]:
        raise InputError(f"--price-per-hour {unpriced[0]}: expected a type of {', '.join(sorted(types))}")
    return tuple(cells)


def machine_of(machine: str, values: Mapping[str, str]) -> str:
    """Return the name or description of `machine` with other values: nodes or devices, device type, network rate."""
    machine = line_of(values.get("topo", machine))
    family = FAMILY.fullmatch(machine)
    if "devices" in values:
        if "nodes" in values:
            raise InputError("--vary devices: expected no --vary nodes beside it, which says the same")
        count, each = int(values["devices"]), cluster(machine).per_node
        if count % each:
            raise InputError(f"--vary devices: expected multiples of {each}, found {count}")
        values = {**values, "nodes": str(count // each)}
    if {"device", "nic"} & values.keys():
        match, built = LINE.fullmatch(machine), cluster(machine)
        per_node = built.per_node if match is None else match["count"]
        nodes = values.get("nodes", str(built.devices // int(per_node)))
        device = values.get("device", built.built.devices[0].spec.name)
        rate = values.get("nic", "" if match is None else match["rate"] or "").removesuffix("G")
        return f"{nodes} x {per_node} x {device}{f', {rate}G' if rate else ''}"
    if "nodes" not in values:
        return machine
    if (match := LINE.fullmatch(machine)) is not None:
        rate = f", {match['rate']}G" if match["rate"] else ""
        return f"{values['nodes']} x {match['count']} x {match['type']}{rate}"
    if family is None or "node" not in family[1]:
        of = "devices" if "devices" in values else "nodes"
        raise InputError(f"--vary {of}: expected a machine of several nodes, as in hgx-h100-nodes-8, found {machine}")
    return f"{family[1]}{values['nodes']}"


def _value(name: str, text: str) -> object:
    """Return the value of an option. A number may end in k or m."""
    option = model_options().get(name)
    match = NUMBER.fullmatch(text)
    if name in WHOLE and not re.fullmatch(WHOLE[name], text):
        raise InputError(f"--vary {name}: expected whole numbers above 0, found {text!r}")
    if option is None or option.kind == "str":
        return text
    if option.kind == "bool":
        if text not in SWITCHES:
            raise InputError(f"--vary {name}: expected true or false, found {text!r}")
        return SWITCHES[text]
    if match is None:
        raise InputError(f"--vary {name}: expected numbers, found {text!r}")
    number = float(match[1]) * SCALES[match[2].lower()]
    if option.kind == "int" and not (number.is_integer() and number > 0):
        raise InputError(f"--vary {name}: expected whole numbers above 0, found {text!r}")
    return int(number) if option.kind == "int" else number


def _price(decision: Decision, prices: Mapping[str, float]) -> float | None:
    """Return dollars per trillion tokens, or per million samples; None without a price, or if nothing fits."""
    device, best = decision.machine.device, decision.best
    hourly = next((prices[name] for name in (device, device.partition("-")[0], "") if name in prices), None)
    if hourly is None or not best.fits:
        return None
    a_second = hourly * decision.machine.devices / SECONDS_PER_HOUR
    if best.tokens_per_s is None:
        return a_second * MILLION / best.samples_per_s
    return a_second * TRILLION / best.tokens_per_s


def varied_table(title: str, cells: Sequence[Varied]) -> Table:
    """Return a table with a row for each combination: the best candidate, or the error."""
    names = [name.replace("_", "-") for name in cells[0].values]
    priced = any(cell.price is not None for cell in cells)
    tokens = any(cell.decision is not None and cell.decision.best.tokens_per_s is not None for cell in cells)
    rows = [[*cell.values.values(), *_figures(cell, priced=priced)] for cell in cells]
    heads = [*names, *COLUMNS, *(["$/1e12 tokens" if tokens else "$/1e6 samples"] if priced else [])]
    return display.table(title, heads, rows, keys=len(names), text=("strategy",))


def _figures(cell: Varied, *, priced: bool) -> Iterator[str]:
    if cell.decision is None:
        yield from (f"error: {cell.error}", *[""] * (len(COLUMNS) - 1 + priced))
        return
    best = cell.decision.best
    step = display.seconds(best.seconds_per_step) if best.fits else "does not fit"
    yield from (best.parallel or best.family, str(cell.decision.model.batch), step, rate(best))
    yield from (f"{best.utilisation:.1%}", display.quantity(best.needed_bytes, "B"))
    if priced:
        yield "" if cell.price is None else f"{cell.price:,.0f}"
