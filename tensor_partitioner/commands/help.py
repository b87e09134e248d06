"""What `--help` says of a command: its options in groups, and examples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click

OTHERS = "Options"
GROUPS: dict[str, str] = {
    **dict.fromkeys(("output", "json_file", "json_path", "trace_path", "plot_folder"), "Files"),
    **dict.fromkeys(("weights", "save_weights", "operator_files", "log_to", "checkpoint", "resume"), "Files"),
    **dict.fromkeys(("version", "help"), OTHERS),
}
"""The group of an option, by its parameter; `register_group` adds to it. All others are a command's own."""

ORDER = ("", "Search", "Model", "Files", OTHERS)
"""Groups in the order of the help; the first is the command's own options, which have its name."""


def register_group(title: str, names: Iterable[str]) -> None:
    """Put options, by their parameters, in a group."""
    GROUPS.update(dict.fromkeys(names, title))


class _WithExamples(click.Command):
    def __init__(self, *args: Any, examples: Sequence[str] = (), **options: Any) -> None:
        super().__init__(*args, **options)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write_text(example)
        super().format_epilog(ctx, formatter)


class Command(_WithExamples):
    """A command whose help has its options in groups, and `examples` of command lines."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options group by group."""
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in ORDER}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx) if isinstance(option, click.Option) else None
            if record is not None:
                name = "help" if "--help" in option.opts else option.name or ""
                groups[GROUPS.get(name, "")].append(record)
        for title, records in groups.items():
            if records:
                with formatter.section(title or f"Options of {self.name}"):
                    formatter.write_dl(records)


class CommandGroup(_WithExamples, click.Group):
    """Commands under one name, whose help has examples."""

    command_class = Command
