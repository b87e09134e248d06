"""Packages that are missing, or that another one of the same name hides: one line that says what to do."""

import subprocess
import sys
import tomllib

import pytest

import tensor_partitioner
from planner.failures import EXTRAS
from tests.project.conftest import ROOT, SCRIPTS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUN = """import sys
sys.modules.update(dict.fromkeys({missing!r}))
from tensor_partitioner.__main__ import main
main({line!r})"""
TORCH_FILE = "import torch\n\ndef make():\n    return torch.nn.Linear(4, 4)\n"
NEEDED = {"simulate": ("simpy",), "execute": ("safetensors", "threadpoolctl", "mpi4py"), "calibrate": ("scipy",)}


def python(code, folder):
    """Run code in a fresh interpreter that looks for packages in a folder, and then among the project's."""
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def without(missing, line, folder):
    return python(RUN.format(missing=tuple(missing), line=list(map(str, line))), folder)


def test_every_extra_that_is_named_installs_its_package():
    installed = {extra: " ".join(named).lower() for extra, named in PROJECT["optional-dependencies"].items()}
    for package, extra in EXTRAS.items():
        assert {"sklearn": "scikit-learn"}.get(package, package) in installed[extra]


def test_planning_needs_no_extra(tmp_path):
    line = ("plan", "mlp-2-8", "--batch", "8", "--workers", "2", "--explain", "-o", "plan.json")
    for arguments in (line, ("plan", "plan.json"), ("topo", "show", "uniform-8"), ("operators", "--help")):
        done = without(EXTRAS, arguments, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "plan.json").exists()


WITHOUT_PACKAGES = """import importlib.metadata
importlib.metadata.entry_points = lambda **_: ()
from tensor_partitioner.__main__ import main
main({line!r})"""
BESIDE = {"verification": ["operators", "check", "relu", "--cases", "1"], "paper_models": ["plan", "alexnet"]}


@pytest.mark.parametrize("package", BESIDE)
def test_a_package_of_this_repository_that_is_needed_is_named(package, tmp_path):
    done = python(WITHOUT_PACKAGES.format(line=BESIDE[package]), tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].endswith(f"pip install extras/{package}")


def test_a_package_of_models_that_cannot_be_loaded_is_named(tmp_path):
    added = "[importlib.metadata.EntryPoint('old', 'x:Y', '')]"
    done = python(WITHOUT_PACKAGES.format(line=["plan", "gpt2"]).replace("()", added, 1), tmp_path)
    assert (done.returncode, done.stderr) == (2, "error: the models of x:Y could not be loaded: No module named 'x'\n")


@pytest.mark.parametrize(
    ("line", "package"),
    [
        (("plan", "own.py:make", "--workers", "2"), "torch"),
        (("plan", "own.py:make", "--verify"), "torch"),
        (("operators", "check", "erf"), "scipy"),
        *(((name, "--help"), package) for name, packages in NEEDED.items() for package in packages),
    ],
)
def test_an_extra_that_is_needed_is_named(line, package, tmp_path):
    (tmp_path / "own.py").write_text(TORCH_FILE)
    done = without([package], line, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert f"pip install 'tensor-partitioner[{EXTRAS[package]}]'" in done.stderr


FOREIGN = {
    "a module": {"executor.py": "raise SystemExit(9)\n"},
    "a package": {"planner/__init__.py": "raise SystemExit(9)\n"},
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("asked", ["import tensor_partitioner; tensor_partitioner.plan", "main"])
def test_a_foreign_package_is_named_and_not_run(kind, asked, tmp_path):
    ((file, text),) = FOREIGN[kind].items()
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    done = python(RUN.format(missing=(), line=["plan", "--help"]) if asked == "main" else asked, tmp_path)
    assert done.returncode == (2 if asked == "main" else 1)
    assert (
        f"expected tensor-partitioner's package in {ROOT}, found another that shadows it, {tmp_path / file}: "
        in done.stderr
    )
    assert asked != "main" or done.stderr.count("\n") == 1


def test_a_package_that_another_distribution_overwrote_is_named(monkeypatch):
    distributions = {"executor": ["executor", "tensor-partitioner"]}
    monkeypatch.setattr("importlib.metadata.packages_distributions", lambda: distributions)
    said = tensor_partitioner.overwritten(ModuleNotFoundError(name="executor.process"))
    assert said.startswith("executor: executor installed a package of this name into")
    assert "pip uninstall executor, then pip install --force-reinstall tensor-partitioner" in said
    assert tensor_partitioner.overwritten(ModuleNotFoundError(name="numpy")) == ""


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_command_says_its_version(command, name):
    done = command(name, "--version")
    assert (done.returncode, done.stdout) == (0, f"tensor-partitioner {tensor_partitioner.__version__}\n")


@pytest.mark.parametrize(
    ("line", "status", "text"),
    [
        ([], 0, "  topo         show, check and import machines"),
        (["--version"], 0, tensor_partitioner.__version__),
        (["compare", "--version"], 0, tensor_partitioner.__version__),
        (["sketch"], 2, "error: expected a command among decide, diagnose, plan, simulate, "),
    ],
)
def test_the_front_door_as_a_program(line, status, text, tmp_path):
    done = without([], line, tmp_path)
    assert done.returncode == status
    assert text in done.stdout + done.stderr
