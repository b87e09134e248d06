"""Reading files in a process that is watched: what fails, takes too much, reaches beyond its folder, or runs code."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import pickle
import resource
import runpy
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from planner.failures import TRACEBACK_VARIABLE, describe_failure
from results.experiment import ROOT

Read = Callable[[Path], object]
"""Reads a file: returns, exits as a command does, or raises."""

SECONDS, WAITED_S = 10, 300
"""What one input may take of a core, and how long it is waited for in all."""

MEMORY_BYTES = 1 << 30
MESSAGE_CHARACTERS = 1000
SUCCESS = 0
LINES: Mapping[object, tuple[int, ...]] = {SUCCESS: (0,), 1: (0, 1), 2: (1,)}
"""How many lines of errors a status comes with; 1 is that of what does not fit, or of reports that differ."""

BARE, TIME, MEMORY, FILES, CODE = "bare error", "time", "memory", "file outside", "code run"
DETECTORS = (BARE, TIME, MEMORY, FILES, CODE)

READABLE = (
    str(ROOT),
    sys.prefix,
    sys.base_prefix,
    *(path for path in sys.path if path),
    "/proc",
    "/sys",
    "/dev",
    "/etc",
)
"""Where Python, its packages and the system's description of the machine lie."""

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = (
    "os.chmod",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
    "os.utime",
)
LAUNCHES = ("os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn", "subprocess.Popen")
REACHES = ("pickle.find_class", "socket.bind", "socket.connect", "webbrowser.open")


@dataclass(frozen=True, slots=True)
class Fault:
    """What a detector found of a mutant."""

    number: int
    detector: str
    what: str


Mutant = tuple[str, Read, bytes]
"""The name of its file, what reads it, and what it holds."""


def watched(mutants: Sequence[int], make: Callable[[int], Mutant], seconds: int = SECONDS) -> list[Fault]:
    """Make mutants by their numbers and read them in watched processes; return the faults.

    Behind each mutant that a limit ended there is a new process.
    """
    faults: list[Fault] = []
    done = 0
    with tempfile.TemporaryDirectory(prefix="mutants") as folder:
        while done < len(mutants):
            rest = mutants[done:]
            results = _read_in_one_process(rest, make, seconds, Path(folder).resolve())
            faults += [fault for faults_of_one in results for fault in faults_of_one]
            done += len(results)
    return faults


def _read_in_one_process(
    mutants: Sequence[int], make: Callable[[int], Mutant], seconds: int, folder: Path
) -> list[list[Fault]]:
    """Return the faults of mutants, up to the first that ends the process."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_read_all, args=(there, mutants, make, _Watch(folder, seconds)))
    process.start()
    there.close()
    results: list[list[Fault]] = []
    try:
        while len(results) < len(mutants) and here.poll(WAITED_S):
            results.append([Fault(*fault) for fault in json.loads(here.recv_bytes())])
    except EOFError:
        process.join()
    process.kill()
    process.join()
    if len(results) < len(mutants):
        is_late = process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL)
        what = f"the process that read it ended with {process.exitcode}"
        results.append([Fault(mutants[len(results)], TIME if is_late else BARE, what)])
    return results


def _read_all(there: Connection, mutants: Sequence[int], make: Callable[[int], Mutant], watch: _Watch) -> None:
    sys.addaudithook(watch.audit)
    for number in mutants:
        there.send_bytes(json.dumps(watch.faults(number, *make(number))).encode())
    os._exit(SUCCESS)


class _Watch:
    """What happens while one file is read."""

    def __init__(self, folder: Path, seconds: int) -> None:
        self._folder, self._seconds = str(folder), seconds
        self._looks = False
        self._events: list[tuple[str, str]] = []

    def faults(self, number: int, name: str, read: Read, content: bytes) -> list[tuple[int, str, str]]:
        """Read a mutant; return what was wrong, as the fields of faults."""
        path = Path(self._folder, name)
        path.write_bytes(content)
        self._events = []
        _limit(self._seconds)
        begun, self._looks = time.process_time(), True
        status, said, error = _outcome(read, path)
        self._looks = False
        seconds = time.process_time() - begun
        faults = list(dict.fromkeys(self._events))
        if seconds > self._seconds:
            faults.append((TIME, f"{seconds:.1f} s"))
        if isinstance(error, MemoryError) or "out of memory (" in said:
            faults.append((MEMORY, said))
        elif reason := _manners(status, said):
            faults.append((BARE, reason))
        return [(number, detector, what[:MESSAGE_CHARACTERS]) for detector, what in faults]

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note what reading a file must not do; see "Audit events table" of Python's documentation."""
        if not self._looks:
            return
        if event == "open":
            path, _, flags = arguments
            writes = bool(isinstance(flags, int) and flags & WRITING)
            if self._is_outside(path, writes):
                self._events.append((FILES, f"{'writes' if writes else 'reads'} {path!r}"))
        elif event in CHANGES or event.startswith("shutil."):
            paths = [path for path in arguments if isinstance(path, str | bytes | os.PathLike)]
            if any(self._is_outside(path, True) for path in paths):
                self._events.append((FILES, f"{event} {paths!r}"))
        elif event in LAUNCHES or event in REACHES:
            self._events.append((CODE, f"{event} {arguments!r}"))
        elif event == "ctypes.dlopen" and self._is_here(arguments[0]):
            self._events.append((CODE, f"loads {arguments[0]!r}"))
        elif event == "exec" and (self._is_here(arguments[0].co_filename) or CANARY in repr(arguments[0].co_consts)):
            self._events.append((CODE, f"runs {arguments[0]!r}"))
        elif event == "import" and self._is_here(arguments[1]):
            self._events.append((CODE, f"import of {arguments[1]}"))

    def _is_here(self, path: Any) -> bool:
        return isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(self._folder)

    def _is_outside(self, path: Any, writes: bool) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False  # a descriptor that is open
        where = os.path.realpath(os.fsdecode(path))
        if writes and where != os.devnull and "__pycache__" not in where:
            return not where.startswith(self._folder + os.sep)
        return not where.startswith((self._folder, *READABLE))


CANARY = "canary_of_a_mutant"
"""What texts that pretend to be code hold."""


def _limit(more_s: int) -> None:
    """Give the next input its share of the core and of memory."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + more_s + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, resource.RLIM_INFINITY))


def _outcome(read: Read, path: Path) -> tuple[object, str, BaseException | None]:
    """Read a file as a command would; return the exit status, what is on stderr, and what was raised."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            read(path)
        except SystemExit as ended:
            return ended.code or SUCCESS, err.getvalue(), None
        except BaseException as error:
            message, status = describe_failure(error)
            return status, f"{err.getvalue()}error: {message}\n", error
    return SUCCESS, err.getvalue(), None


def _manners(status: object, said: str) -> str:
    """Say what is wrong with an end: nothing where it is success, or one line of why it is not."""
    lines = [line for line in said.splitlines() if not line.startswith(("warning: ", "note: "))]
    if status not in LINES or TRACEBACK_VARIABLE in said or "Traceback" in said:
        return f"status {status}: {said}"
    if len(lines) not in LINES[status]:
        return f"status {status}, {len(lines)} lines: {said}"
    if any(len(line) > MESSAGE_CHARACTERS for line in said.splitlines()):
        return f"a line of {max(map(len, said.splitlines()))} characters: {said}"
    return ""


def _fail(_path: Path) -> None:
    raise ZeroDivisionError


def _spin(_path: Path) -> None:
    sum(iter(int, 1))  # within C, where no handler of a signal runs


def _allocate(_path: Path) -> None:
    bytearray(2 * MEMORY_BYTES)


def _write(path: Path) -> None:
    outside = path.parent.with_suffix(".outside")
    outside.write_text("")
    outside.unlink()


def _look(_path: Path) -> None:
    Path("/outside").read_text()


def _launch(_path: Path) -> None:
    os.system("true")


def _import(path: Path) -> None:
    runpy.run_path(str(path))


def _evaluate(_path: Path) -> None:
    eval(repr(CANARY))


def _unpickle(_path: Path) -> None:
    pickle.loads(pickle.dumps(Path))  # of our own


CONTROLS: Mapping[str, tuple[str, Read]] = {
    "an exception": (BARE, _fail),
    "an endless loop": (TIME, _spin),
    "twice the memory": (MEMORY, _allocate),
    "a file written outside": (FILES, _write),
    "a file read outside": (FILES, _look),
    "a process started": (CODE, _launch),
    "a module run": (CODE, _import),
    "an expression": (CODE, _evaluate),
    "a pickle's class": (CODE, _unpickle),
}
"""What a detector must find."""

CONTROL_S = 1
"""What a control may take of a core."""


def controls() -> dict[str, bool]:
    """Say of each control whether its detector finds it."""
    names = list(CONTROLS)
    faults = watched(range(len(names)), lambda number: ("control.py", CONTROLS[names[number]][1], b"1"), CONTROL_S)
    seen = {(names[fault.number], fault.detector) for fault in faults}
    return {name: (name, detector) in seen for name, (detector, _) in CONTROLS.items()}
