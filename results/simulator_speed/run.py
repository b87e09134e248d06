"""How fast the simulator is: its engine alone, and the command `simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from results.experiment import Pages, in_process, machine, publish, table

HERE = Path(__file__).parent
CASES = (
    ("wresnet-152-10", 8, "2,2,2"),
    ("rnn-10-8k", 64, "2,2,2"),
    ("transformer-24-2048", 8, "2,2,2"),
    ("transformer-24-2048", 16, "2,2,2,2"),
    ("transformer-24-2048", 64, "2,2,2,2,2,2"),
)
TRIES = 2


def best_engine() -> dict[str, float]:
    """Return the engine's best figures."""
    found = [in_process("results.simulator_speed.measure", "engine") for _ in range(TRIES)]
    return {name: (min if name == "at_once_s" else max)(one[name] for one in found) for name in found[0]}


def measured(model: str, batch: int, ways: str) -> dict[str, Any]:
    """Return the faster of some runs of the command."""
    how = ("results.simulator_speed.measure", "command", model, str(batch), ways)
    found = min((in_process(*how) for _ in range(TRIES)), key=lambda one: float(one["cpu_s"]))
    row = {"model": model, "batch": batch, "ways": ways, **found}
    print(row, flush=True)
    return row


def pages(data: Any) -> Pages:
    """Return the README's tables."""
    engine = data["engine"]
    return {
        "machine": f"Measured on: {data['machine']}.",
        "engine": table(
            ["flows", "figure"],
            [
                ["in waves of 56 of equal size", f"{engine['equal_per_s']:,.0f} per second"],
                ["in waves of 56 of random sizes", f"{engine['random_per_s']:,.0f} per second"],
                ["10 000 of random sizes at once", f"{engine['at_once_s']:.1f} s"],
            ],
        ),
        "commands": table(
            ["model", "batch", "ways", "CPU s", "memory"],
            [
                [
                    f"`{row['model']}`",
                    row["batch"],
                    row["ways"],
                    f"{row['cpu_s']:.1f}",
                    f"{row['memory_bytes'] / 1e6:,.0f} MB",
                ]
                for row in data["commands"]
            ],
        ),
    }


if __name__ == "__main__":
    data = {"machine": machine(), "engine": best_engine(), "commands": [measured(*case) for case in CASES]}
    publish(HERE, data, pages)
