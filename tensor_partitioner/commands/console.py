"""What every command shares: errors of one line, tables that fit the terminal, help with groups and examples."""

from __future__ import annotations

import atexit
import gc
import math
import os
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import click
from click.shell_completion import shell_complete
from rich.console import Console

from planner.failures import BAD_INPUT, TRACEBACK_VARIABLE, describe_failure, one_line
from tensor_partitioner import __version__
from tensor_partitioner.display import console
from tensor_partitioner.display.progress import STATUS, StatusLine
from topologies.errors import TopologyWarning

OTHERS = "Options"
COMMON = (
    *("workers", "parallel", "objective", "memory", "pins"),
    *("batch", "dtype", "optimizer", "micro_batches", "recompute", "sequence"),
)
"""Options of a search and of models that `--help` shows; `--help-all` shows all."""

SHORTENED = ("Search", "Model")
"""Groups of which `--help` shows the common options alone."""

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


WHOLE = "tensor_partitioner.help-all"
"""The key of a context that shows all options."""


def _show_all(ctx: click.Context, _option: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[WHOLE] = True
        click.echo(ctx.get_help())
        ctx.exit()


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
    """A command whose help has its options in groups, the common ones alone, and `examples` of command lines."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, with `--help-all`."""
        whole = click.Option(
            ["--help-all"], is_flag=True, is_eager=True, expose_value=False, hidden=True, callback=_show_all
        )
        return [*super().get_params(ctx), whole]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options group by group."""
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in ORDER}
        hidden = 0
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx) if isinstance(option, click.Option) else None
            if record is not None:
                name = "help" if "--help" in option.opts else option.name or ""
                title = GROUPS.get(name, "")
                if title in SHORTENED and name not in COMMON and not ctx.meta.get(WHOLE):
                    hidden += 1
                else:
                    groups[title].append(record)
        if hidden:
            groups[OTHERS].append(("--help-all", f"Show {hidden} more options and exit."))
        for title, records in groups.items():
            if records:
                with formatter.section(title or f"Options of {self.name}"):
                    formatter.write_dl(records)


class CommandGroup(_WithExamples, click.Group):
    """Commands under one name, whose help has examples."""

    command_class = Command


COLLECTED_EVERY = 1_000_000
"""Objects made between collections of garbage: there is hardly any, and looking for it took a sixth of the time."""

UNCUT = 100_000
"""Characters of a line in a pipe: no table is as wide."""


def collect_seldom() -> None:
    """Look for garbage less often than Python does, and not at the end; for a process that is a command's own."""
    gc.set_threshold(COLLECTED_EVERY)
    atexit.register(gc.freeze)


ABOUT_INFERENCE = "enable_nested_tensor is True"
"""How PyTorch begins to say, as a TransformerEncoder is made, that inference might be faster: here it is trained."""

WRITTEN = click.Path(dir_okay=False, path_type=Path)
"""The type of options that name a file to be written."""


class Finite(click.FloatRange):
    """The type of options that are finite numbers, in a range."""

    def _describe_range(self) -> str:
        """Say what range there is; nothing of all numbers."""
        return "" if self.min is None and self.max is None else super()._describe_range()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read a number; click's own takes nan and inf."""
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value!r} is not a finite number.", param, ctx)


operators_option = click.option(
    "--operators",
    "operator_files",
    metavar="FILE.py",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Run a Python file that registers operators, models or searchers of your own; may be given again.",
)
"""The option of every command that works with operators; its value goes to `load_operators`."""


@describe_failure.register
def _refused(error: click.ClickException) -> tuple[str, int]:
    return one_line(error.format_message()), BAD_INPUT


@describe_failure.register
def _aborted(_error: click.Abort) -> tuple[str, int]:
    return describe_failure(KeyboardInterrupt())


@dataclass(frozen=True, slots=True)
class Main:
    """A console script's entry point: a click command, every failure of which ends in exactly one line on stderr.

    Exit status: 0, or that of `describe_failure`. A callback may end early with `ctx.exit(status)`.
    """

    command: click.Command

    def __call__(self, args: Sequence[str] | None = None, obj: Any = None) -> NoReturn:
        """Run the command with `args` (default: the process's) and the context's object, and exit."""
        complete(self.command)
        status: object = 0
        shown = STATUS.set(StatusLine())
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _each_once()
                warnings.simplefilter("always", TopologyWarning)
                warnings.filterwarnings("ignore", ABOUT_INFERENCE)
                status = self.command.main(args=args, prog_name=self.command.name, standalone_mode=False, obj=obj)
            sys.stdout.flush()
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            if os.environ.get(TRACEBACK_VARIABLE):
                traceback.print_exc()
            message, status = describe_failure(error)
            print(f"error: {message}", file=sys.stderr, flush=True)
        finally:
            STATUS.reset(shown)
        sys.exit(status if isinstance(status, int) else 0)


def complete(command: click.Command) -> None:
    """Answer a shell that asks what may follow on a command's line, and end; nothing where none asks.

    It asks by a variable of click's, as in _PLAN_COMPLETE=bash_source plan.
    """
    name = command.name or ""
    variable = f"_{name}_COMPLETE".replace("-", "_").upper()
    if instruction := os.environ.get(variable):
        sys.exit(shell_complete(command, {}, name, variable, instruction))


def command_errors(command: click.Command) -> Main:
    """Make a click command an entry point, with `--version`."""
    return Main(with_version(command))


with_version = click.version_option(__version__, message="tensor-partitioner %(version)s")
"""Gives a command the option `--version`."""


def stdout() -> Console:
    """Return the console that tables are printed on: as wide as the terminal, or as COLUMNS says.

    In a pipe they are plain and, without COLUMNS, never cut. Names are shown as they are, square brackets
    and colons included.
    """
    if sys.stdout.isatty():
        return console()
    return console(width=shutil.get_terminal_size((UNCUT, 0)).columns, color_system=None)


def _each_once() -> Callable[..., None]:
    """Return what prints warnings, those of equal words once: a machine may be read more than once."""
    said = set[str]()

    def show(message: Warning | str, *_: object) -> None:
        line = one_line(str(message))
        if line not in said:
            said.add(line)
            print(f"warning: {line}", file=sys.stderr, flush=True)

    return show
