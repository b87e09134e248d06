"""Converters of PyTorch's operators from outside: in one file, run by `plan`; a clash is refused with its line."""

import re
from pathlib import Path

import pytest

from tests.launcher import exit_status

torch = pytest.importorskip("torch")

from planner import extensions  # noqa: E402
from planner.model_source import model  # noqa: E402
from planner.pytorch import converter  # noqa: E402
from planner.pytorch.translate.call import CONVERTERS, key_of  # noqa: E402
from tdl import TDLError  # noqa: E402
from tensor_partitioner.commands.plan import main  # noqa: E402
from tests.pytorch.models import OF_AN_UNKNOWN_OPERATOR  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_converter.py"

CONVERTER = """
from planner.pytorch import converter, unary

@converter("aten.{}.default")
def converted(t, call):
    {}
    return unary(t, "tanh", call["self"])
"""


@pytest.fixture(autouse=True)
def tables(monkeypatch):
    """Restore the table of converters, and forget files, afterwards."""
    before = dict(CONVERTERS)
    monkeypatch.setattr(extensions, "_loaded", dict(extensions._loaded))
    yield
    CONVERTERS.clear()
    CONVERTERS.update(before)


def plan(capsys, *arguments):
    return exit_status(main, list(map(str, arguments))), capsys.readouterr().err


@pytest.fixture
def written(tmp_path):
    def write(name, read):
        (tmp_path / "a_model.py").write_text(OF_AN_UNKNOWN_OPERATOR)
        (tmp_path / "a_converter.py").write_text(CONVERTER.format(name, read))
        return f"{tmp_path}/a_model.py:make", "--workers", 2, "--operators", tmp_path / "a_converter.py"

    return write


def test_the_example_trains_like_eager_and_is_planned(capsys):
    source = f"{EXAMPLE}:make"
    assert plan(capsys, source, "--verify") == (0, "")
    CONVERTERS.pop(key_of("examples.softcap"))  # the file is loaded, and not run again
    assert plan(capsys, source, "--workers", 4)[0] == 2
    assert plan(capsys, source, "--workers", 4, "--opaque-unknown")[0] == 0


def test_a_file_of_operators_has_converters(capsys, written):
    arguments = written("logcumsumexp", "call.dim(2)")
    assert plan(capsys, *arguments, "--no-verify") == (0, "")  # it is no logcumsumexp
    assert "tanh" in {node.op for node in model(arguments[0]).nodes}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("logcumsumexp", "logcumsumexp with dim=1 is not supported"),  # the converter does not read it
        ("gelu", r"a_converter.py:4: loading: aten.gelu.default: name clash: .* already has a converter"),
    ],
)
def test_what_a_converter_cannot_be_is_refused(capsys, written, name, message):
    status, printed = plan(capsys, *written(name, "pass"))
    assert status == 2
    assert re.search(message, printed)


def test_a_name_is_expected():
    with pytest.raises(TDLError, match="expected the name of an operator of PyTorch to register a converter for"):
        converter(torch.relu)
