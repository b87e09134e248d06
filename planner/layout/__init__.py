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
    PlacementSet,
    Replicate,
    Shard,
    format_layout,
    parse_placement,
)
from planner.layout.region import Region, elements, local_shape
from planner.layout.signature import Signature, signatures, told_apart
from planner.layout.split import Runs, eligible, iteration_runs, part
from planner.layout.ways import Ways

__all__ = [
    "EVERYWHERE",
    "PARTIAL",
    "REPLICATE",
    "TERMS",
    "Exchange",
    "Layout",
    "Partial",
    "Placement",
    "PlacementSet",
    "Production",
    "Region",
    "Replicate",
    "Runs",
    "Shard",
    "Signature",
    "Strategy",
    "Ways",
    "can_split",
    "count",
    "elements",
    "eligible",
    "fetch",
    "format_layout",
    "iteration_runs",
    "local_shape",
    "needed",
    "owned",
    "owned_by_all",
    "parse_placement",
    "part",
    "production",
    "signatures",
    "store",
    "told_apart",
]
