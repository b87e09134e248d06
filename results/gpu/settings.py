"""What a run is made with: its backend, its folders, its deadline, and how much it does. Needs no other package."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the zoo with its options; one worker trains it."""

    name: str
    options: Options


@dataclass(frozen=True, slots=True)
class Scale:
    """How much a run does.

    Every operator is tried on `cases` small cases of each style, in each of `precisions`; extents of real ones are
    divided by `cut`. Of `plans` random plans those of `ranks` workers run by each of `jobs`, a transport and a
    library of kernels, `first_plans` of each before all others. Operators are
    checked in `shares`, by so many `processes` at once. A step is timed for `step_s` seconds on each of `sides`, of
    which `steps_at_once` are prepared at once; `calibrate_s` is the limit of a calibration, and `pytest` selects tests.
    """

    models: Mapping[str, Model]
    precisions: tuple[str, ...]
    cases: int
    cut: int
    shares: int
    processes: int
    plans: int
    first_plans: int
    ranks: tuple[int, ...]
    jobs: tuple[tuple[str, str], ...]
    sides: tuple[str, ...]
    steps_at_once: int
    step_s: float
    calibrate_s: float
    pytest: tuple[str, ...]


FULL = Scale(
    models={
        "gpt2": Model("gpt2", {"batch": 8, "sequence": 1024, "dtype": "mixed", "optimizer": "adamw"}),
        "llama block": Model("llama-1-4096", {"batch": 2, "sequence": 2048, "dtype": "bfloat16"}),
        "resnet50": Model("wresnet-50-1", {"batch": 64, "image": 224}),
    },
    precisions=("float64", "float32", "tf32", "float16", "bfloat16"),
    cases=2,
    cut=1,
    shares=24,
    processes=12,
    plans=20,
    first_plans=2,
    ranks=(2, 4, 8),
    jobs=(("ipc", "torch"), ("ipc", "arrays"), ("p2p", "arrays")),
    sides=("eager", "torch", "graph", "arrays", "compiled"),
    steps_at_once=3,
    step_s=2.0,
    calibrate_s=40.0,
    pytest=("-m", "gpu", "--require-gpu", "-n", "8"),
)
"""What a GPU is measured with."""

WORDS: Options = {"batch": 2, "sequence": 32, "vocabulary": 128}
TRIAL = replace(
    FULL,
    models={
        "gpt2": Model("transformer-1-64", {**WORDS, "flash": True, "dtype": "mixed", "optimizer": "adamw"}),
        "llama block": Model("llama-1-64", {**WORDS, "dtype": "bfloat16"}),
        "resnet50": Model("wresnet-14-0.25", {"batch": 4, "image": 64, "classes": 16}),
    },
    precisions=("float64", "float32", "float16", "bfloat16"),
    cases=1,
    cut=32,
    shares=1,
    processes=2,
    plans=6,
    first_plans=1,
    ranks=(2, 4),
    jobs=(("shared", "torch"), ("p2p", "arrays")),
    sides=("eager", "torch", "arrays"),
    steps_at_once=2,
    step_s=0.2,
    calibrate_s=2.0,
    pytest=("-m", "gpu"),
)
"""The same in small, for a host without a GPU: it shows that every part works, and measures nothing."""

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""What the environment of processes has that compute on the host, several at once."""

SCALES = {"cupy": FULL, "numpy": TRIAL}
"""How much is done, by backend."""

UNUSABLE = 2
"""The exit status of `probe` where the backend cannot be used."""

LIBRARIES = ("arrays", *(["torch"] if find_spec("torch") else []))
"""The executor's libraries of kernels that are installed."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run, as each of its processes is told of it: results go to `out`, all else to `work`; it ends at `until`.

    `until` is a moment in seconds since the epoch.
    """

    backend: str
    out: Path
    work: Path
    until: float

    @property
    def scale(self) -> Scale:
        """How much it does."""
        return SCALES[self.backend]

    @property
    def on_gpu(self) -> bool:
        """True if it is a GPU that computes."""
        return self.backend == "cupy"

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.until - time.time()

    @property
    def sides(self) -> tuple[str, ...]:
        """Who trains the models, of those that are installed."""
        return self.scale.sides if "torch" in LIBRARIES else ("arrays",)

    def command(self, module: str, *arguments: str) -> tuple[str, ...]:
        """Return the command that runs a module of this package with this run."""
        run = (self.backend, str(self.out), str(self.work), repr(self.until))
        return (sys.executable, "-m", f"results.gpu.{module}", *run, *arguments)

    def plan(self, model: str) -> Path:
        """Where a model's plan is kept."""
        return self.work / f"{model.replace(' ', '-')}.plan.json"

    def plans(self, ranks: int) -> list[Path]:
        """Return the random plans of so many workers."""
        return sorted(self.random.glob(f"k{ranks}-*.json"))

    @property
    def random(self) -> Path:
        """Where random plans are kept."""
        return self.work / "random"

    def write(self, stage: str, data: object) -> None:
        """Write what a stage has measured so far."""
        (self.out / f"{stage}.json").write_text(json.dumps(data, indent=1) + "\n")

    def read(self, stage: str) -> Any:
        """Read what a stage before has measured."""
        return json.loads((self.out / f"{stage}.json").read_text())


def this_run(arguments: Sequence[str] | None = None) -> tuple[Run, tuple[str, ...]]:
    """Read a process's arguments, as `Run.command` writes them; return the run and the others."""
    backend, out, work, until, *others = sys.argv[1:] if arguments is None else arguments
    return Run(backend, Path(out), Path(work), float(until)), tuple(others)
