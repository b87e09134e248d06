"""The plans on which transports are compared to the bit: small models, every kind of ways, every set of placements."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from planner.models import build
from planner.plans.plan import Plan
from planner.search import SearchOptions, search

MODELS: dict[str, tuple[str, dict[str, int]]] = {
    "mlp": ("mlp-2-12", {"batch": 8}),
    "cnn": ("cnn-5-4", {"batch": 4, "image": 6, "classes": 6}),
    "wresnet": ("wresnet-14-0.0625", {"batch": 8, "image": 8, "channels": 1, "classes": 10}),
    "rnn": ("rnn-2-6", {"batch": 4, "unroll": 3, "input_width": 5, "classes": 7}),
    "transformer": ("transformer-2-16", {"batch": 4, "sequence": 8, "vocabulary": 16, "heads": 4}),
}
WAYS = ((2,), (2, 2), (2, 2, 2), (3, 2), (7,))
PLACEMENTS = ("S", "S,R", "S,R,P")

STEPS = 2
RUNS = (
    ("p2p", "together", 1),
    ("shared", "together", 0),
    ("shared", "together", 1),
    ("shared", "together", 2),
    ("shared", "apart", 1),
    ("shared", "together", 1),
)
"""Transport; whether every second rank is taken for one of another host; prefetch. One comes twice."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One plan."""

    model: str
    ways: tuple[int, ...]
    placements: str

    @property
    def name(self) -> str:
        """What its file is called."""
        return f"{self.model}-{'x'.join(map(str, self.ways))}-{self.placements.replace(',', '')}"

    @property
    def workers(self) -> int:
        """How many ranks run it."""
        return prod(self.ways)

    def plan(self) -> Plan:
        """Search for it."""
        name, options = MODELS[self.model]
        return search(build(name, **options), SearchOptions(self.ways, "recursive", self.placements))


CELLS = tuple(Cell(*values) for values in product(MODELS, WAYS, PLACEMENTS))


def differences(outcome: dict[str, Any]) -> list[str]:
    """Say in what the runs of a plan differ from each other, or from what was planned."""
    runs = outcome["runs"]
    checks = {
        "results": len({run["digest"] for run in runs}) == 1,
        "bytes": all(run["bytes"] == outcome["planned"] for run in runs),
        "arenas": all(run["arenas"] == run["predicted arenas"] for run in runs),
    }
    return [what for what, same in checks.items() if not same]
