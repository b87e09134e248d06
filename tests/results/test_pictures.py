"""Bars as the papers draw them: a title, both axes with what they are, a legend, and no text over another."""

import itertools
import re
import xml.etree.ElementTree as ET

import pytest

from results import bars, svg
from results.experiment import ROOT

DRAWN = sorted(
    path
    for path in (ROOT / "results").glob("*/*.svg")
    if re.search(r"bars\.draw|throughput_pages", (path.parent / "run.py").read_text())
)
LETTER = 0.56
"""About how wide a letter of the fonts in use is, over its size."""


def boxes(picture):
    """Yield what is written, with where it lies: left, top, right, bottom; text that is turned is left out."""
    root = ET.fromstring(picture)
    for label in root.iter("{http://www.w3.org/2000/svg}text"):
        if "transform" in label.attrib:
            continue
        size = float(label.get("font-size", root.get("font-size")))
        x, y, width = float(label.get("x")), float(label.get("y")), LETTER * size * len(label.text or "")
        left = x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[label.get("text-anchor", "start")]
        yield label.text, (left, y - 0.75 * size, left + width, y + 0.2 * size)


def overlapping(picture):
    def together(box, other):
        return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]

    return [(a, b) for (a, box), (b, other) in itertools.combinations(boxes(picture), 2) if together(box, other)]


def test_there_are_pictures():
    assert len(DRAWN) >= 5


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_picture_says_what_it_shows(path):
    picture = path.read_text()
    root = ET.fromstring(picture)
    width = float(root.get("width"))
    assert overlapping(picture) == []
    assert all(left >= 0 and right <= width for _, (left, _, right, _) in boxes(picture))
    title, *panels = re.findall(r'font-weight="bold">([^<]+)<', picture)
    assert title
    assert panels
    assert len(re.findall(r"rotate\(-90 [^>]*>[^<]+<", picture)) == len(panels), "what the vertical axes are"
    assert re.search(rf'y="{svg.LEGEND_Y:.1f}" >[^<]+<', picture), "a legend"


def drawn(*heights, fits=True):
    groups = {str(number): [bars.Bar("one", height, fits=fits)] for number, height in enumerate(heights)}
    return bars.draw("title", [bars.Panel("panel", groups, "GPUs", "seconds")], {"one": svg.BLUE})


def test_heights_are_to_scale():
    heights = [float(height) for height in re.findall(r'height="([\d.]+)" stroke', drawn(1.0, 2.0, 4.0))]
    assert [height / heights[0] for height in heights] == pytest.approx([1, 2, 4], rel=0.01)


def test_what_does_not_fit_is_hollow():
    assert "stroke-dasharray" in drawn(1.0, fits=False)
    assert "stroke-dasharray" not in drawn(1.0)


def test_text_over_text_is_found():
    parts = [svg.text(10, 20, "one thing"), svg.text(15, 22, "another")]
    assert overlapping(svg.drawing(100, 100, "", parts)) == [("one thing", "another")]


@pytest.mark.parametrize("most", [0.054, 0.9, 1.0, 7.4, 13.5, 418.0, 2600.0])
def test_ticks_are_few_and_reach(most):
    ticks = bars.ticks(most)
    assert ticks[0] == 0
    assert ticks[-1] <= most < 2 * ticks[-1]
    assert 4 <= len(ticks) <= 11
