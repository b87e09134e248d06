"""The graphs whose tasks stand for all others: small ones of every kind, at sizes apart from each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from planner import model, plan
from planner.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class Probe:
    """A model of the zoo and its options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def plan(self, workers: int) -> Plan:
        """Plan it."""
        return plan(model(self.name, **self.options), workers=workers)


_PICTURES = {"channels": 16, "classes": 16}
PROBES = (
    Probe("mlp-2-192", {"batch": 64}),
    Probe("mlp-2-1280", {"batch": 320}),
    Probe("cnn-3-24", {"batch": 16, "image": 24, **_PICTURES}),
    Probe("cnn-3-96", {"batch": 32, "image": 28, **_PICTURES}),
    Probe("wresnet-26-1.25", {"batch": 16, "image": 40, "classes": 32}),
    Probe("wresnet-14-1.5", {"batch": 48, "image": 12, "classes": 10}),
    Probe("rnn-1-320", {"batch": 48}),
    Probe("transformer-2-384", {"batch": 4, "sequence": 96, "vocabulary": 6000}),
)
