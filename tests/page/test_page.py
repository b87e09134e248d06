"""Pages in a browser, from disk: nothing is fetched, everything can be clicked and reached by the keyboard."""

import itertools
import re

import msgspec
import pytest

import planner
from planner.layout import owned_by_all
from tensor_partitioner.decision import decide
from tensor_partitioner.page import decision_content, plan_content, write, write_beside

PAGES = ("decision", "pipeline", "plan")
WIDTHS = (400, 900, 1600)
MOST_BYTES = 5_000_000

TEXTS = """
[...document.querySelectorAll("main .chart svg")].filter((svg) => svg.getBoundingClientRect().width).map((svg) =>
  [...svg.querySelectorAll("text")].filter((text) => text.textContent.trim()).map((text) => {
    const box = text.getBoundingClientRect();
    return [text.textContent, box.left, box.top, box.right, box.bottom];
  }))"""
CHARTS = """
[...document.querySelectorAll(".chart")].map((chart) => ({
  id: chart.id, text: chart.textContent, legend: Boolean(chart.querySelector(".legend")),
  label: chart.querySelector("svg")?.getAttribute("aria-label"),
  caption: chart.closest("figure").querySelector("figcaption").textContent,
}))"""
COLORS = """
["--ground", "--panel", "--ink", "--soft", "--accent", "--good", "--bad"].map((name) => {
  const e = document.createElement("i");
  e.style.color = `var(${name})`;
  document.body.append(e);
  const found = getComputedStyle(e).color.match(/[0-9.]+/g).slice(0, 3).map(Number);
  e.remove();
  return found;
})"""
TIP = """
(() => {
  const tip = document.querySelector('#shares svg [aria-label="tip"]');
  return [getComputedStyle(tip.querySelector("path")).fill, getComputedStyle(tip.querySelector("text")).fill];
})()"""
FOCUSABLE = """
[...document.querySelectorAll("a, button, select, input, summary, [tabindex]")]
  .filter((e) => e.checkVisibility() && !e.disabled).length"""
FOCUSED = """
(() => {
  const e = document.activeElement;
  window.reached.add(e);
  if (e !== document.body && getComputedStyle(e).outlineStyle === "none") window.unseen.push(e.outerHTML);
})()"""
HIDDEN = "[...document.querySelectorAll('.controls, nav, .copy')].every((e) => getComputedStyle(e).display === 'none')"
PIECES = """
const workers = d3.range(DATA.plan.summary.workers);
DATA.plan.summary.parameters.map((t) => [t.layout, t.shape, workers.map((w) => {
  const {counts, place} = pieceOf(t, DATA.plan.summary.ways, w);
  return [[...counts].sort(), [...place].sort()];
})]);"""


@pytest.fixture(params=PAGES)
def opened(request, browser, pages):
    browser.open(pages[request.param])
    return browser


def texts(browser, selector):
    return browser.evaluate(f"[...document.querySelectorAll({selector!r})].map((e) => e.textContent)")


def text(browser, selector):
    return browser.evaluate(f"document.querySelector({selector!r}).textContent")


def set_value(browser, selector, value):
    browser.evaluate(
        f"""(() => {{ const e = document.querySelector({selector!r}); e.value = {value!r};
        for (const kind of ["input", "change"]) e.dispatchEvent(new Event(kind, {{bubbles: true}})); }})()"""
    )


def test_nothing_is_fetched_and_the_console_is_silent(opened):
    opened.size(1200)  # draws everything anew
    assert len(opened.requests()) == 1  # the file itself
    assert opened.complaints() == []


def test_what_would_be_fetched_is_seen(browser, pages):
    browser.open(pages["plan"])
    browser.evaluate("fetch('http://127.0.0.1:9/x').catch(() => null)")
    assert browser.complaints() != []  # the page's own policy forbids it


def test_first_paint_and_size(opened, pages):
    paints = opened.evaluate("performance.getEntriesByType('paint').map((e) => e.startTime)")
    assert paints
    assert max(path.stat().st_size for path in pages.values()) < MOST_BYTES


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overlaps_or_is_cut_off(opened, width):
    opened.size(width)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    pictures = opened.evaluate(TEXTS)
    assert sum(map(len, pictures)) > 10
    for picture in pictures:
        assert all(left >= -1 and right <= width + 1 for _, left, _, right, _ in picture), picture
        for box, other in itertools.combinations(picture, 2):
            assert not overlap(box[1:], other[1:]), (box, other)


def overlap(box, other, slack=2):
    return (
        min(box[2], other[2]) - max(box[0], other[0]) > slack and min(box[3], other[3]) - max(box[1], other[1]) > slack
    )


def test_pictures_have_names_units_and_legends(opened):
    charts = opened.evaluate(CHARTS)
    assert charts
    for chart in charts:
        assert chart["label"], chart
        assert chart["caption"], chart
        if chart["id"] != "matrix":
            assert "[" in chart["text"], chart  # of the unit
        if chart["id"] not in ("causes", "costs"):
            assert chart["legend"], chart


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast_in_both_themes(opened, theme):
    opened.theme(theme)
    colors = opened.evaluate(COLORS)
    ground, panel, *inks = map(luminance, colors)
    assert (ground < 0.2) == (theme == "dark")
    for behind, ink in itertools.product((ground, panel), inks):
        assert (max(behind, ink) + 0.05) / (min(behind, ink) + 0.05) >= 4.5  # WCAG 2.1, level AA


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_tip_can_be_read(browser, pages, theme):
    browser.theme(theme)
    browser.open(pages["decision"])
    browser.hover("#shares svg rect")
    ground, ink = browser.evaluate(TIP)
    background, foreground = luminance(rgb(ground)), luminance(rgb(ink))
    assert (max(background, foreground) + 0.05) / (min(background, foreground) + 0.05) >= 4.5


def rgb(color):
    return [float(part) for part in re.findall(r"[0-9.]+", color)[:3]]


def luminance(color):
    """Relative luminance, as WCAG 2.1 defines it."""
    parts = [c / 255 for c in color]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_print(opened, tmp_path):
    opened.theme("dark", media="print")
    assert opened.evaluate(HIDDEN)
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    opened.pdf(tmp_path / "page.pdf")
    assert opened.evaluate("[...document.querySelectorAll('main > section > details')].every((e) => e.open)")
    assert (tmp_path / "page.pdf").stat().st_size > 20_000


def test_keyboard(opened):
    """Everything that can be focused is reached by Tab, and shows that it is."""
    wanted = opened.evaluate(FOCUSABLE)
    opened.evaluate("window.reached = new Set(); window.unseen = []; document.activeElement.blur()")
    for _ in range(wanted + 1):
        opened.key("Tab")
        opened.evaluate(FOCUSED)
    assert opened.evaluate("window.unseen") == []
    assert opened.evaluate("window.reached.size") >= wanted


def test_candidates_are_sorted_filtered_and_chosen(browser, pages, decision):
    browser.open(pages["decision"])
    names = texts(browser, "#table td.name button")
    assert names == [row.name for row in decision.of_families()]
    browser.click("#only-best")
    assert texts(browser, "#table td.name button") == [row.name for row in decision.candidates[:100]]
    browser.click('#table th button[data-key="needed_bytes"]')
    by_memory = sorted(decision.candidates, key=lambda row: row.needed_bytes)
    first = next(row for row in decision.candidates if row.name == text(browser, "#table td.name button"))
    assert first.needed_bytes == by_memory[0].needed_bytes
    browser.click('#table th button[data-key="needed_bytes"]')
    first = next(row for row in decision.candidates if row.name == text(browser, "#table td.name button"))
    assert first.needed_bytes == by_memory[-1].needed_bytes
    family = decision.candidates[-1].family
    set_value(browser, "#family", family)
    assert set(texts(browser, "#table td.name button")) == {
        row.name for row in decision.candidates if row.family == family
    }
    set_value(browser, "#family", "")
    shown = len(texts(browser, "#table tbody tr"))
    assert shown == min(100, len(decision.candidates))
    if len(decision.candidates) > 100:
        browser.click("#more")
        assert len(texts(browser, "#table tbody tr")) == min(200, len(decision.candidates))


def test_what_does_not_fit_can_be_left_out(browser, pages, pipelined):
    browser.open(pages["pipeline"])
    browser.click("#only-fits")
    assert "too large" not in text(browser, "#table")
    assert browser.evaluate("document.querySelector('#only-fits').checked")


def test_a_row_is_chosen_by_space(browser, pages, decision):
    browser.open(pages["decision"])
    other = decision.of_families()[2]
    browser.evaluate("document.querySelectorAll('#table td.name button')[2].focus()")
    browser.key(" ", text=" ")
    assert text(browser, "#detail h3") == other.name
    assert other.why in text(browser, "#detail")
    assert browser.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    assert any(label.startswith(f"▶ {other.family}") for label in texts(browser, "#shares svg text"))
    seconds = text(browser, "#detail .pair > div:first-child")
    largest = max(other.shares, key=other.shares.__getitem__)
    assert largest in seconds


def test_enter_sorts(browser, pages, decision):
    browser.open(pages["decision"])
    browser.evaluate("document.querySelector('#table th button[data-key=samples_per_s]').focus()")
    browser.key("Enter", text="\r")
    assert browser.evaluate("document.activeElement.dataset.key") == "samples_per_s"
    assert browser.evaluate("document.activeElement.closest('th').getAttribute('aria-sort')") == "descending"


def test_the_slider_of_memory_chooses_among_candidates(browser, pages, decision):
    browser.open(pages["decision"])
    assert decision.best.name in text(browser, "#what")
    least = min(row.needed_bytes for row in decision.candidates)
    share = int(100 * least / decision.machine.memory_bytes)  # of the least memory: rounded down, nothing fits
    browser.evaluate("document.querySelector('#limit').min = 0")
    set_value(browser, "#limit", str(share))
    assert "No candidate that was priced fits" in text(browser, "#what")


MORE = """
[...document.querySelectorAll(".scroll")].filter((box) => box.checkVisibility()).map((box) => {
  const note = box.previousElementSibling;
  return [note.checkVisibility(), box.scrollWidth > box.clientWidth + 1, box.classList.contains("overflowing")];
})"""
OUTSIDE = """
(() => {
  const box = document.querySelector("#table").parentElement.getBoundingClientRect();
  return [...document.querySelectorAll("#table th")].filter((e) => e.checkVisibility() &&
    e.getBoundingClientRect().right > box.right + 1).map((e) => e.querySelector("button").dataset.key);
})()"""


@pytest.mark.parametrize("width", [500, 900])
def test_what_lies_to_the_right_is_said_and_what_matters_does_not(opened, width):
    opened.size(width)
    noted = opened.evaluate(MORE)
    assert noted
    assert all(seen == wider == marked for seen, wider, marked in noted)
    if opened.evaluate("Boolean(document.querySelector('#table'))"):
        assert not {"name", "seconds_per_step", "margin_bytes"} & {*opened.evaluate(OUTSIDE)}
        reasons = "[...document.querySelectorAll('#table td.why, #table .narrow')].filter((e) => e.checkVisibility())"
        rows = opened.evaluate("document.querySelectorAll('#table tbody tr').length")
        assert opened.evaluate(f"{reasons}.length") == rows


def test_candidates_fit_a_wide_screen_and_words_are_whole(browser, pages):
    browser.open(pages["pipeline"])
    browser.size(1600)
    table = "document.querySelector('#table')"
    assert browser.evaluate(f"{table}.scrollWidth <= {table}.parentElement.clientWidth")
    browser.size(480)
    lines = browser.evaluate("[...document.querySelectorAll('#table .whole')].map((e) => e.getClientRects().length)")
    assert set(lines) == {1}


def test_a_plan_that_moves_nothing_says_so(browser, tmp_path):
    write(plan_content(planner.plan(planner.model("mlp-2-16", batch=8), 1), ()), tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert text(browser, "#matrix") == "Nothing moves between workers."


def test_devices_and_schedule(browser, pages, pipelined):
    browser.open(pages["pipeline"])
    assert "stage 0" in text(browser, "#device-said")
    set_value(browser, "#device", "3")
    assert "stage 1" in text(browser, "#device-said")
    browser.click("#grid rect:nth-of-type(1)")
    assert browser.evaluate("document.querySelector('#device').value") == "0"
    lanes = set(texts(browser, "#timelines text"))
    assert {"stage 0", "stage 1"} <= lanes
    assert text(browser, "#window") == "all of it"
    set_value(browser, "#zoom", "4")
    assert text(browser, "#window") != "all of it"
    begin = text(browser, "#window")
    set_value(browser, "#position", "100")
    assert text(browser, "#window") != begin


def test_layers(browser, pages, plan):
    browser.open(pages["plan"])
    browser.click("#close-all")
    assert not browser.evaluate("[...document.querySelectorAll('.layer')].some((e) => e.open)")
    browser.click(".layer summary")
    assert browser.evaluate("document.querySelector('.layer').open")
    browser.evaluate("document.querySelectorAll('.layer > summary')[1].focus()")
    browser.key("Enter", text="\r")
    assert browser.evaluate("document.querySelectorAll('.layer')[1].open")
    browser.click("#open-all")
    whole = text(browser, "#layers")
    assert all(
        name.split(".")[-1] in whole
        for name, t in plan.graph.tensors.items()
        if t.role == "weight" and t.init is not None
    )
    browser.click(".alternatives summary")
    assert "bytes" in text(browser, ".alternatives[open]")
    set_value(browser, "#find", "mlp")
    shown = browser.evaluate("[...document.querySelectorAll('.layer')].filter((e) => !e.hidden).length")
    assert 0 < shown < len(texts(browser, ".layer"))


def test_pictures_show_who_holds_what(browser, pages, plan):
    """Workers hold one piece in the picture exactly where the geometry gives them one region."""
    browser.open(pages["plan"])
    drawn = browser.evaluate(PIECES)
    layouts = {tuple(map(str, layout)): layout for layout in plan.layouts.values()}
    assert drawn
    for spelled, shape, pieces in drawn:
        owned = owned_by_all(tuple(shape), layouts[tuple(spelled)], plan.ways)
        for (region, mine), (other, its) in itertools.combinations(zip(owned, pieces, strict=True), 2):
            assert (region == other) == (mine == its), spelled


def test_the_filled_cell_moves_with_the_worker(browser, pages):
    browser.open(pages["plan"])
    browser.click("#open-all")
    held = "[...document.querySelectorAll('.piece')].map((e) => e.getAttribute('aria-label'))"
    before = browser.evaluate(held)
    set_value(browser, "#worker", "3")
    after = browser.evaluate(held)
    assert len(before) == len(after)
    assert before != after
    assert all("worker 3" in label for label in after)


def test_memory_and_machine(browser, pages):
    browser.open(pages["plan"])
    before = browser.evaluate("document.querySelector('#occupied svg').innerHTML.length")
    assert before > 100
    set_value(browser, "#occupied-worker", "1")
    assert "At most" in text(browser, "#occupied")
    was = browser.evaluate("document.querySelector('#tree details').open")
    browser.click("#tree summary")
    assert browser.evaluate("document.querySelector('#tree details').open") != was
    browser.click("#figures summary")
    assert browser.evaluate("document.querySelector('#figures').open")


def test_run_beside_the_simulation(browser, pages, reports):
    browser.open(pages["plan"])
    captions = texts(browser, "#timelines figcaption")
    assert [caption.split(":")[0] for caption in captions] == ["Simulated step", "Step as it ran"]
    assert "Predicted over measured seconds: 0.5" in text(browser, "#trust")
    assert len(texts(browser, "#spent .chart")) == 2


def test_where_nothing_fits(browser, decision, tmp_path):
    rows = [msgspec.structs.replace(row, fits=False, margin_bytes=-1.0, why="too large") for row in decision.candidates]
    write(decision_content(msgspec.structs.replace(decision, candidates=tuple(rows))), tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert browser.complaints() == []
    assert "too large" in text(browser, "#table")
    browser.click("#only-fits")
    assert texts(browser, "#table tbody tr") == []


@pytest.mark.slow
def test_a_large_model_on_many_devices_is_a_small_file(browser, tmp_path):
    decision = decide("gpt-3-175b", "hgx-h100-nodes-128", batch=1536, budget_s=10)
    write(decision_content(decision), tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < MOST_BYTES
    browser.open(tmp_path / "page.html")
    assert (browser.complaints(), len(browser.requests())) == ([], 1)
    assert f"{decision.machine.devices} x " in text(browser, "h1")
    assert browser.evaluate("performance.getEntriesByType('paint').length") > 0


def test_commands_can_be_copied(browser, pages):
    browser.open(pages["decision"])
    browser.click(".copy")
    assert text(browser, ".command code") in text(browser, "#copied")
    browser.click(".words summary")
    assert browser.evaluate("document.querySelector('.words').open")


def test_a_searched_plan_has_no_grid_of_devices(browser, decision, tmp_path):
    searched = next(row for row in decision.candidates if row.parallel is None)
    write(decision_content(msgspec.structs.replace(decision, candidates=(searched,))), tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert browser.complaints() == []
    assert "searched for 4 workers" in text(browser, "#split")
    assert texts(browser, "#grid") == []


FRAMES = """
[...document.querySelectorAll("iframe")].map((f) => [f.contentDocument.documentElement.scrollWidth - f.clientWidth,
  f.contentDocument.querySelectorAll("svg").length])"""


BOTH_READY = """
[...document.querySelectorAll("iframe")].filter((f) => f.contentDocument?.documentElement?.dataset.ready === "true")
  .length === 2"""


@pytest.mark.parametrize(("width", "theme"), itertools.product([1400, 800, 390], ["light", "dark"]))
def test_two_decisions_side_by_side(browser, decision, pipelined, tmp_path, width, theme):  # noqa: PLR0917
    """Key figures stand in one table, without scripts; both pages are drawn in their frames, and nothing overflows."""
    both = {name: decision_content(of, machine="uniform-4") for name, of in (("a", decision), ("b", pipelined))}
    write_beside(both, tmp_path / "beside.html")
    browser.theme(theme)
    browser.size(width)
    browser.open(tmp_path / "beside.html", BOTH_READY)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    rows = texts(browser, "#figures tbody th")
    assert rows[:2] == ["Train as", "One step"]
    assert [text(browser, f"#figures tbody td:nth-child({place}) strong") for place in (2, 3)] == [
        decision.best.family, pipelined.best.family]  # fmt: skip
    for overflow, pictures in browser.evaluate(FRAMES):
        assert overflow <= 0
        assert pictures
    assert browser.complaints() == []
