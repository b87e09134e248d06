"""Files with something changed at random: refused in one line, or understood; never an unexpected failure."""

import json
import random
from pathlib import Path

import pytest
import yaml

from tensor_partitioner.commands.plan import main as plan
from tensor_partitioner.commands.simulate import main as simulate
from topologies import full_text

ROOT = Path(__file__).resolve().parents[2]
PLAN = json.loads((ROOT / "examples" / "product.plan.json").read_text())
TOPOLOGY = yaml.safe_load(full_text("uniform-8"))
VALUES = (None, True, -1, 0, 1, 3, 2**70, 1.5, 1e400, "", "S0", "S9", "R", "k", "W", "\n", [], [2, 2], {}, {"a": 1})
ROUNDS = 100


def places(data, path=()):
    """Yield the path of everything within nested data."""
    if isinstance(data, dict | list):
        for key in data if isinstance(data, dict) else range(len(data)):
            yield (*path, key)
            yield from places(data[key], (*path, key))


def mutated(data, chance):
    """Return a copy in which one place is replaced, removed or doubled."""
    data = json.loads(json.dumps(data))
    path = chance.choice(list(places(data)))
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    match chance.choice(("replace", "replace", "remove", "double", "rename")):
        case "remove":
            del inner[path[-1]]
        case "double" if isinstance(inner, list):
            inner.insert(path[-1], inner[path[-1]])
        case "rename" if isinstance(inner, dict):
            inner[f"{path[-1]}x"] = inner.pop(path[-1])
        case _:
            inner[path[-1]] = chance.choice(VALUES)
    return data


def ends_well(main, arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    assert ended.value.code in {0, 2}, shown.err
    errors = [line for line in shown.err.splitlines() if not line.startswith(("warning: ", "note: "))]
    assert len(errors) == (1 if ended.value.code else 0), shown.err


def cut_or_damaged(text, chance):
    damaged = bytearray(text[: chance.randrange(len(text))] if chance.random() < 0.5 else text)
    for _ in range(chance.randrange(3)):
        if damaged:
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
    return damaged


SIMULATE = (simulate, ("FILE", "--topo", "uniform-8"))
KINDS = {
    "plan": (lambda chance: json.dumps(mutated(PLAN, chance)).encode(), SIMULATE, (plan, ("FILE", "--explain"))),
    "graph": (lambda chance: json.dumps(mutated(PLAN["graph"], chance)).encode(), (plan, ("FILE", "--ways", "2,2"))),
    "topology": (
        lambda chance: yaml.safe_dump(mutated(TOPOLOGY, chance)).encode(),
        (simulate, (ROOT / "examples" / "product.plan.json", "--topo", "FILE")),
    ),
    "text": (lambda chance: cut_or_damaged(json.dumps(PLAN).encode(), chance), SIMULATE),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_damaged(tmp_path, capsys, kind, seed):
    chance, file = random.Random(seed), tmp_path / kind
    content, *lines = KINDS[kind]
    for _ in range(ROUNDS):
        file.write_bytes(content(chance))
        for main, words in lines:
            ends_well(main, (file if word == "FILE" else word for word in words), capsys)
