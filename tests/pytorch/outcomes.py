"""What becomes of a module that is trained beside its graph."""

from __future__ import annotations

import copy
import logging
import traceback
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import torch

from executor.torch.verification import STEPS, UNTRAINED, verified
from planner.errors import GraphError
from planner.pytorch.arguments import LOGGER, DefectError
from planner.pytorch.user_model import UserModel

OUTCOMES = ("right", "refused", "wrong", "bare")
RATE = 1e-3


def outcome_of(model):
    """Return one of OUTCOMES, and why; None for what PyTorch itself cannot train."""
    with defects() as met:
        result = _outcome_of(model)
    return ("bare", met[0]) if met and result and result[0] != "wrong" else result


@contextmanager
def defects():
    """Within, yields a list of the defects that the import met, those that did no harm as well."""
    met, level = [], LOGGER.level
    handler = logging.Handler(logging.DEBUG)
    handler.emit = lambda record: met.append(record.getMessage())
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG)
    try:
        yield met
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)


def _outcome_of(model):
    try:
        failure = verified(model, "sample").failure
    except DefectError as error:
        return ("bare", str(error)) if trains(model) else None
    except GraphError as error:
        if str(error).startswith(UNTRAINED):
            return None
        return ("refused", str(error)) if "\n" not in str(error) else ("bare", str(error))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
        return ("bare", why) if trains(model) else None
    return ("wrong", failure) if failure else ("right", "")


def is_refused_beside_pytorch(module, loss=None, x=None):
    """True if a module is imported, and its steps differ from PyTorch's, or these from the same steps again."""
    torch.manual_seed(0)
    module, x = module.double(), torch.randn(4, 6, dtype=torch.float64) if x is None else x
    try:
        return verified(UserModel(module, (x,), loss, (), sgd(module)), "sample").failure != ""
    except GraphError as error:
        return "tensors of the trace" in str(error)


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
