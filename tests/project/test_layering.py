"""The walls of the house, read from the imports of every file."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("display", "tdl", "topologies", "planner", "simulator", "executor")
MAY_IMPORT = {
    "display": {"display"},
    "tdl": {"tdl"},
    "topologies": {"display", "topologies"},
    "planner": {"display", "tdl", "topologies", "planner"},
    "simulator": {"display", "tdl", "topologies", "planner", "simulator"},
    "executor": {"display", "tdl", "topologies", "planner", "executor"},
}
NEVER_IMPORT = {
    "planner.graph": ("planner.plans", "planner.search", "planner.program", "planner.report", "planner.explanations"),
    "planner.plans": ("planner.search", "planner.program", "planner.report", "planner.explanations"),
    "planner.search": ("planner.program", "planner.report", "planner.explanations"),
    "planner.program": ("planner.search", "planner.report", "planner.explanations"),
    "planner.report": ("planner.search", "planner.explanations"),
    "planner.export": ("planner.search", "planner.program", "planner.report"),
    "simulator": ("planner.search", "planner.explanations"),
    "executor": ("planner.search", "planner.explanations"),
}
"""Data flows one way: graph, plan, program, report. Reports do not search."""

SEARCH_FLOORS = ("costs", "coarse", "objectives", "solver")
"""Packages of `planner.search`, from the ground up; the searchers themselves stand above."""

ONLY_IN = {"simpy": "simulator", "mpi4py": "executor", "cupy": "executor"}
TORCH_ROOMS = ("planner.pytorch", "executor.torch")
"""Where PyTorch may be imported; nothing else imports these rooms, but by name when they are asked for."""

FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def imports(path):
    """Yield (module, line) of every import, those that only type checkers follow included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (inner if inner in MODULES else node.module), node.lineno


def is_in_torch_room(module):
    return f"{module}.".startswith(tuple(f"{room}." for room in TORCH_ROOMS))


def test_there_are_files():
    assert len(FILES) > 40


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_respect_the_walls(path):
    package = path.relative_to(ROOT).parts[0]
    for module, line in imports(path):
        top = module.split(".")[0]
        where = f"{path.relative_to(ROOT)}:{line} imports {module}"
        if top in PACKAGES:
            assert top in MAY_IMPORT[package], where
        for room, forbidden in NEVER_IMPORT.items():
            if f"{module_name(path)}.".startswith(f"{room}."):
                assert not f"{module}.".startswith(tuple(f"{one}." for one in forbidden)), where
        assert ONLY_IN.get(top, package) == package, where
        if not is_in_torch_room(module_name(path)):
            assert top != "torch", where
            assert not is_in_torch_room(module), where


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_no_import_is_hidden_in_a_function(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ast.walk(node):
                where = f"{path.relative_to(ROOT)}:{inner.lineno}" if hasattr(inner, "lineno") else ""
                assert not isinstance(inner, ast.Import | ast.ImportFrom), f"{where} imports within {node.name}"


@pytest.mark.parametrize("floor", SEARCH_FLOORS)
def test_the_search_stands_on_its_floors(floor):
    below = {f"planner.search.{name}" for name in SEARCH_FLOORS[: SEARCH_FLOORS.index(floor) + 1]}
    files = [path for path in FILES if module_name(path).startswith(f"planner.search.{floor}.")]
    assert files
    for path in files:
        for module, line in imports(path):
            if module.startswith("planner.search"):
                assert ".".join(module.split(".")[:3]) in below, f"{path.relative_to(ROOT)}:{line} imports {module}"


def test_the_search_knows_nothing_of_programs_and_reports():
    for path in FILES:
        if module_name(path).startswith("planner.search"):
            for module, line in imports(path):
                where = f"{path.relative_to(ROOT)}:{line} imports {module}"
                assert not module.startswith(("planner.program", "planner.report")), where


SIMULATOR = [path for path in FILES if path.relative_to(ROOT).parts[0] == "simulator"]


@pytest.mark.parametrize("path", SIMULATOR, ids=module_name)
def test_the_simulator_reaches_into_no_other_object(path):
    """SimPy is used through its public interface."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            assert ast.unparse(node.value) == "self", f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


def test_no_import_cycles():
    graph = {}
    for name, path in MODULES.items():
        used = {module for module, _ in imports(path) if module in MODULES}
        # Importing a.b.c runs a and a.b first, unless they are running already.
        used |= {package for module in used for package in packages_of(module)} - set(packages_of(name))
        graph[name] = used - {name}
    assert find_cycle(graph) == []


@pytest.mark.parametrize("package", [name for name, path in MODULES.items() if path.name == "__init__.py"])
def test_nothing_public_has_the_name_of_a_submodule(package):
    """`planner.plan` cannot be a function and a module."""
    if package.startswith(TORCH_ROOMS):
        pytest.importorskip("torch")
    public = set(getattr(importlib.import_module(package), "__all__", ()))
    modules = {name.removeprefix(f"{package}.") for name in MODULES if name.startswith(f"{package}.")}
    assert not {name for name in public & modules if callable(getattr(importlib.import_module(package), name))}


def packages_of(module):
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def find_cycle(graph):
    done, trail = set(), []

    def visit(name):
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in done:
            return []
        trail.append(name)
        for used in sorted(graph[name]):
            cycle = visit(used)
            if cycle:
                return cycle
        trail.pop()
        done.add(name)
        return []

    for name in graph:
        cycle = visit(name)
        if cycle:
            return cycle
    return []


def test_the_cycle_finder_finds_one():
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
