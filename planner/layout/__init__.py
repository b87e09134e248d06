"""Layouts: where every element of every tensor lies, who needs it, and what must move."""

from planner.layout.axes import axes_name, by_axis, exchanged_by_axis
from planner.layout.communication import Collective, Group, collective, collectives
from planner.layout.exchange import Exchange
from planner.layout.geometry import (
    EVERYWHERE,
    SMALL_SUM,
    TERMS,
    Production,
    Strategy,
    can_split,
    computing,
    fetch,
    group_of,
    needed,
    owned,
    owned_by_all,
    production,
    store,
)
from planner.layout.placement import (
    PARTIAL,
    REPLICATE,
    At,
    Layout,
    Placement,
    PlacementSet,
    Replicate,
    Shard,
    format_layout,
    parse_placement,
)
from planner.layout.region import Region, elements, local_shape
from planner.layout.signature import Signature, signatures
from planner.layout.split import Runs, eligible, iteration_runs, part
from planner.layout.ways import Ways

__all__ = [
    "EVERYWHERE",
    "PARTIAL",
    "REPLICATE",
    "SMALL_SUM",
    "TERMS",
    "At",
    "Collective",
    "Exchange",
    "Group",
    "Layout",
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
    "axes_name",
    "by_axis",
    "can_split",
    "collective",
    "collectives",
    "computing",
    "elements",
    "eligible",
    "exchanged_by_axis",
    "fetch",
    "format_layout",
    "group_of",
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
]
