"""A page as one HTML file: templates, styles, scripts and data in it, and nothing that is fetched."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from planner.files import write_file
from tensor_partitioner import __version__, display
from tensor_partitioner.page.records import Page

FOLDER = Path(__file__).parent
TEMPLATES, VENDOR = FOLDER / "templates", FOLDER / "vendor"
LIBRARIES = ("d3.min.js", "plot.umd.min.js")
SCRIPTS = ("base.js", "candidates.js", "sliders.js", "model.js", "time.js", "machine.js", "start.js")


def write(page: Page, path: str | Path) -> None:
    """Write a page where a browser opens it from disk."""
    write_file(path, html(page))


def html(page: Page) -> str:
    """Return a page's text."""
    return (
        _environment()
        .get_template("page.html")
        .render(
            page=page,
            data=_embedded(page),
            style=(TEMPLATES / "page.css").read_text(),
            libraries=[(VENDOR / name).read_text() for name in LIBRARIES],
            scripts=[(TEMPLATES / name).read_text() for name in SCRIPTS],
            version=__version__,
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {
        "seconds": display.seconds,
        "bytes": lambda nbytes: display.quantity(nbytes, "B"),
        "percent": display.percent,
    }
    return environment


def _embedded(page: Page) -> str:
    """Return the data as JSON that no text in it can end the script of."""
    text = msgspec.json.encode(page).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
