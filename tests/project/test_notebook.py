"""The notebook of a lesson runs as it stands; `python -m tests.project.test_notebook` renews what it shows."""

import contextlib
import io
import json
from pathlib import Path

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "matrix_product.ipynb"


def run_cells(cells):
    """Run code cells in one namespace and yield each with what it prints."""
    names = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)
            yield cell, printed.getvalue()


def shown(cell):
    return "".join(line for output in cell["outputs"] for line in output["text"])


def test_the_notebook_prints_what_it_shows():
    notebook = json.loads(NOTEBOOK.read_text())
    assert notebook["nbformat"] == 4
    count = 0
    for cell, printed in run_cells(notebook["cells"]):
        assert printed == shown(cell)
        count += 1
    assert count == sum(cell["cell_type"] == "code" for cell in notebook["cells"]) > 5


def test_it_is_a_notebook_for_its_readers():
    nbformat = __import__("pytest").importorskip("nbformat")
    nbformat.validate(nbformat.read(NOTEBOOK, as_version=4))


if __name__ == "__main__":
    notebook = json.loads(NOTEBOOK.read_text())
    for cell, printed in run_cells(notebook["cells"]):
        text = printed.splitlines(keepends=True)
        cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": text}] if text else []
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
