"""The kernel itself, compiled for the host: one thread after the other runs the very source that a GPU would run."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from executor.multifetch import SOURCE, THREADS
from executor.values import source_of

PRELUDE = """
#include <cmath>
#include <cstring>
#define __global__
#define __device__
#define __forceinline__ inline
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct Dim { unsigned x; };
static Dim blockIdx, threadIdx, blockDim;
static inline float __uint_as_float(unsigned bits) { float found; std::memcpy(&found, &bits, 4); return found; }
static inline unsigned __float_as_uint(float value) { unsigned found; std::memcpy(&found, &value, 4); return found; }
"""

LAUNCH = """
extern "C" void launch(unsigned blocks, unsigned threads, const Segment* segments, const Term* terms,
                       const int* first_blocks, int count) {
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) multifetch(segments, terms, first_blocks, count);
}
"""
FLAGS = ("-x", "c++", "-std=c++17", "-O1", "-fno-strict-aliasing", "-ffp-contract=off", "-w", "-shared", "-fPIC")


def compiled(folder, code):
    """Compile CUDA's C++ for the host; a test is skipped where there is no compiler."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler (g++, clang++) to run the kernel's source on the host")
    source, library = folder / "host.cpp", folder / "host.so"
    source.write_text(PRELUDE + code)
    subprocess.run([compiler, *FLAGS, str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def built(folder):
    """Return the launch as a function of tables."""
    entry = compiled(folder, source_of(SOURCE) + LAUNCH).launch

    def launch(table):
        pointers = [ctypes.c_void_p(np.ascontiguousarray(t).ctypes.data) for t in (table.segments, table.terms)]
        first = ctypes.c_void_p(table.first_blocks.ctypes.data)
        entry(table.blocks, THREADS, *pointers, first, len(table.segments))

    return launch
