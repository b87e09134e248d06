"""A guard process beside every rank, which outlives it.

It reports which rank was killed, and handles Ctrl-C once for all. A rank forks before anything is imported. The child
becomes the rank. Each reports if the other is killed.
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import fcntl
import json
import os
import signal
import socket
import stat
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from types import FrameType
from typing import NamedTuple, NoReturn

from executor.process import choose_blas, foreign_launcher, is_torchrun, keep_memory, launcher_place
from executor.process.heartbeats import BYE, END, Heartbeats, Meeting, own_addresses

BY_SIGNAL = 128
"""Shells add this to the number of the signal that ended a process."""

GRACE_S = 2.0
"""Seconds for which a rank without a message of its own lets rank 0 speak before it ends too."""

AHEAD_S = 1.0
"""Seconds for which a rank lets the one before it speak."""

PR_SET_PDEATHSIG = 1  # linux/prctl.h
ORPHANED = signal.SIGRTMIN + 3
"""The signal that the system sends a guard whose launcher has ended."""

SHARED_MEMORY = "/dev/shm"
BAD_INPUT, JOB_FAILED = 2, 1

LAUNCHER_ENDS_S = 0.1
"""A launcher that killed a guard because the job ends has ended itself after this time."""

LAUNCHER_READS_S = 1.0
"""Longest time that a busy launcher takes to read what a rank wrote."""

LAUNCHER_FORWARDS_S = 0.05
"""Time in which it passes on what it has read."""

USUALLY: Mapping[int, str] = {
    signal.SIGKILL: "; the system may be out of memory",
    signal.SIGBUS: f": is {SHARED_MEMORY} or a disk full?",
}
"""The most frequent cause of a signal."""

LOCAL_RANK = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID")
"""Variables in which launchers give a process's number among the ranks of its host."""


class _Contact(NamedTuple):
    """How a guarded rank reaches its guard.

    On rank 0, also the port where the guard listens and the token that others must show.
    """

    told: int
    port: int
    token: str


_contact: _Contact | None = None
"""The contact of this process, None if it is not guarded."""

ERRORS = "error.txt"
"""File in the folder of checkpoints for the reason why a job ended, if its launcher can no longer forward it."""

_errors: Path | None = None
"""The file `ERRORS` of this process's job; None if it has no folder."""


def guard() -> None:
    """Fork: return in the rank's own process, which the other guards. Without a launcher, return at once."""
    place = launcher_place(os.environ)
    if place is None:
        return
    sys.stdout.flush()
    launcher, (alive, held), (heard, told) = os.getppid(), os.pipe(), os.pipe()
    server, token = (socket.create_server(("", 0)) if place[1] == 0 else None), token_hex()
    child = os.fork()
    if child:
        os.close(alive)
        os.close(told)
        _Guard(child, place[1], heard, Heartbeats(server, token)).wait(launcher)
    os.close(held)
    os.close(heard)
    os.setpgid(0, 0)  # only the guard gets the terminal's signals
    global _contact  # noqa: PLW0603  # state of the process
    _contact = _Contact(told, server.getsockname()[1] if server else 0, token)
    if server:
        server.close()
    _die_with_guard()
    atexit.register(_die_with_guard)
    atexit.register(os.kill, os.getppid(), signal.SIGCONT)  # a guard that was stopped reports how this rank ends
    threading.Thread(target=_await_guard, args=(alive, place[1], launcher), daemon=True).start()


def yield_to_rank_0(rank: int) -> None:
    """Give rank 0 time to report what all ranks know. A launcher may end all ranks when the first one ends."""
    if rank != 0:
        time.sleep(GRACE_S)


def is_guarded() -> bool:
    """Return whether another process reports how this one ends."""
    return _contact is not None


def tell_started() -> None:
    """Tell the guard that MPI has its memory. A later kill must have another cause."""
    if _contact is not None:
        _write(_contact.told, "started\n")
        _die_with_guard(False)


def meeting(silence_s: float) -> Meeting | None:
    """Return where this rank's guard listens; None if it does not."""
    if _contact is None or not _contact.port:
        return None
    return Meeting(own_addresses(), _contact.port, _contact.token, silence_s)


def tell_meeting(place: Meeting) -> None:
    """Let this rank's guard exchange heartbeats with the others from now on."""
    if _contact is not None:
        _write(_contact.told, json.dumps(dataclasses.asdict(place)) + "\n")


def keep_errors_in(folder: Path) -> None:
    """Have this rank and its guard write to `folder` why the job ends if the launcher is gone."""
    _set_errors(str(folder.absolute() / ERRORS))
    if _contact is not None:
        _write(_contact.told, f"/{_errors}\n")


def end_job(status: int, environ: Mapping[str, str]) -> None:
    """Ask the launcher, by PMI-1, to end all ranks with this status once it has read what this rank wrote."""
    await_reader(2)
    if "HYDI_CONTROL_FD" in environ and environ.get("PMI_FD", "").isdigit():
        _write(int(environ["PMI_FD"]), f"cmd=abort exitcode={status}\n")


class _Guard:
    """The process that a launcher sees. Its `child` is the rank."""

    def __init__(self, child: int, rank: int, heard: int, heartbeats: Heartbeats) -> None:
        self._child = child
        self._rank, self._name = rank, f"rank {rank} on {os.uname().nodename}"
        self._heartbeats = heartbeats
        self._silence_s = 0.0
        self._started = self._interrupted = self._ended = False
        self._reader = threading.Thread(target=self._read, args=(heard,), daemon=True)

    def wait(self, launcher: int) -> NoReturn:
        """Wait until the rank ends and end with its status. Kill it if the launcher is killed."""
        signal.signal(signal.SIGINT, self._on_interrupt)
        signal.signal(signal.SIGTERM, self._on_termination)
        signal.signal(ORPHANED, lambda *_: self._on_orphaned(launcher))
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ORPHANED)
        self._on_orphaned(launcher)
        self._reader.start()
        status = self._child_status()
        if self._ended:
            signal.pause()  # another thread ends this process
        if self._interrupted:
            self._leave_interrupted()
        by_signal = status < 0
        if by_signal:
            status = self._report_signal(-status)
            end_job(status, os.environ)
            time.sleep(LAUNCHER_ENDS_S)
        self._heartbeats.tell(END if by_signal else BYE)
        os._exit(status)

    def _child_status(self) -> int:
        """Return the exit status of the rank, negative for a signal. A rank stopped for too long ends the job."""
        stopped, number = 0.0, 0
        while True:
            child, status = os.waitpid(self._child, os.WUNTRACED | os.WCONTINUED | (os.WNOHANG if stopped else 0))
            if not child and self._silence_s and time.monotonic() - stopped > self._silence_s:
                self._end(f"{self._name}: stopped by signal {number} ({signal.strsignal(number)})")
            elif not child:
                time.sleep(LAUNCHER_ENDS_S)
            elif os.WIFSTOPPED(status):  # perhaps before heartbeats begin
                stopped, number = time.monotonic(), os.WSTOPSIG(status)
            elif os.WIFCONTINUED(status):
                stopped = 0.0
            else:
                return os.waitstatus_to_exitcode(status)

    def _read(self, heard: int) -> None:
        """Read the rank's messages until it ends: that MPI has started, and where guards meet."""
        with os.fdopen(heard) as lines:
            for line in lines:
                if line.startswith("/"):
                    _set_errors(line[1:-1])
                if line.startswith("{"):
                    threading.Thread(target=self._follow, args=(Meeting(**json.loads(line)),), daemon=True).start()
                self._started = True

    def _follow(self, place: Meeting) -> None:
        """Exchange heartbeats with other guards. End the job if they end it or fall silent."""
        try:
            if self._rank:
                self._heartbeats.join(place, self._rank)
        except ConnectionError as error:
            _print(f"warning: {self._name}: no heartbeats: {error}")
        self._silence_s = place.silence_s
        # Rank 0's guard reports first, then rank 1's; a launcher then ends all.
        self._heartbeats.follow(place.silence_s + min(self._rank, 2) * AHEAD_S, self._on_silence)

    def _on_silence(self, silent: Sequence[tuple[int, str]]) -> None:
        """End the job because these ranks are silent; if there are none, another guard has reported why."""
        ranks, hosts = ", ".join(str(rank) for rank, _ in silent), ", ".join(dict.fromkeys(host for _, host in silent))
        is_first = self._rank < 2 or is_first_on_host()  # only rank 0 can be silent for others
        reason = f"no heartbeat for {self._silence_s:g} s: stopped, or its host or the link to it is down"
        self._end(f"rank{'s' * (len(silent) > 1)} {ranks} on {hosts}: {reason}" if silent and is_first else "")

    def _end(self, reason: str) -> NoReturn:
        """Report why the job ends, if nobody else does, and end everything that this process can."""
        self._ended = True
        if reason:
            _print(f"error: {reason}")
        self._heartbeats.tell(END)
        self._send(signal.SIGKILL)
        if not reason:
            time.sleep(AHEAD_S)  # the launcher blames the first to end
        end_job(JOB_FAILED, os.environ)
        os._exit(JOB_FAILED)

    def _report_signal(self, number: int) -> int:
        """Report what killed the rank, unless an earlier rank reports it first; return the exit status."""
        self._reader.join()
        if number not in (signal.SIGBUS, signal.SIGSEGV) or self._started:
            _say(self._rank, killed_by(number))
            return BY_SIGNAL + number
        time.sleep(min(GRACE_S, self._rank * AHEAD_S))
        room = os.statvfs(SHARED_MEMORY)
        size = f"{room.f_blocks * room.f_frsize / 1e6:,.1f} MB"
        _say(self._rank, f"MPI did not start: {SHARED_MEMORY}, of {size}, is too small or full")
        return BAD_INPUT

    def _on_interrupt(self, number: int, _: FrameType | None) -> None:
        """Report before any rank ends, because the first that ends may end all."""
        if not self._interrupted and self._rank == 0:
            _print("error: interrupted")
        self._interrupted = True
        self._send(number)

    def _on_orphaned(self, launcher: int) -> None:
        """End the job if the launcher is gone. The signal may also come from one of its threads that ended."""
        if os.getppid() != launcher:
            self._end(_orphaned(self._name) if is_first_on_host() else "")

    def _on_termination(self, number: int, _: FrameType | None) -> None:
        """End silently. A launcher that ends a job sends this signal to all ranks."""
        self._send(signal.SIGKILL)
        os._exit(BY_SIGNAL + number)

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it has ended already
            os.kill(self._child, number)

    def _leave_interrupted(self) -> NoReturn:
        if self._rank != 0:
            yield_to_rank_0(self._rank)
            _say(self._rank, "interrupted")  # it alone: otherwise rank 0 had ended it
        end_job(BY_SIGNAL + signal.SIGINT, os.environ)
        os._exit(BY_SIGNAL + signal.SIGINT)


def is_first_on_host() -> bool:
    """Return whether this is the first rank of its host, or the launcher does not say."""
    return next((os.environ[name] for name in LOCAL_RANK if name in os.environ), "0") == "0"


def killed_by(number: int) -> str:
    """Return which signal ended a process, and what usually sends it."""
    return f"killed by signal {number} ({signal.strsignal(number)}){USUALLY.get(number, '')}"


def await_reader(descriptor: int) -> None:
    """Wait until what was written to a pipe has been read and passed on. Return at once for other files."""
    until = time.monotonic() + LAUNCHER_READS_S
    with suppress(OSError):  # closed, or of a kind without a count of unread bytes
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return
        while any(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))) and time.monotonic() < until:
            time.sleep(LAUNCHER_FORWARDS_S / 10)
        time.sleep(LAUNCHER_FORWARDS_S)


def _die_with_guard(dies: bool = True) -> None:
    """Have the system kill this process with its guard while MPI starts and ends, when no other thread runs."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL if dies else 0)


def _await_guard(alive: int, rank: int, launcher: int) -> None:
    os.read(alive, 1)  # returns when all other ends are closed
    until = time.monotonic() + LAUNCHER_ENDS_S
    while (runs := _is_running(launcher)) and time.monotonic() < until:
        time.sleep(LAUNCHER_ENDS_S / 20)
    if runs:  # otherwise it killed the guard, and nobody listens
        _say(rank, killed_by(signal.SIGKILL))
        end_job(BY_SIGNAL + signal.SIGKILL, os.environ)
    elif is_first_on_host():
        _orphaned(f"rank {rank} on {os.uname().nodename}")
    os._exit(BY_SIGNAL + signal.SIGKILL)


def _is_running(process: int) -> bool:
    """Return whether a process exists and is no zombie, which a container's first process may never reap."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _set_errors(path: str) -> None:
    global _errors  # noqa: PLW0603  # state of the process
    _errors = Path(path)


def _orphaned(name: str) -> str:
    """Return the reason why a job without its launcher ends. Write it to the job's folder, if it has one."""
    reason = f"{name}: the launcher is gone"
    if _errors is not None:
        with suppress(OSError):  # the disk may be full; this process must end anyway
            _errors.parent.mkdir(parents=True, exist_ok=True)
            _errors.write_text(f"error: {reason}\n")
    return reason


def _say(rank: int, what: str) -> None:
    _print(f"error: rank {rank} on {os.uname().nodename}: {what}")


def _print(line: str) -> None:
    """Write a line at once, regardless of locks held by other threads or an interrupted write."""
    _write(2, f"{line}\n")


def _write(descriptor: int, text: str) -> None:
    with suppress(OSError):  # the reader may be gone; this process must end anyway
        os.write(descriptor, text.encode())


def start_rank() -> None:
    """Make this process a rank of its launcher's job. Exit with status 2 if that is impossible."""
    guard()  # before slow imports
    settle_process()
    if is_torchrun(os.environ):  # no MPI
        tell_started()
        return
    try:
        mpi4py = import_module("mpi4py")
        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True  # another MPI's launcher would crash it
        mpi = import_module("mpi4py.MPI")
        reason = foreign_launcher(os.environ, mpi.Get_library_version())
        advice = "start it with that library's own mpirun"
    except (ImportError, RuntimeError) as error:
        extra = "execute" if isinstance(error, ModuleNotFoundError) else "mpich"
        reason, advice = str(error).splitlines()[0], f"install one, or pip install 'tensor-partitioner[{extra}]'"
    if reason:
        refuse(f"{reason}: {advice}")
    mpi.Init_thread()
    tell_started()


def refuse(reason: str) -> NoReturn:
    """End a job before it starts, with status 2 on every rank. The first rank prints the reason."""
    rank = (launcher_place(os.environ) or (1, 0))[1]
    if rank == 0:
        print(f"error: {reason}", file=sys.stderr, flush=True)
    yield_to_rank_0(rank)
    sys.exit(BAD_INPUT)


def settle_process() -> None:
    """Choose BLAS's kernels and threads, and let malloc keep freed memory. Must run before NumPy is imported."""
    choose_blas()
    keep_memory()
