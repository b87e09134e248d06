"""Random plans of 2, 4 and 8 workers in turn, as files: `python -m tests.cross.draw_plans FOLDER COUNT`."""

import random
import sys
from pathlib import Path

from tests.cross.cases import graph
from tests.cross.random_plans import random_plan

WAYS = {2: (2,), 4: (2, 2), 8: (2, 2, 2)}
MODELS, OPTIMIZERS = ("mlp", "cnn", "rnn", "wresnet"), ("sgd", "adam")


def draw(folder, count):
    """Write `count` plans as kWORKERS-NUMBER.json; a number always has the same plan."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        workers, rng = list(WAYS)[number % len(WAYS)], random.Random(f"plan {number}")
        model = graph(rng.choice(MODELS), "float32", rng.choice(OPTIMIZERS))
        random_plan(model, WAYS[workers], rng).save(folder / f"k{workers}-{number:02}.json")


if __name__ == "__main__":
    draw(Path(sys.argv[1]), int(sys.argv[2]))
