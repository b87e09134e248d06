"""What a rank says when another one is gone: nothing, for a while, since that one or its launcher knows why."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from executor.process.guard import GRACE_S
from planner.failures import JobError

GONE = ("closed by peer", "reset by peer", "Broken pipe", "Connection refused", "remote error", "recvValue failed")
"""How backends of `torch.distributed` say that the other end is no more."""


@contextmanager
def others_may_be_lost() -> Iterator[None]:
    """Turn a backend's error about another rank's end into a JobError, after the launcher had time to end this one."""
    try:
        yield
    except RuntimeError as error:
        if not any(words in str(error) for words in GONE):
            raise
        time.sleep(GRACE_S)
        raise JobError(f"another rank is gone: {str(error).partition(']')[2].strip() or error}") from error
