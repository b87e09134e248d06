"""Reports of Nsight Systems, exported with `nsys export --type sqlite`: kernels by name."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path

from planner.report.profiles.profile import Profile, ProfileError, Timespan, profile_of
from planner.report.profiles.rules import KERNELS, class_by, collective_of

NANO = 1e-9
KERNEL_TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
KERNELS_WITH_NAMES = (
    "SELECT kernel.start, kernel.end, kernel.deviceId, name.value FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel "
    "JOIN StringIds AS name ON name.id = kernel.demangledName "
    "WHERE kernel.start NOT NULL AND kernel.end NOT NULL AND name.value NOT NULL"
)
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"


def nsight_profile(path: Path, steps: int | None = None) -> Profile:
    """Return the profile of an export with `steps` steps, from its first kernel to its last."""
    spans: defaultdict[int, list[Timespan]] = defaultdict(list)
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if KERNEL_TABLE not in tables:
                raise ProfileError(f"no table {KERNEL_TABLE}; this is not an export of Nsight Systems with kernels")
            for begin, end, device, name in database.execute(KERNELS_WITH_NAMES):
                what = collective_of(name) or class_by(KERNELS, name) or "other"
                spans[device].append(Timespan(NANO * begin, NANO * end, what))
            for table in tables.intersection(COPIES):
                for begin, end, device in database.execute(
                    f"SELECT start, end, deviceId FROM {table} WHERE end NOT NULL"
                ):
                    spans[device].append(Timespan(NANO * begin, NANO * end, "movement"))
    except sqlite3.Error as error:
        raise ProfileError(f"not an export of Nsight Systems: {error}") from error
    every = [span for of in spans.values() for span in of]
    if not every:
        raise ProfileError("the export has no kernels")
    return profile_of(
        list(spans.values()), min(span.begin_s for span in every), max(span.end_s for span in every), steps
    )
