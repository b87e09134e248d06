"""The processes that train a plan, their shared memory, and whether two folders of checkpoints are equal."""

from __future__ import annotations

from filecmp import cmpfiles
from pathlib import Path

PYTHON = "python"
SHARED_MEMORY = "/dev/shm/"


def ranks_of(plan: Path) -> list[int]:
    """Return the processes that train a plan, in the order of their start, without those that wait for them."""
    processes = _processes_of(plan)
    parents = {_parent(process) for process in processes}
    return [process for process in processes if process not in parents]


def _parent(process: int) -> int:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0  # it has ended meanwhile
    return int(fields[1])


def _processes_of(plan: Path) -> list[int]:
    """Return the processes that run a plan, the launcher and its proxies aside, in the order of their start."""
    processes = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else [b""]
        except OSError:
            continue  # it has ended meanwhile
        if str(plan).encode() in words and Path(words[0].decode()).name.startswith(PYTHON):
            processes.append(int(entry.name))
    return sorted(processes)


def shared_memory_of(process: int) -> frozenset[Path]:
    """Return the files in shared memory that a process has mapped and that still have a name."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    names = (line.split(maxsplit=5)[-1] for line in lines if SHARED_MEMORY in line)
    return frozenset(Path(name) for name in names if not name.endswith(" (deleted)"))


def same_files(left: Path, right: Path) -> bool:
    """Whether two folders hold equal files under equal names."""
    names = {path.name for path in left.iterdir()}
    equal, _, _ = cmpfiles(left, right, names, shallow=False)
    return set(equal) == names == {path.name for path in right.iterdir()}
