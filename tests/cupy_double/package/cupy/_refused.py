"""What the double refuses, as a machine that lacks it would: words in CUPY_DOUBLE_REFUSES, separated by commas.

`driver` is too old for the toolkit; `nvrtc`, `cublas` and `nccl` are libraries that are not there; `nccl init` does not
come about; devices share no memory (`ipc`), or others' memory cannot be opened (`ipc open`); `null` is any work on the
null stream. Of one rank alone, its number follows behind a colon.
"""

import os

RANK = next((os.environ[name] for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "RANK") if name in os.environ), "0")
WORDS = (word.partition(":") for word in os.environ.get("CUPY_DOUBLE_REFUSES", "").split(","))
REFUSED = {what for what, _, rank in WORDS if rank in ("", RANK)}


def refuse(what, message, kind=RuntimeError):
    """Raise an error of CuPy's if the double is to refuse something."""
    if what in REFUSED:
        raise kind(message)
