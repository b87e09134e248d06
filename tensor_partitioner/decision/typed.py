"""Commands that show what a decision says, as they are typed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from shlex import quote

from tensor_partitioner.decision.record import Candidate, MachineFacts
from tensor_partitioner.replicas import Source, ZooModel


def commands(
    source: Source, batch: int, machine: MachineFacts, best: Candidate, *, is_projected: bool
) -> Iterator[str]:
    """Yield what to type to see it again, and to have the plan."""
    model = f"{quote(source.name)} --batch {batch}"
    if isinstance(source, ZooModel):
        model = " ".join((model, *_typed(source.options)))
    if best.parallel is None:
        objective = f" --objective time --topo {quote(machine.name)}" if best.family.endswith("time") else ""
        yield f"plan {model} --workers {machine.devices}{objective} -o plan.json"
    else:
        yield f"simulate {model} --parallel {best.name} --topo {quote(machine.name)}{' --project' * is_projected}"
        yield f"export-plan {model} --parallel {best.name} --to megatron"


def _typed(options: Iterable[tuple[str, object]]) -> Iterator[str]:
    """Yield options of a model as they are typed: a flag for what is true or false, else a name and a value."""
    for name, value in options:
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        else:
            yield f"--{flag} {quote(str(value))}"
