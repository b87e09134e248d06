"""Layouts: where every element of every tensor lies, which workers need it, and what must move."""

from planner.layout.communication import (
    Collective as Collective,
)
from planner.layout.communication import (
    Exchange as Exchange,
)
from planner.layout.communication import (
    axes_name as axes_name,
)
from planner.layout.communication import (
    by_axis as by_axis,
)
from planner.layout.communication import (
    collectives as collectives,
)
from planner.layout.communication import (
    exchanged_by_axis as exchanged_by_axis,
)
from planner.layout.geometry import (
    EVERYWHERE as EVERYWHERE,
)
from planner.layout.geometry import (
    SMALL_SUM as SMALL_SUM,
)
from planner.layout.geometry import (
    TERMS as TERMS,
)
from planner.layout.geometry import (
    Production as Production,
)
from planner.layout.geometry import (
    Strategy as Strategy,
)
from planner.layout.geometry import (
    can_split as can_split,
)
from planner.layout.geometry import (
    computing as computing,
)
from planner.layout.geometry import (
    fetch as fetch,
)
from planner.layout.geometry import (
    group_of as group_of,
)
from planner.layout.geometry import (
    needed as needed,
)
from planner.layout.geometry import (
    owned as owned,
)
from planner.layout.geometry import (
    owned_by_all as owned_by_all,
)
from planner.layout.geometry import (
    production as production,
)
from planner.layout.geometry import (
    store as store,
)
from planner.layout.region import (
    Region as Region,
)
from planner.layout.region import (
    Runs as Runs,
)
from planner.layout.region import (
    Signature as Signature,
)
from planner.layout.region import (
    elements as elements,
)
from planner.layout.region import (
    eligible as eligible,
)
from planner.layout.region import (
    local_shape as local_shape,
)
from planner.layout.region import (
    signatures as signatures,
)
from planner.layout.ways import (
    PARTIAL as PARTIAL,
)
from planner.layout.ways import (
    REPLICATE as REPLICATE,
)
from planner.layout.ways import (
    At as At,
)
from planner.layout.ways import (
    Layout as Layout,
)
from planner.layout.ways import (
    Placement as Placement,
)
from planner.layout.ways import (
    PlacementSet as PlacementSet,
)
from planner.layout.ways import (
    Shard as Shard,
)
from planner.layout.ways import (
    Ways as Ways,
)
from planner.layout.ways import (
    parse_placement as parse_placement,
)
