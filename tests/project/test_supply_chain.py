"""What is installed, and what pages load: versions are bounded and locked, and nothing comes from elsewhere."""

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKED = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
UNBOUNDED = {"setuptools", "types-pyyaml", "types-protobuf", "scipy-stubs"}
"""Whose major versions are dates, or follow those of others."""


def name_of(requirement):
    return re.split(r"[\[<>=]", requirement)[0].lower().replace("_", "-")


def requirements(*extras):
    """What the package and these extras ask for, each by its name."""
    asked = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    return {name_of(line): line for line in asked if not line.startswith(PROJECT["name"])}


def test_every_requirement_has_an_upper_bound():
    unbounded = {name for name, line in requirements(*PROJECT["optional-dependencies"]).items() if "<" not in line}
    assert unbounded == UNBOUNDED


def test_what_development_needs_is_locked_within_its_bounds():
    version = pytest.importorskip("packaging.requirements")
    for name, line in requirements("simulate", "execute", "data", "page", "docs", "nvrtc", "dev").items():
        assert version.Requirement(line).specifier.contains(LOCKED[name]), f"{line}: run make lock"


def test_every_locked_package_has_a_hash():
    entries = re.split(r"^(?=[\w.-]+==)", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)[1:]
    assert len(entries) == len(LOCKED)
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []


@pytest.fixture
def hooks():
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("hooks_of_the_site", ROOT / "docs" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    "loads",
    [
        '<script async src="https://elsewhere/x.js"></script>',
        "<img alt=x src=//elsewhere/x.png>",
        '<link rel="stylesheet" href="https://elsewhere/x.css">',
        '<link href="https://elsewhere" rel="preconnect">',
        "<style>@import url(https://elsewhere/x.css);</style>",
        "<div style=\"background: url('http://elsewhere/x.png')\">",
    ],
)
def test_a_page_of_the_site_that_loads_from_elsewhere_is_refused(hooks, loads):
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    with pytest.raises(hooks.PluginError, match=r"index.md: expected what lies in the site, found .*elsewhere"):
        hooks.on_post_page(f"<html>{loads}</html>", page, None)


def test_a_page_of_the_site_may_link_elsewhere(hooks):
    page = '<a href="https://elsewhere">x</a><link rel="canonical" href="https://elsewhere/"><img src="x.svg">'
    assert hooks.on_post_page(page, None, None) == page


def test_templates_of_pages_load_nothing_from_elsewhere(hooks):
    """Pages with a plan or a decision are opened in a browser by the tests of pages; here are all parts of them."""
    parts = [
        path for path in (ROOT / "tensor_partitioner" / "page").rglob("*") if path.suffix in {".html", ".css", ".js"}
    ]
    assert parts
    assert [str(path) for path in parts if hooks.LOADS.search(path.read_text())] == []
