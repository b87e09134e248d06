"""Options shared by commands that plan: the model, the number of workers, and the search."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from planner.extensions import load_operators
from planner.files import check_written
from planner.graph.ir import Graph
from planner.model_source import model as load_model
from planner.models import model_options
from planner.models.zoo import MIXED_FLOAT8, OPTIMIZER, known_names, trained_as
from planner.parallel import RECOMPUTE
from planner.planning import OPTIONS, plan
from planner.plans.plan import Plan
from planner.plans.plan_json import is_plan
from planner.search.options import Option
from planner.search.pins import load_pins
from tensor_partitioner.commands.console import WRITTEN, F, Finite, reads, register_group, with_options
from topologies import available, load_topology

Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _among(names: Iterable[str]) -> Completion:
    """Return a completion of `names`, each up to a trailing number K. Completes files if no name matches."""
    known = [name.removesuffix("K") for name in names]

    def complete(_context: click.Context, _parameter: click.Parameter, begin: str) -> list[CompletionItem]:
        # listed first, the type "file" makes the shell offer files if no name matches
        return [CompletionItem(begin, type="file"), *(CompletionItem(name) for name in known if name.startswith(begin))]

    return complete


MODELS = _among(known_names())
MACHINES = _among(available())


MODEL_HELP = f"""MODEL is a name of the zoo ({", ".join(known_names())}; depth and width may vary, as in mlp-4-8192), a
language model of the Hugging Face Hub (hf:ORG/NAME, without network) or its config.json, a Megatron-LM script (.sh) or
a torchtitan TOML, a graph.json, or path/to/file.py:function, which returns a Graph or a PyTorch module with inputs
(docs/tutorial.md)."""

TOPO_HELP = f"Machine: a topology file, a line such as '4 x 8 x h100, 400G', or one of {', '.join(available())}."

OPAQUE_HELP = "Run PyTorch operators without a description unsplit, by calling PyTorch."

PRECISION = "mixed on devices that support it"
ALIKE = "for the zoo and, in decide, for modules without an optimizer"
DECIDED = {"dtype": f"{PRECISION}, {ALIKE}", "optimizer": f"{OPTIMIZER}, {ALIKE}"}
"""Defaults in the help of commands that always have a machine. They train a model of the zoo as `decide` does."""

SEARCHED = {
    "dtype": f"float32; for the zoo with --parallel or --topo {PRECISION}",
    "optimizer": f"momentum; for the zoo with --parallel or --topo {OPTIMIZER}",
}
"""The same for commands that may have no machine."""

PINS_HELP = "Read pins and forbidden placements from a YAML file: `pins: {GLOB: PLACEMENT}`, `forbids: ...`."


def _click_option(name: str, option: Option) -> Callable[[F], F]:
    """Return a planning option as a click option."""
    kind = click.Choice(option.choices) if option.choices else None
    default = str(option.default) if isinstance(option.default, Enum) else option.default
    return click.option(
        option.flag, name, type=kind if option.least is None else click.IntRange(option.least), metavar=option.metavar,
        default=None if option.default == () else default, help=option.help, callback=reads(option.read),
        multiple=option.repeated,
    )  # fmt: skip


planning_options = with_options(
    *(_click_option(*item) for item in OPTIONS.items()),
    click.option("--pins", "pins_file", type=click.Path(path_type=Path), metavar="FILE", help=PINS_HELP),
    click.option("--opaque-unknown", is_flag=True, help=OPAQUE_HELP),
    click.option("-o", "output", type=WRITTEN, help="Write the plan."),
)
"""Adds the options of a search to a command."""


ALSO = {"dtype": (MIXED_FLOAT8,), "recompute": ("full",)}
"""Values of a model's options that only commands take: of `recompute`, the word of `--parallel`."""


class Count(click.IntRange):
    """A positive integer, which may be written in units of 1024 or 1024^2: "8k" is 8192."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        match = re.fullmatch(r"([1-9]\d{0,8})([km])", str(value).lower())
        return super().convert(int(match[1]) << UNITS[match[2]] if match else value, param, ctx)


UNITS = {"k": 10, "m": 20}


def _model_options(defaults: Mapping[str, str]) -> list[click.Option]:
    """Return the options of all families of the zoo. The help shows each default, from `defaults` if it is there."""
    types = {"int": Count(1), "float": Finite(), "str": click.STRING}
    result = []
    for name, option in model_options().items():
        dashed, switch = name.replace("_", "-"), option.kind == "bool"
        flag = f"--{dashed}/--no-{dashed}" if switch else f"--{dashed}"
        choices = (*option.choices, *ALSO.get(name, ()))
        kind = click.Choice(choices) if choices else types.get(option.kind)
        default = f"[default: {defaults[name]}]" if name in defaults else option.default
        help_text = f"{option.meaning}  {default}".rstrip()
        read = reads(lambda word: RECOMPUTE.get(word, word)) if name == "recompute" else None
        result.append(click.Option([flag], type=None if switch else kind, default=None, help=help_text, callback=read))
    return result


register_group("Search", (*OPTIONS, "pins_file"))
register_group("Model", ("opaque_unknown", *model_options()))


def with_model_options(defaults: Mapping[str, str]) -> Callable[[click.Command], click.Command]:
    """Add the options of the zoo's families to a command, last in its help, with other `defaults` for some."""

    def give(command: click.Command) -> click.Command:
        command.params += _model_options(defaults)
        return command

    return give


def begin(options: Mapping[str, Any], written: Iterable[str], read: Iterable[str | Path]) -> None:
    """Check that the files named by the options `written` can be written, and load the user's operators.

    Raises InputError if an output is also an input (`read`).
    """
    check_written([options[name] for name in written], (*read, *options["operator_files"]))
    load_operators(options["operator_files"])


def is_saved_plan(source: str) -> bool:
    """True if the argument names a saved plan."""
    return Path(source).is_file() and is_plan(source)


def refuse_others(context: click.Context, reason: str, allowed: Sequence[str]) -> None:
    """Raise a UsageError, starting with `reason`, if the command line has an option that is not in `allowed`."""
    for parameter in context.command.params:
        is_given = context.get_parameter_source(parameter.name or "") == ParameterSource.COMMANDLINE
        if is_given and parameter.name not in allowed:
            raise click.UsageError(f"{reason}: expected no {parameter.opts[-1]}")


def refuse_float8(options: Mapping[str, Any]) -> None:
    """Raise a UsageError for float8 products, which the graph of a plan cannot express."""
    if options["dtype"] == MIXED_FLOAT8:
        advice = "save the decision with decide --json FILE and pass it to export-plan"
        raise click.UsageError(f"a plan cannot express float8 products: {advice}")


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model options that the command line sets."""
    return {name: options[name] for name in model_options() if options.get(name) is not None}


def training_options(source: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model options: those given and, with --parallel or --topo, the defaults that `decide` trains with."""
    given, topo = given_options(options), options["topo"]
    if options["parallel"] is None and topo is None:
        return given
    return trained_as(source, None if topo is None else load_topology(topo), given)


def plan_model(source: str, options: Mapping[str, Any], machine: str | None, *, bound: bool = False) -> Plan:
    """Search a plan of the graph that `source` names, with the options of the command.

    `machine` is used for time and memory; None if neither matters.
    """
    graph, search = read_request(source, options, machine)
    return plan(graph, bound=bound, **search)


def plan_for_step(source: str, options: Mapping[str, Any]) -> Plan:
    """Search a plan whose step is then predicted; for the machine only with --objective time or --memory."""
    about_machine = options["objective"] == "time" or options["memory"] is not None
    return plan_model(source, options, options["topo"] if about_machine else None)


def read_request(source: str, options: Mapping[str, Any], machine: str | None) -> tuple[Graph, dict[str, Any]]:
    """Return the graph that `source` names, and the keyword arguments for `planner.plan`."""
    refuse_float8(options)
    if options["objective"] == "time" and machine is None:
        raise click.UsageError("--objective time: expected --topo MACHINE, found none")
    search = {name: options[name] for name in OPTIONS if options[name] is not None}
    if options["pins_file"] is not None:
        pins, forbids = load_pins(options["pins_file"])
        search |= {"pins": (*pins, *search["pins"]), "forbids": (*forbids, *search["forbids"])}
    if options["parallel"] is not None and options["objective"] == "bytes" and options["memory"] is None:
        machine = None  # only the precision of the zoo depends on it; named parallelism needs no times
    given = training_options(source, options) | _micro_batches(options) | _recomputation(options)
    return load_model(source, opaque_unknown=options["opaque_unknown"], **given), {**search, "machine": machine}


def _micro_batches(options: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of micro-batches as an option, if --parallel gives the size of a micro-batch."""
    parallel = options["parallel"]
    if parallel is None or parallel.micro_batch is None:
        return {}
    if options["micro_batches"] is not None or options["batch"] is None:
        raise click.UsageError("--parallel micro-batch=: expected --batch with it, and no --micro-batches")
    return {"micro_batches": parallel.micro_batches(options["batch"])}


def _recomputation(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the option `recompute`, if --parallel sets it."""
    parallel = options["parallel"]
    if parallel is None or parallel.recompute == "none":
        return {}
    wanted, given = RECOMPUTE[parallel.recompute], options["recompute"]
    if given not in {None, wanted}:
        expected = f"expected --recompute {wanted} with it, or none"
        raise click.UsageError(f"--parallel recompute={parallel.recompute}: {expected}, found {given}")
    return {"recompute": wanted}
