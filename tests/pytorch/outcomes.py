"""What becomes of a module that is trained beside its graph."""

from __future__ import annotations

import copy
import traceback
from collections import Counter
from pathlib import Path

import torch

from executor.torch.verification import STEPS, verified
from planner.errors import GraphError

OUTCOMES = ("right", "refused", "wrong", "bare")
RATE = 1e-3


def outcome_of(model):
    """Return one of OUTCOMES, and why; None for what PyTorch itself cannot train."""
    try:
        failure = verified(model, "sample").failure
    except GraphError as error:
        return ("refused", str(error)) if "\n" not in str(error) else ("bare", str(error))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
        return ("bare", why) if trains(model) else None
    return ("wrong", failure) if failure else ("right", "")


def trains(model):
    """Return True if PyTorch itself trains a model."""
    try:
        optimizer = sgd(module := copy.deepcopy(model.module))
        for _ in range(STEPS):
            optimizer.zero_grad()
            module(*model.inputs).backward()
            optimizer.step()
    except Exception:
        return False
    return True


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=RATE)


def summary(outcomes):
    """Return how many there are of each outcome, as one line."""
    counts = Counter(outcomes)
    return ", ".join(f"{counts[kind]} {kind}" for kind in OUTCOMES)
