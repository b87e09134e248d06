"""Packages under extras/, as pip would install them."""

import tomllib
from pathlib import Path

EXTRAS = Path(__file__).resolve().parents[1] / "extras"


def add(name, folder, monkeypatch):
    """Let Python find a package and its entry points; `folder` is for what pip would write."""
    project = tomllib.loads((EXTRAS / name / "pyproject.toml").read_text())["project"]
    metadata = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = (
        f"[{group}]\n" + "".join(f"{entry} = {value}\n" for entry, value in entries.items())
        for group, entries in project["entry-points"].items()
    )
    (metadata / "entry_points.txt").write_text("".join(lines))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.syspath_prepend(EXTRAS / name)
