"""What every test may use; tests marked `gpu` need CuPy and a GPU."""

import importlib
import importlib.util

import pytest


def pytest_addoption(parser):
    parser.addoption("--require-gpu", action="store_true", help="fail where tests marked gpu cannot run")


def pytest_collection_modifyitems(config, items):
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
