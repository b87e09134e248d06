"""The process of a rank: its settings, its guard, and how a job starts and ends.

Settings that must precede the import of NumPy are in this file: BLAS kernels, number of threads, and malloc.

OpenBLAS uses AVX2 kernels on an AVX-512 CPU that it does not know; the AVX-512 kernels are about twice as fast.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

AVX512_FLAGS = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
"""CPU features that OpenBLAS's SkylakeX kernels use."""

AVX512_KERNELS = frozenset({"skylakex", "cooperlake", "sapphirerapids"})
"""OpenBLAS kernels that use AVX-512."""

LOCAL_RANKS = ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE")
"""Variables in which launchers give the number of ranks on this host."""

LAUNCHERS = (
    ("PMI_SIZE", "PMI_RANK"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("SLURM_NTASKS", "SLURM_PROCID"),
)
"""Variables in which launchers give the number of processes and the process's own number."""

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h
MOST = 2**31 - 1


def cpu_flags(cpuinfo: str) -> frozenset[str]:
    """Return the first CPU's feature flags, from the text of /proc/cpuinfo."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()


def blas(libraries: Iterable[Mapping[str, Any]], cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the BLAS that NumPy uses, from threadpoolctl's list, and whether its kernels leave AVX-512 unused."""
    choice = [library for library in libraries if library.get("user_api") == "blas"]
    if not choice:
        return "unknown"
    chosen = next((library for library in choice if "numpy" in str(library.get("filepath"))), choice[0])
    kernels = str(chosen.get("architecture", "unknown"))
    name = f"{chosen['internal_api']} {kernels}"
    wide = cpuinfo.exists() and cpu_flags(cpuinfo.read_text()) >= AVX512_FLAGS
    if chosen["internal_api"] != "openblas" or not wide or kernels.lower() in AVX512_KERNELS:
        return name
    return f"{name} (slow: this processor has AVX-512; OPENBLAS_CORETYPE=SkylakeX uses it)"


def choose_blas(environ: MutableMapping[str, str] | None = None, cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Set OPENBLAS_CORETYPE and OPENBLAS_NUM_THREADS unless the user did, or NumPy is already loaded."""
    if environ is None:
        if "numpy" in sys.modules:
            return
        environ = os.environ
    if cpuinfo.exists() and cpu_flags(cpuinfo.read_text()) >= AVX512_FLAGS:
        environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")
    local = next((environ[name] for name in LOCAL_RANKS if environ.get(name, "").isdigit()), None)
    if local is not None:
        environ.setdefault("OPENBLAS_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // max(1, int(local)))))


def keep_memory() -> None:
    """Let glibc keep freed memory, because kernels request the same temporaries in every step.

    By default it maps large blocks anew, or not, depending on earlier ones, so that step times differ between
    processes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries lack it
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, MOST)


def foreign_launcher(environ: Mapping[str, str], library: str) -> str | None:
    """Return a message if the launcher certainly belongs to another MPI than the loaded library; None otherwise.

    `library` is the library's version text.
    """
    name = " ".join(library.partition("\n")[0].partition(",")[0].split())
    of_open_mpi = library.startswith("Open MPI")
    if "OMPI_COMM_WORLD_SIZE" in environ and not of_open_mpi:
        return f"mpirun is Open MPI's, and the MPI library that mpi4py loads is {name}"
    if "HYDI_CONTROL_FD" in environ and of_open_mpi:
        return f"mpirun is MPICH's, and the MPI library that mpi4py loads is {name}"
    return None


def is_torchrun(environ: Mapping[str, str]) -> bool:
    """Return whether torchrun, or a launcher that sets the same variables, started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= environ.keys()


def launcher_place(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the number of processes that the launcher started, and this process's number; None if it does not say."""
    for size, rank in (("WORLD_SIZE", "RANK"),) if is_torchrun(environ) else LAUNCHERS:
        if environ.get(size, "").isdigit() and environ.get(rank, "").isdigit():
            return int(environ[size]), int(environ[rank])
    return None
