"""What experiments share: data as JSON, tables in a README, the machine, processes and seconds of their own."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WAITED = 20
"""How many times its time of a core a process is waited for."""

Pages = dict[str, str]
"""Files of an experiment by name, and generated blocks of its README.md by theirs, made from its data alone."""

FILES = (".md", ".svg")


def read_data(folder: Path) -> Any:
    """Read the experiment's data.json."""
    return json.loads((folder / "data.json").read_text())


def read_published(folder: Path) -> Any:
    """Read the figures of others that the experiment compares with."""
    return json.loads((folder / "published.json").read_text())


def publish(folder: Path, data: object, pages: Callable[[Any], Pages]) -> None:
    """Write the experiment's data.json, and its pages."""
    (folder / "data.json").write_text(json.dumps(data, indent=1) + "\n")
    write_pages(folder, pages(read_data(folder)))


def write_pages(folder: Path, pages: Pages) -> None:
    """Write the experiment's pages."""
    for name, content in contents(folder, pages).items():
        (folder / name).write_text(content)


def contents(folder: Path, pages: Pages) -> dict[str, str]:
    """Return the text of every file: README.md with its blocks put in, and the others."""
    blocks = {name: text for name, text in pages.items() if Path(name).suffix not in FILES}
    files = {name: text for name, text in pages.items() if name not in blocks}
    return {"README.md": filled(folder / "README.md", blocks)} | files


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def filled(readme: Path, blocks: Mapping[str, str]) -> str:
    """Return the file's text with every block put between `<!-- NAME: generated -->` and `<!-- end of NAME -->`."""
    text = readme.read_text()
    for name, content in blocks.items():
        start, end = f"<!-- {name}: generated -->\n", f"<!-- end of {name} -->"
        if text.count(start) != 1 or text.count(end) != 1:
            raise ValueError(f"{readme}: expected one place for {name!r}: {start.strip()} ... {end}")
        before, rest = text.split(start)
        text = f"{before}{start}{content}\n{end}{rest.split(end)[1]}"
    return text


def gap(bound_bytes: int | None, found_bytes: int) -> str:
    """Say how far bytes may be above the least of their space: "exact", a percentage, or that nothing is known."""
    if not bound_bytes:
        return "" if bound_bytes is None else "no bound"
    return "exact" if found_bytes == bound_bytes else f"{found_bytes / bound_bytes - 1:.2%}"


def beside_recursive(pairs: Mapping[str, tuple[int, int]], recursive: str) -> str:
    """Say how bytes of `joint` compare with those of `recursive`, two by two, given by what they are about."""
    fewer = [1 - joint / other for joint, other in pairs.values() if joint < other]
    more = [f"{name} ({joint / other - 1:.1%} more)" for name, (joint, other) in pairs.items() if joint > other]
    by = f" (by up to {max(fewer):.1%})" if fewer else ""
    named = f": {', '.join(more)}" if more else ""
    return (
        f"Of {len(pairs)} plans of `joint`, {len(fewer)} move fewer bytes than those of {recursive} for the same "
        f"model, workers and placements{by}, "
        f"{len(pairs) - len(fewer) - len(more)} as many, and {len(more)} more{named}."
    )


def machine() -> str:
    """Say what machine and Python this is."""
    models = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), flags=re.M)
    return f"{models[0]}, {os.cpu_count()} cores, Python {platform.python_version()}"


@dataclass(frozen=True, slots=True)
class Within:
    """What a process may take: seconds, and bytes of address space."""

    seconds: float
    memory_bytes: int = 12 << 30

    def __str__(self) -> str:
        return f"{self.seconds:g} s or {self.memory_bytes >> 30} GiB"


class OverTimeError(Exception):
    """A block took more than its seconds."""


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """End a block that takes more than these seconds of the process's CPU time by an OverTimeError."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise OverTimeError

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def mpirun(ranks: int, *command: str) -> list[str]:
    """Return the command line that starts a command of the project on so many ranks: with the path's MPI, or PyPI's."""
    beside = Path(sys.executable).parent
    name, *arguments = command
    return [launcher(), "-n", str(ranks), str(beside / name), *arguments]


MANNERS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def launcher() -> str:
    """Return the mpirun on the path, else the one beside this Python."""
    return shutil.which("mpirun") or str(Path(sys.executable).with_name("mpirun"))


def run_command(command: str, *arguments: object, before: Iterable[object] = ()) -> None:
    """Run one of the project's commands, silently; `before` is what launches it."""
    code = f"from tensor_partitioner.commands import entry; entry.{command}()"
    line = map(str, (*before, sys.executable, "-c", code, *arguments))
    subprocess.run([*line], stdout=subprocess.DEVNULL, check=True, cwd=ROOT, env=MANNERS | os.environ)


def now() -> str:
    """Return this moment."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def in_process(module: str, *arguments: str) -> Any:
    """Run a module in a process of its own, with one thread, and return the JSON that it prints.

    So its memory is its own, and nothing is remembered from what ran before.
    """
    return json.loads(_ran(module, arguments, None).stdout)


def in_process_within(within: Within, module: str, *arguments: str) -> Any:
    """Run a module as `in_process` does; return its JSON or, if it takes more than it may, `{"over": WHAT}`."""
    try:
        return json.loads(_ran(module, arguments, within).stdout)
    except subprocess.TimeoutExpired:
        return {"over": f"{within.seconds:g} s"}
    except subprocess.CalledProcessError as error:
        if "MemoryError" not in error.stderr:
            raise
        return {"over": f"{within.memory_bytes >> 30} GiB"}


def in_fork_within(within: Within, function: Callable[..., Any], *arguments: object) -> Any:
    """Return what a function returns in a fork of this process, None if it takes more than it may of a core or memory.

    What it prints is not shown; for `WAITED` times its seconds it is waited for. RuntimeError for what else it raises.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(there, within, function, arguments))
    process.start()
    there.close()
    try:
        returned = here.recv() if here.poll(within.seconds * WAITED) else None
    except EOFError:  # of a process that a limit ended
        returned = None
    process.kill()
    process.join()
    if isinstance(returned, RuntimeError):
        raise returned
    return returned


def _tell(end: Connection, within: Within, function: Callable[..., Any], arguments: Sequence[object]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (within.memory_bytes, within.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (int(within.seconds), int(within.seconds)))
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
    try:
        returned = function(*arguments)
    except Exception as error:
        returned = None if is_out_of_memory(error) else RuntimeError(traceback.format_exc())
    end.send(returned)


def is_out_of_memory(error: Exception) -> bool:
    """Whether this is how Python or PyTorch says that there is no more memory."""
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


def _ran(module: str, arguments: Sequence[str], within: Within | None) -> subprocess.CompletedProcess[str]:
    def limit_memory() -> None:
        if within is not None:
            resource.setrlimit(resource.RLIMIT_AS, (within.memory_bytes, within.memory_bytes))

    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        check=True,
        stdout=subprocess.PIPE,
        stderr=None if within is None else subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        timeout=None if within is None else within.seconds,
        preexec_fn=limit_memory,
    )
