"""Layouts: where every element of every tensor lies, which workers need it, and what must move."""

from planner.layout.communication import Collective, collectives
from planner.layout.exchange import Exchange, axes_name, by_axis, exchanged_by_axis
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
from planner.layout.region import Region, elements, local_shape
from planner.layout.signature import Signature, signatures
from planner.layout.split import Runs, eligible
from planner.layout.ways import (
    PARTIAL,
    REPLICATE,
    At,
    Layout,
    Placement,
    PlacementSet,
    Shard,
    Ways,
    parse_placement,
)

__all__ = [
    "EVERYWHERE",
    "PARTIAL",
    "REPLICATE",
    "SMALL_SUM",
    "TERMS",
    "At",
    "Collective",
    "Exchange",
    "Layout",
    "Placement",
    "PlacementSet",
    "Production",
    "Region",
    "Runs",
    "Shard",
    "Signature",
    "Strategy",
    "Ways",
    "axes_name",
    "by_axis",
    "can_split",
    "collectives",
    "computing",
    "elements",
    "eligible",
    "exchanged_by_axis",
    "fetch",
    "group_of",
    "local_shape",
    "needed",
    "owned",
    "owned_by_all",
    "parse_placement",
    "production",
    "signatures",
    "store",
]
