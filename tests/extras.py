"""Packages of the folder `extras`, as pip would install them."""

import tomllib
from pathlib import Path

EXTRAS = Path(__file__).resolve().parents[1] / "extras"


def add_extra(name, folder, monkeypatch):
    """Put a package, and what names its entry points, on the import path."""
    project = tomllib.loads((EXTRAS / name / "pyproject.toml").read_text())["project"]
    info = folder / "installed" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = (
        f"[{group}]\n" + "".join(f"{entry} = {value}\n" for entry, value in named.items())
        for group, named in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text("".join(lines))
    monkeypatch.syspath_prepend(info.parent)
    monkeypatch.syspath_prepend(EXTRAS / name)
