"""The levels of a machine under a plan's steps: how fast traffic crosses between the groups of each step.

Workers are numbered by their digits, the first step's the most significant; traffic of step i runs between workers
whose digits first differ at step i (Tofu, Sec 5.2).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from topologies.machine import Machine


@dataclass(frozen=True, slots=True)
class Level:
    """One step's level.

    `bandwidth_bytes_per_s` is what all workers together move when every pair of the level sends equally, at once;
    `latency_s` the longest route's, `message_s` what a message of every pair takes them beyond its bytes.
    """

    ways: int
    bandwidth_bytes_per_s: float
    latency_s: float
    message_s: float


def levels(machine: Machine, ways: Sequence[int]) -> tuple[Level, ...]:
    """One level per step, in order; raises `TopologyError` where the machine has too few devices."""
    machine.require_devices(math.prod(ways))
    return tuple(_level(machine, tuple(ways), step) for step in range(len(ways)))


def _level(machine: Machine, ways: tuple[int, ...], step: int) -> Level:
    workers = math.prod(ways)
    inner = math.prod(ways[step + 1 :])
    group = inner * ways[step]
    pairs = [
        (u, w) for u in range(workers) for w in range(workers) if u // group == w // group and u // inner != w // inner
    ]
    load: defaultdict[int, float] = defaultdict(float)
    for pair in pairs:
        for resource, amount in machine.route(*pair).uses:
            load[resource] += amount
    if not pairs:
        return Level(ways[step], math.inf, 0.0, 0.0)
    seconds = max(amount / machine.resources[resource].capacity for resource, amount in load.items())
    routes = [machine.route(*pair) for pair in pairs]
    latency_s = max(route.latency_s for route in routes)
    message_s = seconds * max(route.half_bandwidth_bytes for route in routes)
    return Level(ways[step], len(pairs) / seconds, latency_s, message_s)
