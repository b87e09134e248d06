"""A wheel holds the product and nothing else, and works where the sources are not."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("tensor_partitioner", "tdl", "topologies", "planner", "simulator", "executor")
OTHERS = ("results", "tests", "docs")
BESIDE_CODE = (
    "py.typed",
    "*.yaml",
    "*.cu",
    "*.cuh",
    "export/*.txt",
    "export/*.proto",
    "decision/*.json",
    "page/templates/*",
    "page/vendor/*",
)


def run(*line, cwd, **environment):
    done = subprocess.run(
        line, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build from a copy, so that what was built here before has no say."""
    sources, built = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    for folder in (*PRODUCT, *OTHERS):
        shutil.copytree(ROOT / folder, sources / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, sources)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", built, cwd=sources)
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", folder, wheel, cwd=folder)
    return folder


def test_the_wheel_is_the_product(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    held = {name for name in names if not name.partition("/")[0].endswith(".dist-info")}
    wanted = {
        str(path.relative_to(ROOT))
        for package in PRODUCT
        for pattern in ("*.py", *BESIDE_CODE)
        for path in (ROOT / package).rglob(pattern)
    }
    assert {f"{package}/py.typed" for package in PRODUCT} <= wanted
    assert {"topologies/machines/p2.8xlarge.yaml", "topologies/devices/gk210.yaml", "topologies/links.yaml"} <= wanted
    assert held == wanted


def test_the_installed_wheel_works(installed, tmp_path):
    def here(*line):
        return run(*map(str, line), cwd=tmp_path, PYTHONPATH=str(installed))

    for package in PRODUCT:
        assert here(sys.executable, "-c", f"import {package}; print({package}.__file__)").startswith(str(installed))
    commands = installed / "bin"
    here(commands / "plan", "mlp-2-8", "--batch", "8", "--workers", "2", "-o", "plan.json")
    assert (tmp_path / "plan.json").exists()
    assert "board1->gpu3" in here(commands / "simulate", "plan.json", "--topo", "p2.8xlarge")
    assert "convolution" in here(commands / "operators", "list")
