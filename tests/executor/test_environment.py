import os
import re
import subprocess
import sys

import pytest

from executor.cluster import single_rank
from executor.mpi import start_advice
from executor.process import AVX512_FLAGS, blas, choose_blas, cpu_flags, launcher_place
from executor.process.launch import require_size, speaks_for_launcher
from planner.errors import InputError


def cpuinfo(tmp_path, *flags):
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor\t: 0\nflags\t\t: fpu {' '.join(flags)}\n\nprocessor\t: 1\nflags\t\t: other\n")
    return path


def test_flags_of_the_first_processor(tmp_path):
    assert cpu_flags(cpuinfo(tmp_path, "sse").read_text()) == {"fpu", "sse"}
    assert cpu_flags("") == set()


CHOSEN = {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_NUM_THREADS": "3", "MPI_LOCALNRANKS": "1"}


@pytest.mark.parametrize(
    ("environ", "flags", "added"),
    [
        ({}, ("avx2", "avx512f"), {}),
        ({}, AVX512_FLAGS, {"OPENBLAS_CORETYPE": "SkylakeX"}),
        (CHOSEN, AVX512_FLAGS, {}),
        ({"MPI_LOCALNRANKS": "1000"}, (), {"OPENBLAS_NUM_THREADS": "1"}),
    ],
)
def test_what_is_set_of_blas_where_the_user_has_not(tmp_path, environ, flags, added):
    after = dict(environ)
    choose_blas(after, cpuinfo(tmp_path, *flags))
    assert after == environ | added


def test_slow_kernels_of_openblas_are_named(tmp_path):
    def said(kernels, *flags, api="openblas"):
        library = {
            "filepath": "/lib/numpy.libs/lib.so",
            "user_api": "blas",
            "internal_api": api,
            "architecture": kernels,
        }
        return blas([{"filepath": "/lib/libgomp.so", "user_api": "openmp"}, library], cpuinfo(tmp_path, *flags))

    slow = "openblas Haswell (slow: this processor has AVX-512; OPENBLAS_CORETYPE=SkylakeX uses it)"
    assert said("Haswell", *AVX512_FLAGS) == slow
    assert said("SkylakeX", *AVX512_FLAGS) == "openblas SkylakeX"
    assert said("Haswell", "avx2") == "openblas Haswell"
    assert said("Haswell", *AVX512_FLAGS, api="mkl") == "mkl Haswell"
    assert blas([]) == "unknown"


@pytest.mark.parametrize("module", ["executor", "executor.worker", "tensor_partitioner.commands.execute"])
def test_importing_the_library_leaves_the_environment_alone(module):
    code = (
        "import os; before = {k: v for k, v in os.environ.items() if k.startswith(('OPENBLAS', 'OMP'))}\n"
        f"import {module}\n"
        "assert before == {k: v for k, v in os.environ.items() if k.startswith(('OPENBLAS', 'OMP'))}"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environ)


def test_who_started_us():
    assert launcher_place({}) is None
    assert launcher_place({"PMI_SIZE": "4", "PMI_RANK": "2"}) == (4, 2)
    assert speaks_for_launcher({}, 1)
    assert speaks_for_launcher({"PMI_SIZE": "4", "PMI_RANK": "0"}, 1)
    assert not speaks_for_launcher({"PMI_SIZE": "4", "PMI_RANK": "2"}, 1)
    assert speaks_for_launcher({"PMI_SIZE": "4", "PMI_RANK": "2"}, 4)


def test_ranks_must_be_as_many_as_workers():
    require_size("p.json", 1, single_rank(1))
    with pytest.raises(InputError, match=r"p\.json: expected 4 ranks.*found 1: start it with mpirun -n 4$"):
        require_size("p.json", 4, single_rank(1))


def test_what_else_makes_jobs_of_one_rank():
    assert start_advice(4, 3, {}) == "mpirun -n 4"
    assert "one MPI with the libraries of another" in start_advice(4, 1, {})
    expected = r"the launcher started 4 processes, but .* belongs to another MPI"
    assert re.search(expected, start_advice(4, 1, {"PMI_SIZE": "4", "PMI_RANK": "1"}))


def test_without_an_mpi_library_one_line_says_so(tmp_path):
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("class rc: ...\n")
    broken = "raise RuntimeError('cannot load MPI library\\nlibmpi.so: no such file')"
    (tmp_path / "mpi4py" / "MPI.py").write_text(broken)
    line = [sys.executable, "-m", "tensor_partitioner", "execute", "plan.json"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(line, check=False, capture_output=True, text=True, env=environ)
    assert done.returncode == 2
    assert done.stderr == ("error: cannot load MPI library: install one, or pip install 'tensor-partitioner[mpich]'\n")


ASKING_AGAIN = """
import resource
import numpy as np
from executor.process import keep_memory

keep_memory()
np.ones(1 << 23)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones(1 << 23)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_what_is_freed_is_kept():
    """Memory that was not would be mapped anew: 16 thousand pages, or 32 large ones."""
    done = subprocess.run([sys.executable, "-c", ASKING_AGAIN], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 16
