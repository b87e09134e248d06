"""The result of a prediction: seconds by cause, memory, and the cost of each stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from simulator.projection.memory import MemoryLine

IDEAL, INEFFICIENCY, RECOMPUTATION = "ideal compute", "kernel inefficiency", "recomputation"
"""Causes of a step's seconds: kernels at the best attainable rates, what they take beyond that, and repeated work."""

MODEL_PARALLEL, SHARDING = "exposed model parallel communication", "exposed ZeRO/FSDP communication"
"""Exchanges of activations by tensor, context and expert parallel workers; gathers of weights, scatters of gradients.
"""

ALL_REDUCE, HOST, BUBBLE, UPDATE = "exposed gradient all-reduce", "host overhead", "pipeline bubble", "optimizer"
"""The bubble includes the messages between stages."""

STRAGGLERS, POWER = "waiting for the slowest device", "lower clock within the power limit"
INEFFICIENCY_AND_WAITING, COMMUNICATION = "kernel inefficiency and waiting", "exposed communication"
"""Causes of a step that is simulated message by message."""


@dataclass(frozen=True, slots=True)
class Projection:
    """A predicted step: seconds, and the memory of the device with the least to spare.

    `dtype` is that of products, which the peak rate belongs to. `shares` are the seconds of the critical stage, by
    cause; they sum to `seconds`. `model_operations` counts the flop of the model's products once; `hardware_operations`
    counts those of all devices, including replicated and repeated work. `stages` has the names of the first and last
    block of each stage, and the seconds of its forward and backward passes. `sent_bytes` are the bytes that a device
    sends in a step, averaged over devices, by the axes along which sender and receiver differ. `kernels` are the
    seconds of a device's kernels by class, averaged over stages.
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
        """Samples per second of all devices."""
        return self.samples / self.seconds

    @property
    def flop_per_s_per_device(self) -> float:
        """Flop of the model's products per second and device."""
        return self.model_operations / self.seconds / self.devices

    @property
    def utilisation(self) -> float:
        """Fraction of the device's peak rate that the model's products attain (MFU)."""
        return self.flop_per_s_per_device / self.peak_flop_per_s

    @property
    def needed_bytes(self) -> int:
        """Bytes that the fullest device needs."""
        return sum(line.nbytes for line in self.memory)

    @property
    def fits(self) -> bool:
        """True if the memory of the fullest device suffices."""
        return self.needed_bytes <= self.capacity_bytes

    @property
    def margin_bytes(self) -> float:
        """Bytes that remain free; negative if the memory does not suffice."""
        return self.capacity_bytes - self.needed_bytes

    @property
    def roof_factor(self) -> float:
        """Ratio of the step to the time of its kernels at the best attainable rates."""
        return self.seconds / self.shares[IDEAL]


@dataclass(frozen=True, slots=True)
class StageLine:
    """A stage: its first and last block, the seconds of a micro-batch forward and backward, and bytes of memory."""

    first: str
    last: str
    forward_s: float
    backward_s: float
    needed_bytes: int
