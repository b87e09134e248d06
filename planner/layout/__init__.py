"""Layouts: where every element of every tensor lies, who needs it, and what must move."""

from planner.layout.exchange import Exchange, count
from planner.layout.geometry import (
    EVERYWHERE,
    TERMS,
    Production,
    Strategy,
    can_split,
    fetch,
    needed,
    owned,
    owned_by_all,
    production,
    store,
)
from planner.layout.placement import (
    PARTIAL,
    REPLICATE,
    Layout,
    Partial,
    Placement,
    Replicate,
    Shard,
    format_layout,
    parse_placement,
)
from planner.layout.region import Region, elements, local_shape
from planner.layout.signature import Signature, signatures, told_apart
from planner.layout.split import Runs, digits, divided, eligible, first_steps, iteration_runs, part, shares_of

__all__ = [
    "EVERYWHERE",
    "PARTIAL",
    "REPLICATE",
    "TERMS",
    "Exchange",
    "Layout",
    "Partial",
    "Placement",
    "Production",
    "Region",
    "Replicate",
    "Runs",
    "Shard",
    "Signature",
    "Strategy",
    "can_split",
    "count",
    "digits",
    "divided",
    "elements",
    "eligible",
    "fetch",
    "first_steps",
    "format_layout",
    "iteration_runs",
    "local_shape",
    "needed",
    "owned",
    "owned_by_all",
    "parse_placement",
    "part",
    "production",
    "shares_of",
    "signatures",
    "store",
    "told_apart",
]
