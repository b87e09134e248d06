"""What the documents say is so: commands, files, and the figures of the worked example."""

import json
import re
import tomllib
from pathlib import Path

from planner.plans.plan_json import load_plan
from planner.report.schema import (
    Bottleneck,
    CheckResult,
    CollectiveUse,
    DeviceMemory,
    Evaluation,
    LinkUse,
    OutsideArena,
    Report,
    Spending,
    TaskSeconds,
)
from tensor_partitioner.decision.varied import Varied

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGES = {path.relative_to(ROOT / "docs").as_posix(): path.read_text() for path in (ROOT / "docs").rglob("*.md")}
EXAMPLE = PAGES["explanation/worked-example.md"]
REPORTS = PAGES["reference/reports.md"]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


def test_every_command_is_in_the_readme():
    for name in SCRIPTS:
        assert re.search(rf"`[^`]*\b{name}\b", README), name


def test_make_targets_of_the_readme_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = {word for line in re.findall(r"make ([a-z -]+)`", README) for word in line.split()}
    assert used
    assert used <= targets


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 120


def test_linked_files_exist():
    texts = [(ROOT, README), *(((ROOT / "docs" / page).parent, text) for page, text in PAGES.items())]
    for folder, text in texts:
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            if not target.startswith("http"):
                assert (folder / target).exists(), target


def test_the_worked_example_is_what_the_code_finds_and_stores():
    path = ROOT / "examples" / "product.plan.json"
    plan, data = load_plan(path), json.loads(path.read_text())
    rows = re.findall(r"^\| from \d \| (.+) \|$", EXAMPLE, re.MULTILINE)
    table = [[0 if cell.strip() == "-" else int(cell) for cell in row.split("|")] for row in rows]
    assert plan.bytes.tolist() == table
    assert plan.step_bytes() == (64, 64)
    decided = re.findall(r"^\| (X|W|Y) \| (S\d|R) \| (S\d|R) \|", EXAMPLE, re.MULTILINE)
    assert len(decided) == 3
    for name, *placements in decided:
        assert [step["tensors"][name] for step in data["steps"]] == placements


def documented(heading):
    """The keys that a section of docs/reference/reports.md describes, by part; those of the report itself under ""."""
    by_part, part = {}, ""
    section = REPORTS.split(f"## {heading}\n")[1].split("\n## ")[0]
    for row in re.findall(r"^\|(.*`\w+`.*)\|$", section, re.MULTILINE):
        cells = [cell.strip() for cell in row.split("|")]
        if heading == "Parts of a report":
            part = cells.pop(0).strip("`") or part
        by_part.setdefault(part, []).extend(re.findall(r"`(\w+)`", cells[0]))
    return {name: sorted(keys) for name, keys in by_part.items()}


PARTS = {
    "links": LinkUse, "collectives": CollectiveUse, "devices": DeviceMemory, "spending": Spending,
    "bottlenecks": Bottleneck, "tasks": TaskSeconds, "outside_arena": OutsideArena, "evaluations": Evaluation,
    "check": CheckResult,
}  # fmt: skip


def test_every_key_of_a_report_is_documented():
    assert documented("Report") == {"": sorted(Report.__struct_fields__)}
    assert documented("Parts of a report") == {name: sorted(kind.__struct_fields__) for name, kind in PARTS.items()}
    assert documented("Decisions that vary") == {"": sorted(Varied.__struct_fields__)}
