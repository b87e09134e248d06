"""The examples in docstrings run; what users call has one."""

import doctest
import importlib
import inspect

import pytest

import planner
import tdl
import tensor_partitioner
from tests.project.conftest import ROOT

PACKAGES = ("tensor_partitioner", "tdl", "topologies", "planner", "simulator", "executor")
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) if ">>>" in path.read_text()]
WITHOUT = ("from_torch", "load_operators")  # which need PyTorch, or a file: docs have examples of both
SHOWN = [
    getattr(tensor_partitioner, name) for name in dir(tensor_partitioner) if name not in WITHOUT and name[0] != "_"
]
SHOWN += [planner.GraphBuilder, tdl.op]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_run(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    failed, attempted = doctest.testmod(module)
    assert attempted
    assert not failed


@pytest.mark.parametrize("public", SHOWN, ids=lambda public: public.__name__)
def test_what_users_call_has_an_example(public):
    assert ">>> " in inspect.getdoc(public)
