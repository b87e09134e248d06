"""Every CUDA source compiles for GPUs from Volta to Blackwell; this needs a compiler, and no GPU."""

from pathlib import Path

import pytest

import executor
from executor.values import OPTIONS, source_of

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed: pip install -e '.[nvrtc]'")
SOURCES = sorted(Path(executor.__file__).parent.rglob("*.cu"))
ARCHITECTURES = ("sm_70", "sm_80", "sm_90", "sm_100")


def compiled(source, architecture):
    """Return what the compiler says, and the size of what it made."""
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"source.cu", 0, [], [])
    options = [f"--gpu-architecture={architecture}", *OPTIONS]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytes(size + 1)  # of its own: the compiler writes into it, and Python has one b" " for all
    nvrtc.nvrtcGetProgramLog(program, log)
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        return log.decode(), 0
    return log.decode(), nvrtc.nvrtcGetCUBINSize(program)[1]


def test_there_are_sources():
    assert [source.name for source in SOURCES] == ["segment_sums.cu", "multifetch.cu"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_it_compiles(source, architecture):
    log, nbytes = compiled(source_of(source), architecture)
    assert "error" not in log
    assert nbytes > 1000


def test_what_does_not_compile_is_told():
    log, nbytes = compiled(source_of(SOURCES[1]).replace("sizeof(Term) == 56", "sizeof(Term) == 64"), "sm_80")
    assert nbytes == 0
    assert "table.py lays the tables out alike" in log
