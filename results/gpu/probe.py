"""Say what the machine is, and whether what the executor relies on is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from executor.backend import BackendError, array_module
from results.experiment import machine
from results.gpu.settings import LIBRARIES, UNUSABLE, Run, this_run

PACKAGES = ("numpy", "cupy-cuda12x", "cupy-cuda13x", "torch", "triton", "mpi4py", "mpich")
FIELDS = "name,pci.device_id,driver_version,memory.total,memory.used,clocks.max.sm,clocks.max.mem,mig.mode.current"
SHARED_BYTES, LAUNCHES = 4096, 5000

OPENED = f"""
import sys, cupy
pointer = cupy.cuda.runtime.ipcOpenMemHandle(bytes.fromhex(sys.stdin.read()))
memory = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(pointer, {SHARED_BYTES}, None), 0)
print(int(cupy.ndarray(({SHARED_BYTES},), "u1", memory).sum()))
"""
"""What another process does with a handle: it sums what lies there."""

Check = Callable[[ModuleType], object]


def versions() -> Mapping[str, str]:
    """Return the versions of packages that are installed."""
    present = {}
    for name in PACKAGES:
        try:
            present[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"python": sys.version.split()[0], **present}


def smi() -> Mapping[str, str]:
    """Return what nvidia-smi says of the first GPU, by the names of its fields; nothing where it says nothing."""
    if shutil.which("nvidia-smi") is None:
        return {}
    query = ["nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv,noheader"]
    lines = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    return dict(zip(FIELDS.split(","), map(str.strip, lines[0].split(",")), strict=False)) if lines else {}


def product(cupy: ModuleType, dtype: str) -> str:
    """Multiply two matrices of ones."""
    ones = cupy.ones((64, 64), dtype)
    total = float((ones @ ones).astype("float32").sum())
    if total != 64**3:
        raise ValueError(f"expected a sum of {64**3}, found {total}")
    return dtype


def compiled(cupy: ModuleType) -> str:
    """Compile and run a kernel; return NVRTC's version."""
    kernel = cupy.RawKernel('extern "C" __global__ void seven(float* x) { x[threadIdx.x] = 7; }', "seven")
    x = cupy.zeros(32, "float32")
    kernel((1,), (32,), (x,))
    if float(x.sum()) != 7 * 32:
        raise ValueError(f"expected sevens, found {x}")
    return ".".join(map(str, cupy.cuda.nvrtc.getVersion()))


def opened_elsewhere(cupy: ModuleType) -> int:
    """Open an allocation in another process; return the sum of ones that it finds there."""
    block = cupy.cuda.Memory(SHARED_BYTES)
    cupy.ndarray((SHARED_BYTES,), "u1", cupy.cuda.MemoryPointer(block, 0)).fill(1)
    cupy.cuda.Device().synchronize()
    handle = cupy.cuda.runtime.ipcGetMemHandle(block.ptr).hex()
    done = subprocess.run([sys.executable, "-c", OPENED], input=handle, capture_output=True, text=True, check=False)
    if done.stdout.strip() != str(SHARED_BYTES):
        raise ValueError(f"expected a sum of {SHARED_BYTES}, found {done.stdout!r} {done.stderr[-300:]!r}")
    return SHARED_BYTES


def timed_by_events(cupy: ModuleType) -> float:
    """Return the milliseconds between two events, with a copy of 256 MiB between them."""
    source = cupy.zeros(1 << 26, "float32")
    target, marks = cupy.empty_like(source), [cupy.cuda.Event() for _ in range(2)]
    marks[0].record()
    cupy.copyto(target, source)
    marks[1].record()
    marks[1].synchronize()
    return float(cupy.cuda.get_elapsed_time(*marks))


def captured(cupy: ModuleType) -> bool:
    """Capture an addition as a graph, and launch it twice."""
    x, stream = cupy.zeros(4, "float32"), cupy.cuda.Stream(non_blocking=True)
    with stream:
        x += 1
        stream.begin_capture()
        x += 1
        graph = stream.end_capture()
        graph.launch()
        graph.launch()
    stream.synchronize()
    if float(x.sum()) != 12:
        raise ValueError(f"expected threes, found {x}")
    return True


def launch_s(cupy: ModuleType) -> Mapping[str, float]:
    """Return the seconds of a small kernel, as the host spends them and in all."""
    x = cupy.zeros(1, "float32")
    cupy.add(x, x, out=x)
    cupy.cuda.Device().synchronize()
    started = time.perf_counter()
    for _ in range(LAUNCHES):
        cupy.add(x, x, out=x)
    host = time.perf_counter() - started
    cupy.cuda.Device().synchronize()
    return {"host": host / LAUNCHES, "all": (time.perf_counter() - started) / LAUNCHES}


def shared_with_torch(cupy: ModuleType) -> str:
    """View memory of CuPy's as a tensor of PyTorch's, in 16 bits; return its dtype."""
    return str(import_module("torch").from_dlpack(cupy.ones(4, "bfloat16")).dtype)


def nccl(cupy: ModuleType) -> int:
    """Return NCCL's version."""
    return int(import_module("cupy.cuda.nccl").get_version())


CHECKS: Mapping[str, Check] = {
    "NVRTC": compiled,
    "cuBLAS, float32": lambda cupy: product(cupy, "float32"),
    "cuBLAS, float16": lambda cupy: product(cupy, "float16"),
    "IPC handles": opened_elsewhere,
    "events": timed_by_events,
    "graphs": captured,
    "launches": launch_s,
    "NCCL": nccl,
    **({"DLPack with PyTorch": shared_with_torch} if "torch" in LIBRARIES else {}),
}
"""What a GPU's executor relies on; each returns something to tell, or raises."""


def checked(xp: ModuleType) -> dict[str, dict[str, Any]]:
    """Try everything; return what each says, or how it fails."""
    results: dict[str, dict[str, Any]] = {}
    for name, check in CHECKS.items():
        try:
            results[name] = {"works": True, "says": check(xp)}
        except Exception as error:  # whatever a library raises is what this is to find
            results[name] = {"works": False, "says": f"{type(error).__name__}: {error}"[:300]}
    return results


def described(run: Run, xp: ModuleType) -> dict[str, Any]:
    """Describe the device that computes."""
    if not run.on_gpu:
        nbytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return {"device": machine().partition(",")[0], "memory_bytes": nbytes}
    properties = xp.cuda.runtime.getDeviceProperties(0)
    return {
        "device": properties["name"].decode(),
        "memory_bytes": xp.cuda.runtime.memGetInfo()[1],
        "compute_capability": f"{properties.get('major')}.{properties.get('minor')}",
        "multiprocessors": properties.get("multiProcessorCount"),
        "cuda": xp.cuda.runtime.runtimeGetVersion(),
    }


def main() -> int:
    """Write probe.json."""
    run, _ = this_run()
    try:
        xp = array_module(run.backend)
    except BackendError as error:
        run.write("probe", {"error": str(error)})
        print(error, file=sys.stderr)
        return UNUSABLE
    mpi = import_module("mpi4py.MPI").Get_library_version().partition("\n")[0]
    known = {**described(run, xp), "host": machine(), "smi": smi(), "versions": versions(), "mpi": mpi}
    run.write("probe", known)
    checks = checked(xp) if run.on_gpu else {}
    run.write("probe", {**known, "checks": checks})
    return 0 if all(check["works"] for check in checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
