"""The packages that are installed are those that there are."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOP = ("tdl", "topologies", "planner", "simulator", "executor", "results")


def test_every_package_is_listed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = [path.parent.relative_to(ROOT) for top in TOP for path in (ROOT / top).rglob("__init__.py")]
    assert sorted(listed) == sorted(".".join(path.parts) for path in found)
