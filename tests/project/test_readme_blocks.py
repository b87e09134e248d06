"""What the README and the pages of docs show is run as it stands there, from an empty folder."""

from importlib.util import find_spec

import pytest

from tests.pages import ROOT, blocks_of, run_page, shell_in

SKIPPED = {"make install": "the tests run in what it makes, and each of the demo's commands is in another block"}
"""Blocks that are not run, by what is in them, and why."""

if find_spec("torch") is None:
    SKIPPED["pytorch_model.py"] = "PyTorch is not installed"

pytestmark = pytest.mark.mpi


@pytest.fixture
def shell(tmp_path):
    return shell_in(tmp_path)


def test_readme(shell):
    folder, run = shell
    (folder / "examples").symlink_to(ROOT / "examples")
    blocks = blocks_of("README.md")
    left = [block for block in blocks if not any(text in block[1] for text in SKIPPED)]
    assert len(blocks) - len(left) == len(SKIPPED)
    assert {"python", "sh"} <= {language for language, _ in left}
    run_page(left, folder, run)
    assert (folder / "plan.json").exists()


def test_the_worked_example_shows_what_an_explanation_prints(shell):
    """The table of the worked example, and the decisions in its plan."""
    folder, run = shell
    (folder / "examples").symlink_to(ROOT / "examples")
    blocks = blocks_of("docs/explanation/worked-example.md")
    example = next(block for language, block in blocks if "product.py:product" in block)
    status, _ = run(example)
    assert status == 0
    _, printed = run("plan product.json --explain")
    table = next(block for _, block in blocks if "rejected (added bytes)" in block)
    assert all(line in printed for line in table.splitlines())
    (decided,) = (block for language, block in blocks if language == "json")
    written = (folder / "product.json").read_text()
    for part in ('"X": "S0", "W": "S0", "Y": "S0"', '"X": "S1", "W": "S0", "Y": "S0"', '"Y": "i"', '"Y": "k"'):
        assert part in decided
        assert part in written


HOW_TO = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "how-to").glob("*.md"))
NOT_AS_THEY_STAND = {f"docs/how-to/{page}.md" for page in ("cluster", "loop", "operator", "training")}
"""Pages whose commands want several hosts or many minutes, and two that have tests of their own."""


@pytest.mark.parametrize("page", [page for page in HOW_TO if page not in NOT_AS_THEY_STAND])
def test_how_to(shell, page):
    folder, run = shell
    run_page(blocks_of(page), folder, run)


def test_tutorial(shell):
    pytest.importorskip("torch")
    folder, run = shell
    run_page(blocks_of("docs/tutorial.md"), folder, run)
    assert (folder / "trained.safetensors").exists()
