"""What products that are computed in single precision would gain in half, and how that is tried."""

from __future__ import annotations

from planner.models.trained import PRECISIONS
from topologies.machine import Device

SINGLE = "float32"
MODULE = "by torch.autocast around the forward pass of a module"


def hint(dtype: str, device: Device) -> str:
    """Return a sentence on what half precision has a device peak at, for a model in single precision; "" for others.

    >>> from topologies import load_topology
    >>> device = load_topology("dgx-a100").devices[0]
    >>> hint("float32", device).partition(":")[0], hint("bfloat16", device)
    ('Products are in float32 without TF32, the peak in bfloat16 is 16 times as high', '')
    """
    rates = device.spec.peak_flop_per_s.by_dtype()
    half, precision = next((pair for pair in PRECISIONS if pair[0] in rates), (SINGLE, ""))
    if dtype != SINGLE or rates.get(half, 0.0) <= rates.get(SINGLE, 0.0):
        return ""
    return (
        f"Products are in {SINGLE} without TF32, the peak in {half} is {rates[half] / rates[SINGLE]:.2g} times as "
        f"high: --dtype {precision} tries it, {MODULE}."
    )
