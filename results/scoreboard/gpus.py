"""Which type of device a GPU's name means: "NVIDIA_A100-SXM4-80GB", "A100 80GB" or "a100-sxm4-80gb"."""

from __future__ import annotations

import re

from results.scoreboard.cells import SetError, words
from tensor_partitioner.display import nearest
from topologies.load import commonness
from topologies.reading import device_names

FORM = {"sxm": "sxm", "hbm3": "sxm", "nvlink": "sxm", "hgx": "sxm", "dgx": "sxm", "pcie": "pcie", "nvl": "nvl"}
"""What says how a GPU is mounted; the driver calls an H100 in a socket "HBM3"."""

FAMILY = re.compile(r"[a-z]{0,4}\d{1,4}[a-z]{0,2}")
MAKERS = {"nvidia", "tesla", "amd", "instinct", "geforce", "gpu", "gpus", "graphics", "accelerator", "core", "tensor"}


def find_device(name: str) -> str:
    """Return the type of device that a GPU's name means; where it leaves the form or memory open, the commonest.

    In a socket goes before on a card, and more memory before less. Raises SetError where no type has what is said.
    """
    if name in device_names():
        return name
    asked = _parts(name)
    fitting = [device for device in device_names() if _fits(asked, _parts(device))]
    if not fitting:
        known, hint = ", ".join(device_names()), nearest(asked[0], {_parts(device)[0] for device in device_names()})
        raise SetError(f"no type of device is a {name}: expected one of {known}, or a machine of your own{hint}")
    return max(fitting, key=commonness)


def _fits(asked: tuple[str, str, int], offered: tuple[str, str, int]) -> bool:
    family, form, gigabytes = asked
    return (
        family in {offered[0], offered[0].removeprefix("rtx").removeprefix("gtx")}
        and (not form or not offered[1] or form == offered[1])
        and (not gigabytes or not offered[2] or gigabytes == offered[2])
    )


def _parts(name: str) -> tuple[str, str, int]:
    """Return family, form and GB of memory, as far as a name says them."""
    family, form, gigabytes, prefix = "", "", 0, ""
    for word in words(re.sub(r"(?i)(\d)\s+(gi?b)\b", r"\1\2", name)).split():
        mounted = next((FORM[key] for key in FORM if re.fullmatch(rf"{key}\d?", word)), "")
        memory = re.fullmatch(r"(\d+)gi?b?", word)
        if mounted:
            form = mounted
        elif memory:
            gigabytes = int(memory[1])
        elif word in {"rtx", "gtx"}:
            prefix = word
        elif word not in MAKERS and not family and FAMILY.fullmatch(word):
            family = word
    return prefix + family.removeprefix(prefix), form, gigabytes
