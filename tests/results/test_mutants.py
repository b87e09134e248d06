"""Files with something changed at random: refused in one line, or understood; never an unexpected failure."""

import random

import pytest

from results.mutants.formats import mutant, shares
from results.mutants.run import faults_of
from results.mutants.watch import CONTROLS, DETECTORS, controls

COUNT, SEED = 1000, 0
NAMES = (
    "plan", "graph", "topology", "report", "decision", "profile", "Nsight export", "pins", "language model",
    "Megatron script", "torchtitan", "DeepSpeed", "Accelerate", "scoreboard", "nvidia-smi", "NCCL", "hwloc", "data",
    "weights", "safetensors", "manifest",
)  # fmt: skip


def test_every_detector_finds_its_controls():
    assert {detector for detector, _ in CONTROLS.values()} == set(DETECTORS)
    assert [name for name, is_found in controls().items() if not is_found] == []


def test_formats_share_the_mutants():
    counts = shares(COUNT)
    assert counts.keys() | {"hwloc"} == set(NAMES)
    assert sum(counts.values()) >= 0.9 * COUNT


@pytest.mark.parametrize("name", NAMES)
def test_mutants(name):
    if name not in shares(COUNT):
        pytest.skip(f"the extra that reads {name} is not installed")
    assert faults_of(name, shares(COUNT)[name], SEED) == []


@pytest.mark.parametrize("name", ["plan", "topology", "Megatron script", "data", "safetensors"])
def test_a_mutant_follows_from_seed_and_number(name):
    _, _, content = mutant(name, SEED, 1)
    assert mutant(name, SEED, 1)[2] == content
    assert any(mutant(name, SEED, number)[2] != content for number in random.Random(0).sample(range(2, 100), 9))
