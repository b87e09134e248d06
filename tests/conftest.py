"""What every test may use; tests marked `gpu` need CuPy and a GPU."""

import importlib
import importlib.util
from collections import defaultdict
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

from tensor_partitioner import display
from tensor_partitioner.commands import decide as decide_command
from tensor_partitioner.decision import deciding
from tests.cupy_double import installed
from tests.extras import add_extra

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

ROOT = Path(__file__).parent
SLOW = (
    "cross/test_counts.py",
    "cross/test_digits.py",
    "cross/test_execution.py",
    "cross/test_killed.py",
    "cross/test_lowering.py",
    "cross/test_schedules.py",
    "cross/test_shares.py",
    "cross/test_stages.py",
    "cross/test_transports.py",
    "cupy_double/test_choice.py",
    "cupy_double/test_execute.py",
    "cupy_double/test_torchrun.py",
    "executor/test_calibrate.py",
    "executor/test_execute.py",
    "executor/test_faults.py",
    "executor/test_transport.py",
    "export/test_engines.py",
    "executor_torch/test_collectives.py",
    "executor_torch/test_torchrun.py",
    "models/test_partitioned.py",
    "models/test_training.py",
    "project/test_packages.py",
    "project/test_readme_blocks.py",
    "pytorch/test_entries.py",
    "results/test_pytorch_architectures.py",
    "results/test_hosts.py",
    "results/test_certificate.py",
    "simulator/test_plans.py",
    "tdl/test_random_descriptions.py",
    "verify/test_mutants.py",
    "verify/test_operators_page.py",
    "cross/test_classes.py",
    "verify/test_soundness.py",
)
"""Files whose tests take long: `make test` leaves them out, `make test-all` does not."""


def pytest_configure(config):
    """Add the packages of rare operators and of verification, where they are not installed."""
    for name, group in (("rare_operators", "tensor_partitioner.pytorch"), ("verification", "tensor_partitioner.cases")):
        if not entry_points(group=group):
            folder, monkeypatch = TemporaryDirectory(), pytest.MonkeyPatch()
            config.add_cleanup(folder.cleanup)
            config.add_cleanup(monkeypatch.undo)
            add_extra(name, Path(folder.name), monkeypatch)


def pytest_addoption(parser):
    parser.addoption("--require-gpu", action="store_true", help="fail where tests marked gpu cannot run")
    parser.addoption("--sample", type=int, help="of every slow test run so many cases, of others at most 8")


def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.path.relative_to(ROOT).as_posix() in SLOW:
            item.add_marker(pytest.mark.slow)
    if config.getoption("--sample") is not None:
        _sample(config, items)
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)  # else one process ends with all of them
    _skip_without_gpu(config, items)


MOST_CASES = 8
"""Cases of a test that is not slow in a sample."""


def _sample(config, items):
    """Keep of each test the cases whose names have the least hashes; a slow test may say how many."""
    cases = defaultdict(list)
    for item in items:
        cases[item.path, getattr(item, "originalname", item.name), bool(item.get_closest_marker("slow"))].append(item)
    left_out = set[str]()
    for (*_, slow), alike in cases.items():
        alike.sort(key=lambda item: sha256(item.nodeid.encode()).digest())
        marker = alike[0].get_closest_marker("sample")
        most = marker.args[0] if marker else config.getoption("--sample") if slow else MOST_CASES
        left_out |= {item.nodeid for item in alike[most:]}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]


def _skip_without_gpu(config, items):
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = _gpu_missing() if marked else ""
    if not reason:
        return
    if config.getoption("--require-gpu"):
        pytest.exit(f"{reason}; {len(marked)} tests need it (pip install -e '.[cuda12]' or '.[cuda13]')", returncode=1)
    for item in marked:
        item.add_marker(pytest.mark.skip(reason=reason))


def _gpu_missing():
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    if not importlib.import_module("cupy").cuda.is_available():
        return "CuPy finds no GPU"
    return ""


@pytest.fixture(scope="module")
def cupy():
    """The double of CuPy in its place."""
    with installed() as double:
        yield double


@pytest.fixture(autouse=True)
def _no_word_of_progress(monkeypatch):
    """What commands say in a pipe must not depend on how busy this machine is."""
    monkeypatch.setattr(display, "PIPE_S", (1e6, 1e6))


@pytest.fixture(autouse=True)
def _time_to_search(monkeypatch):
    """What a search finds must not depend on the speed of this machine: a budget that a test does not set is large."""
    (budget,) = (option for option in decide_command.main.command.params if option.name == "budget")
    monkeypatch.setattr(budget, "default", "3600s")
    monkeypatch.setitem(deciding.decide.__kwdefaults__, "budget_s", 3600.0)
