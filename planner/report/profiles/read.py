"""Read a profile of any supported format."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import msgspec

from planner.report.profiles.kineto import kineto_profile
from planner.report.profiles.nsight import nsight_profile
from planner.report.profiles.profile import Profile, ProfileError

SQLITE, GZIP = b"SQLite format 3\0", b"\x1f\x8b"


def read_profile(path: Path, steps: int | None = None) -> Profile:
    """Return the profile of a PyTorch profiler trace (.json, .json.gz) or an Nsight Systems export (.sqlite).

    `steps` is the number of steps. Raises ProfileError, which names the file.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(SQLITE)) == SQLITE:
                return nsight_profile(path, steps)
        text = path.read_bytes()
        return kineto_profile(gzip.decompress(text) if text.startswith(GZIP) else text, steps)
    except (msgspec.DecodeError, UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile, ProfileError) as error:
        raise ProfileError(f"{path}: {error}") from error
