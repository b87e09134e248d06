"""Seeded questions: a model, a machine, named parallelism and a stack, each asked in every way there is."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from planner.parallel import Parallel
from simulator.projection.stack import STACKS

MODULE = "examples/pytorch_model.py:make"
TEXT = ("--sequence", "32", "--vocabulary", "96")
MODELS = {
    "mlp-3-64": (),
    "transformer-4-64": ("--heads", "4", *TEXT),
    "llama-4-64": ("--heads", "4", *TEXT),
    "llama-3-64": ("--heads", "4", "--experts", "4", *TEXT),
    "wresnet-14-0.25": ("--image", "32", "--classes", "16"),
    MODULE: (),
}
BFLOAT16 = ("hgx-h100", "dgx-a100", "p4d.24xlarge")
MACHINES = (*BFLOAT16, "uniform-8", "dgx-1-v100")


@dataclass(frozen=True, slots=True)
class Question:
    """What a step of a model is asked about."""

    model: str
    options: tuple[str, ...]
    machine: str
    parallel: Parallel
    stack: str

    @property
    def words(self) -> tuple[str, ...]:
        """The model and its options, as they are typed."""
        return (self.model, *self.options)


def questions(count: int, seed: int = 0) -> list[Question]:
    """Draw questions of up to eight workers."""
    draw = random.Random(seed)
    return [_question(draw) for _ in range(count)]


def _question(draw: random.Random) -> Question:
    model = draw.choice(list(MODELS))
    is_text = model != MODULE and model.startswith(("transformer", "llama"))
    degrees = dict.fromkeys(("pp", "dp", "cp", "tp"), 1)
    layers = int(model.split("-")[1]) if is_text else 1
    for _ in range(draw.randint(1, 3)):
        stages = ["pp"] if 2 * degrees["pp"] <= layers else []
        degrees[draw.choice(["dp", "dp", "tp", *([*stages, "cp"] if is_text else [])])] *= 2
    count = draw.choice((1, 2, 4))
    each = draw.choice((2, 3) if model == MODULE else (1, 2, 3))  # PyTorch traces one sample otherwise
    if degrees["pp"] > 1:
        count = max(count, degrees["pp"])
    parallel = Parallel(
        **degrees,
        sp=degrees["tp"] > 1 and is_text and draw.random() < 0.5,
        zero=draw.choice((0, 1, 2, 3)) if degrees["dp"] * degrees["cp"] > 1 and degrees["pp"] == 1 else 0,
        micro_batch=each,
        recompute=draw.choice(("none", "none", "full")) if is_text else "none",
    )
    if "--experts" in MODELS[model] and degrees["dp"] > 1:
        parallel = replace(parallel, ep=draw.choice((1, 2)))
    if degrees["pp"] > 1:
        parallel = replace(parallel, schedule=draw.choice(("1f1b", "zero-bubble", "gpipe")))
    batch = ("--batch", str(each * count * degrees["dp"]))
    machine = draw.choice(MACHINES)
    dtypes = ("float32", "mixed", "bfloat16") if machine in BFLOAT16 else ("float32",)
    dtype = ("--dtype", draw.choice(dtypes)) if draw.random() < 0.5 and is_text else ()
    return Question(model, (*MODELS[model], *batch, *dtype), machine, parallel, draw.choice([*STACKS]))
