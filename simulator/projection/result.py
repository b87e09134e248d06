"""What a projection comes to: seconds by cause, memory, and what each stage takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from simulator.projection.memory import MemoryLine

IDEAL, INEFFICIENCY, RECOMPUTATION = "ideal compute", "kernel inefficiency", "recomputation"
"""Causes of a step's seconds: its kernels at the best rates that large ones attain, what they take longer, repeated."""

MODEL_PARALLEL, SHARDING = "exposed model parallel communication", "exposed ZeRO/FSDP communication"
"""Activations exchanged by tensor, context and expert parallel workers; weights gathered, gradients scattered."""

GRADIENTS, HOST, BUBBLE, UPDATE = "exposed gradient all-reduce", "host overhead", "pipeline bubble", "optimizer"
"""A bubble includes the messages between stages."""

STRAGGLERS, POWER = "waiting for the slowest device", "lower clock within the power limit"
INEFFICIENCY_AND_WAITING, COMMUNICATION = "kernel inefficiency and waiting", "exposed communication"
"""Causes of a step that was simulated message by message."""


@dataclass(frozen=True, slots=True)
class Projection:
    """A step as it is projected: seconds, and the memory of the device that has least to spare.

    `dtype` is what products are computed in, whose peak it is. `shares` are the seconds of the stage that decides, by
    cause; they add up to `seconds`. `model_operations` are those of the model's products, each once;
    `hardware_operations` those of all devices, with what several of them do alike and what is computed again. `stages`
    are the names of each stage's blocks, first and last, and the seconds of a micro-batch forward and backward.
    `sent_bytes` are what a device sends in a step, in the mean over devices, by the axes along which it and the
    receiver differ. `kernels` are a device's seconds by their class, in the mean over stages.
    """

    seconds: float
    samples: int
    devices: int
    micro_batches: int
    model_operations: float
    hardware_operations: float
    dtype: str
    peak_flop_per_s: float
    shares: Mapping[str, float]
    memory: tuple[MemoryLine, ...]
    capacity_bytes: float
    stages: tuple[StageLine, ...]
    sent_bytes: Mapping[str, int]
    kernels: Mapping[str, float] = field(default_factory=dict)

    @property
    def samples_per_s(self) -> float:
        """Samples a second, of all devices."""
        return self.samples / self.seconds

    @property
    def flop_per_s_per_device(self) -> float:
        """Operations of the model's products a second, by device."""
        return self.model_operations / self.seconds / self.devices

    @property
    def utilisation(self) -> float:
        """The share of the device's peak that the model's products attain."""
        return self.flop_per_s_per_device / self.peak_flop_per_s

    @property
    def needed_bytes(self) -> int:
        """What the fullest device needs."""
        return sum(line.nbytes for line in self.memory)

    @property
    def fits(self) -> bool:
        """Whether memory holds it."""
        return self.needed_bytes <= self.capacity_bytes

    @property
    def margin_bytes(self) -> float:
        """What is left, or lacking."""
        return self.capacity_bytes - self.needed_bytes

    @property
    def roof_factor(self) -> float:
        """How many times as long it takes as its kernels at the best rates that large ones attain."""
        return self.seconds / self.shares[IDEAL]


@dataclass(frozen=True, slots=True)
class StageLine:
    """A stage: its first and last block, seconds of a micro-batch, bytes of memory."""

    first: str
    last: str
    forward_s: float
    backward_s: float
    needed_bytes: int
