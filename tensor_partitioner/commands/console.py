"""Shared by all commands: one-line errors, tables that fit the terminal, help with option groups and examples."""

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
from functools import reduce
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from click.shell_completion import shell_complete
from rich.console import Console

from planner.errors import InputError
from planner.failures import BAD_INPUT, TRACEBACK_VARIABLE, describe_failure, one_line
from tensor_partitioner import __version__
from tensor_partitioner.display import STATUS, StatusLine, console
from topologies.schema import TopologyWarning

F = TypeVar("F", bound=Callable[..., Any])

OTHERS = "Options"
COMMON = (
    *("workers", "parallel", "objective", "memory", "pins"),
    *("batch", "dtype", "optimizer", "micro_batches", "recompute", "sequence"),
)
"""Options of the groups in `SHORTENED` that `--help` shows; `--help-all` shows all."""

SHORTENED = ("Search", "Model")
"""Groups of which `--help` shows only the common options."""

GROUPS: dict[str, str] = {
    **dict.fromkeys(("output", "json_file", "json_path", "trace_path", "plot_folder"), "Files"),
    **dict.fromkeys(("weights", "save_weights", "operator_files", "log_to", "checkpoint", "resume"), "Files"),
    **dict.fromkeys(("version", "help"), OTHERS),
}
"""The help group of an option, by parameter name. `register_group` adds to it. Other options are the command's own."""

ORDER = ("", "Search", "Model", "Files", OTHERS)
"""The help groups in order. The first holds the command's own options and has the command's name as its heading."""


def register_group(title: str, names: Iterable[str]) -> None:
    """Assign options, given by parameter name, to a help group."""
    GROUPS.update(dict.fromkeys(names, title))


WHOLE = "tensor_partitioner.help-all"
"""Key in the context's `meta` that is set when all options are shown."""


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
    """A command whose help lists its options in groups, followed by `examples` of command lines."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, including `--help-all`."""
        whole = click.Option(
            ["--help-all"], is_flag=True, is_eager=True, expose_value=False, hidden=True, callback=_show_all
        )
        return [*super().get_params(ctx), whole]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, one group after the other."""
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
    """A group of subcommands whose help has examples."""

    command_class = Command


COLLECTED_EVERY = 1_000_000
"""Allocations between garbage collections. There is hardly any garbage, and collections took a sixth of the time."""

UNCUT = 100_000
"""Width of a piped output, in characters: more than any table needs."""


def collect_seldom() -> None:
    """Collect garbage rarely, and not at exit. Only for a process that runs nothing but a command."""
    gc.set_threshold(COLLECTED_EVERY)
    atexit.register(gc.freeze)


ABOUT_INFERENCE = "enable_nested_tensor is True"
"""Start of a PyTorch warning that a TransformerEncoder's inference could be faster. Here the model is trained."""

WRITTEN = click.Path(dir_okay=False, path_type=Path)
"""The type of options that name an output file."""


class Finite(click.FloatRange):
    """The type of options that take a finite number, within an optional range."""

    def _describe_range(self) -> str:
        """Return the range for the help; "" if there is none."""
        return "" if self.min is None and self.max is None else super()._describe_range()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read a number. Unlike click's own type, refuse nan and inf."""
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value!r} is not a finite number.", param, ctx)


def with_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds options to a command, which its help lists in this order."""
    return lambda command: reduce(lambda given, option: option(given), reversed(options), command)


def reads(read: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback that reads an option's value, if it has one. An invalid value is a usage error."""

    def callback(_context: click.Context, _option: click.Parameter, value: Any) -> Any:
        try:
            return None if value is None else read(value)
        except InputError as error:
            raise click.BadParameter(str(error)) from error

    return callback


operators_option = click.option(
    "--operators", "operator_files", metavar="FILE.py", multiple=True, type=click.Path(path_type=Path),
    help="Run a Python file that registers your own operators, models or searchers. Repeatable.",
)  # fmt: skip
"""The option of every command that works with operators. Pass its value to `load_operators`."""


@describe_failure.register
def _refused(error: click.ClickException) -> tuple[str, int]:
    return one_line(error.format_message()), BAD_INPUT


@describe_failure.register
def _aborted(_error: click.Abort) -> tuple[str, int]:
    return describe_failure(KeyboardInterrupt())


@dataclass(frozen=True, slots=True)
class Main:
    """The entry point of a console script: a click command whose failures each print exactly one line on stderr.

    The exit status is 0, or that of `describe_failure`. A callback may exit early with `ctx.exit(status)`.
    """

    command: click.Command

    def __call__(self, args: Sequence[str] | None = None, obj: Any = None) -> NoReturn:
        """Run the command with `args` (default: `sys.argv`) and the context object `obj`, then exit."""
        complete(self.command)
        collect_seldom()
        status: object = 0
        line = StatusLine()
        shown = STATUS.set(line)
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _each_once()
                warnings.simplefilter("always", TopologyWarning)
                warnings.filterwarnings("ignore", ABOUT_INFERENCE)
                status = self.command.main(args=args, prog_name=self.command.name, standalone_mode=False, obj=obj)
            sys.stdout.flush()
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            line.close()
            if os.environ.get(TRACEBACK_VARIABLE):
                traceback.print_exc()
            message, status = describe_failure(error)
            print(f"error: {message}", file=sys.stderr, flush=True)
        finally:
            line.close()
            STATUS.reset(shown)
        sys.exit(status if isinstance(status, int) else 0)


def complete(command: click.Command) -> None:
    """Answer a shell's completion request and exit. Do nothing if there is no request.

    Shells request completion by a variable of click's, such as _PLAN_COMPLETE=bash_source plan.
    """
    name = command.name or ""
    variable = f"_{name}_COMPLETE".replace("-", "_").upper()
    if instruction := os.environ.get(variable):
        sys.exit(shell_complete(command, {}, name, variable, instruction))


def command_errors(command: click.Command) -> Main:
    """Wrap a click command as an entry point, with `--version`."""
    return Main(with_version(command))


with_version = click.version_option(__version__, message="tensor-partitioner %(version)s")
"""Adds the option `--version` to a command."""


def stdout() -> Console:
    """Return the console that prints tables, as wide as the terminal or as COLUMNS.

    In a pipe, tables have no color and, without COLUMNS, are never truncated. Square brackets and colons in names are
    printed literally.
    """
    if sys.stdout.isatty():
        return console()
    return console(width=shutil.get_terminal_size((UNCUT, 0)).columns, color_system=None)


def _each_once() -> Callable[..., None]:
    """Return a function that prints warnings, each distinct text once. A machine may be read several times."""
    said = set[str]()

    def show(message: Warning | str, *_: object) -> None:
        line = one_line(str(message))
        if line not in said:
            said.add(line)
            print(f"warning: {line}", file=sys.stderr, flush=True)

    return show
