"""docs/how-to/operator.md does what it says: its files are written and its commands run, in order, from nothing."""

import re

import pytest

from tests.pages import blocks_of, run_page, shell_in

BLOCKS = blocks_of("docs/how-to/operator.md")

pytestmark = pytest.mark.mpi


@pytest.fixture
def shell(tmp_path):
    return shell_in(tmp_path)


def test_the_page_from_beginning_to_end(shell):
    folder, run = shell
    run_page(BLOCKS, folder, run)
    assert {path.name for path in folder.glob("*.py")} == {
        "distance.py",
        "noise.py",
        "look.py",
        "against.py",
        "clusters.py",
    }


def test_the_mistake_that_the_page_shows_is_found(shell):
    """The backward description and its kernel, both without their factor 2: the page's message, but for the digits."""
    folder, run = shell
    code = "".join(block for language, block in BLOCKS if language == "python" and block.startswith("# distance.py"))
    assert "2 * grad[b, k]" in code
    assert "result[...] = 2 * (" in code
    wrong = code.replace("2 * grad[b, k]", "grad[b, k]").replace("result[...] = 2 * (", "result[...] = (")
    (folder / "distance.py").write_text(wrong)
    status, printed = run("operators check squared_distance --operators distance.py")
    assert status == 1
    shown = next(block for language, block in BLOCKS if not language)
    said = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert [re.sub(r"-?[\d.]+", "#", line) for line in said] == [re.sub(r"-?[\d.]+", "#", shown.rstrip("\n"))]


def test_the_mistake_that_the_page_says_is_not_found(shell):
    """A plus for every minus: all checks pass, and only the comparison with something else tells."""
    folder, run = shell
    for name in ("distance.py", "against.py"):
        code = "".join(block for language, block in BLOCKS if language == "python" and block.startswith(f"# {name}"))
        (folder / name).write_text(code.replace(" - ", " + ") if name == "distance.py" else code)
    for operator in ("squared_distance", "squared_distance_backward"):
        status, printed = run(f"operators check {operator} --operators distance.py")
        assert status == 0, printed
    assert run("python against.py") == (0, "something else\n")
