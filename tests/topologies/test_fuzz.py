"""Descriptions with something changed at random: understood, or refused in one line; never anything else."""

import random
import re
import warnings

import pytest

from tests.extras import add_extra
from tests.topologies.samples import REAL, SAMPLES, needs_real
from topologies import TopologyError, available, full_text, load_topology, reading
from topologies.imports import import_machine

NUMBERS = ("0", "-1", "1e-320", "1e400", "nan", "99999999999999999999", "*", "*3", "*999999", "K")
WORDS = (
    *NUMBERS, "", "x" * 400, "\x00", "[", "{", "<", "</a>", "&a;", "<!ENTITY", "GPU0", "SYS", "NV99999", "X", "true",
)  # fmt: skip
ROUNDS = 100


def mutated(text, chance):
    """Return a text with one to three places cut, doubled, swapped or replaced."""
    for _ in range(chance.randint(1, 3)):
        lines, words = text.splitlines(keepends=True), list(re.finditer(r"[\w.:/*+-]+", text))
        if not words:
            return text
        match chance.choice(("word", "word", "word", "drop line", "double line", "swap", "cut", "character")):
            case "word":
                word = chance.choice(words)
                text = text[: word.start()] + chance.choice(WORDS) + text[word.end() :]
            case "drop line":
                place = chance.randrange(len(lines))
                text = "".join([*lines[:place], *lines[place + 1 :]])
            case "double line":
                place = chance.randrange(len(lines))
                text = "".join([*lines[:place], lines[place], *lines[place:]])
            case "swap":
                a, b = sorted(chance.sample(range(len(words)), 2)) if len(words) > 1 else (0, 0)
                word, other = words[a], words[b]
                if a != b:
                    between = text[word.end() : other.start()]
                    text = text[: word.start()] + other[0] + between + word[0] + text[other.end() :]
            case "cut":
                text = text[: chance.randrange(len(text))]
            case _:
                place = chance.randrange(len(text))
                text = text[:place] + chr(chance.randrange(1, 256)) + text[place + 1 :]
    return text


def refusal(run, path, text):
    """Return why a text is refused, "" where it is not."""
    path.write_text(text, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run(path)
        except TopologyError as error:
            return str(error)
    return ""


def mutate(texts, run, tmp_path, rounds, seed=0):
    """Return how many of so many mutations were understood."""
    chance = random.Random(seed)
    understood = 0
    for number in range(rounds):
        name, text = texts[number % len(texts)]
        why = refusal(run, tmp_path / name, mutated(text, chance))
        assert "\n" not in why
        understood += not why
    return understood


def loaded(path):
    machine = load_topology(path)
    last = len(machine.devices) - 1
    if last:
        assert machine.bandwidth_bytes_per_s(0, last) > 0


def imported(path):
    assert import_machine(path, "a100-sxm4-40gb").machine.devices


def test_yaml(tmp_path):
    texts = [(f"{name}.yaml", (reading.MACHINES / f"{name}.yaml").read_text()) for name in available()]
    texts += [(f"{name}.yaml", full_text(name)) for name in ("p2.8xlarge", "dgx-1-v100", "pcie-8x-rtx4090")]
    texts = [(name, text) for name, text in texts if "K" not in name]
    understood = mutate(texts, loaded, tmp_path, 2 * ROUNDS)
    assert 0 < understood < 2 * ROUNDS  # some harmless, some not


@pytest.mark.parametrize("kind", [".xml", ".txt"])
def test_samples(tmp_path, monkeypatch, kind):
    add_extra("hwloc", tmp_path, monkeypatch)
    texts = [(name, text) for name, text in SAMPLES.items() if name.endswith(kind)]
    understood = mutate(texts, imported, tmp_path, 2 * ROUNDS)
    assert 0 < understood < 2 * ROUNDS


@needs_real
@pytest.mark.parametrize("folder", ["nccl_xml", "smi_topo", "other"])
def test_real_descriptions(tmp_path, monkeypatch, folder):
    add_extra("hwloc", tmp_path, monkeypatch)
    paths = [path for path in sorted((REAL / folder).iterdir()) if path.suffix in {".xml", ".txt"}]
    mutate([(path.name, path.read_text()) for path in paths], imported, tmp_path, 2 * ROUNDS)
