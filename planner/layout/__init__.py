"""Layouts: where every element of every tensor lies, which workers need it, and what must move."""

from planner.layout.communication import (
    Collective as Collective,
    Exchange as Exchange,
    axes_name as axes_name,
    by_axis as by_axis,
    collectives as collectives,
    exchanged_by_axis as exchanged_by_axis,
)
from planner.layout.geometry import (
    EVERYWHERE as EVERYWHERE,
    SMALL_SUM as SMALL_SUM,
    TERMS as TERMS,
    Production as Production,
    Strategy as Strategy,
    can_split as can_split,
    computing as computing,
    fetch as fetch,
    group_of as group_of,
    needed as needed,
    owned as owned,
    owned_by_all as owned_by_all,
    production as production,
    store as store,
)
from planner.layout.region import (
    Region as Region,
    Runs as Runs,
    Signature as Signature,
    elements as elements,
    eligible as eligible,
    local_shape as local_shape,
    signatures as signatures,
)
from planner.layout.ways import (
    PARTIAL as PARTIAL,
    REPLICATE as REPLICATE,
    At as At,
    Layout as Layout,
    Placement as Placement,
    PlacementSet as PlacementSet,
    Shard as Shard,
    Ways as Ways,
    parse_placement as parse_placement,
)
