"""What a shell is told may follow where a model or a machine is named: names that are known, else files."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

from planner.models.zoo import known_names
from topologies import available

Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _among(names: Iterable[str]) -> Completion:
    """Complete names, of which those that end in a number K up to there; files where none begins so."""
    known = [name.removesuffix("K") for name in names]

    def complete(_context: click.Context, _parameter: click.Parameter, begin: str) -> list[CompletionItem]:
        # a shell that is told of files first offers them where no name follows
        return [CompletionItem(begin, type="file"), *(CompletionItem(name) for name in known if name.startswith(begin))]

    return complete


MODELS = _among(known_names())
MACHINES = _among(available())
