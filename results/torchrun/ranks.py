"""What is run on ranks of torchrun, and how."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from results.experiment import ROOT

WAYS: Mapping[int, tuple[int, ...]] = {2: (2,), 4: (2, 2), 8: (2, 2, 2)}
"""How workers are divided, by their number."""

STEPS, RATE = 3, 0.05
TIMED = 2
"""Ranks whose steps are timed."""


def torchrun(ranks: int, *command: object) -> list[str]:
    """Return the command that runs a module on ranks of this host."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*launcher, "-m", *map(str, command)]


def on_ranks(ranks: int, *command: object) -> Any:
    """Run a module on ranks of this host; return the JSON that its rank 0 prints."""
    done = subprocess.run(torchrun(ranks, *command), check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])
