"""Files with something changed at random: refused in one line, or understood; never an unexpected failure."""

import pytest

from results.mutants.formats import shares
from results.mutants.run import faults_of
from results.mutants.watch import CONTROLS, DETECTORS, controls

COUNT, SEED = 250, 0
NAMES = (
    "plan", "graph", "topology", "report", "decision", "profile", "Nsight export", "pins", "language model",
    "Megatron script", "torchtitan", "DeepSpeed", "Accelerate", "scoreboard", "nvidia-smi", "NCCL", "hwloc", "data",
    "weights", "safetensors", "manifest",
)  # fmt: skip


def test_every_detector_finds_its_controls():
    assert {detector for detector, _ in CONTROLS.values()} == set(DETECTORS)
    assert [name for name, is_found in controls().items() if not is_found] == []


@pytest.mark.parametrize("name", NAMES)
def test_mutants(name):
    if name not in shares(COUNT):
        pytest.skip(f"the extra that reads {name} is not installed")
    assert faults_of(name, shares(COUNT)[name], SEED) == []
