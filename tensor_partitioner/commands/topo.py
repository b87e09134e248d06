"""The command `topo`: show, check and import machines."""

from __future__ import annotations

import warnings
from pathlib import Path

import click

from planner.failures import BAD_INPUT, JOB_FAILED, one_line
from planner.files import check_written
from tensor_partitioner import display
from tensor_partitioner.commands.console import WRITTEN, CommandGroup, command_errors, stdout
from topologies import Machine, TopologyError, available, full_text, load_topology
from topologies.imports import import_machine
from topologies.reading import sold
from topologies.tree import drawn, matrices, route_tables

EXAMPLES = (
    "topo list",
    "topo show hgx-h100 gpu0 gpu5",
    "topo check machine.yaml",
    "topo import nccl.xml --device a100-sxm4-80gb -o machine.yaml",
)


@click.group("topo", cls=CommandGroup, examples=EXAMPLES)
def commands() -> None:
    """Show, check and import machines."""


@commands.command("list")
def list_machines() -> None:
    """List the machines that have names. K in a name is any number."""
    rows = []
    for name in (*available(), *sold(), *(f"{name}-nodes-K" for name in sold())):
        machine = load_topology(name.replace("-K", "-1"))
        count = f"{len(machine.devices)}{' x K' * name.endswith('-K')}"
        rows.append((name, count, machine.devices[0].spec.name))
    stdout().print(display.table("machines", ("name", "devices", "type"), rows, text=("type",)))


@commands.command()
@click.argument("machine")
@click.argument("ends", nargs=-1, metavar="[FROM TO]")
@click.option("--full", is_flag=True, help="Print the file with all devices, links and types written out.")
def show(machine: str, ends: tuple[str, ...], full: bool) -> None:
    """Draw MACHINE, a file or a name, with bandwidth, latency and route between two devices, or between all."""
    if full:
        click.echo(full_text(machine), nl=False)
        return
    topology = load_topology(machine)
    if len(ends) not in {0, 2}:
        raise click.UsageError(f"expected two devices, or none, after {machine}; found {len(ends)}")
    if ends:
        source, target = (_device(topology, name) for name in ends)
        if source == target:
            raise TopologyError(f"{machine}: expected two different devices, found {ends[0]!r} twice")
        stdout().print(*route_tables(topology, source, target), sep="\n")
        return
    stdout().print(drawn(topology), *display.tables(topology), *matrices(topology), sep="\n")


@commands.command()
@click.argument("machines", nargs=-1, required=True, metavar="MACHINE...")
@click.pass_context
def check(context: click.Context, machines: tuple[str, ...]) -> None:
    """Check topology files and warn about implausible figures.

    Exit status 2 if a machine is invalid, else 1 if it has implausible figures.
    """
    worst = 0
    for machine in machines:
        with warnings.catch_warnings(record=True) as doubts:
            warnings.simplefilter("always")
            try:
                topology = load_topology(machine)
            except TopologyError as error:
                click.echo(f"error: {one_line(str(error))}", err=True)
                worst = BAD_INPUT
                continue
        for doubt in doubts:
            click.echo(f"warning: {display.printable(str(doubt.message))}", err=True)
        if doubts:
            worst = max(worst, JOB_FAILED)
        else:
            click.echo(f"{display.printable(machine)}: {_size(topology)}, no warnings")
    context.exit(worst)


@commands.command("import")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--device", help="Type of its GPUs, as in h100 or a100-pcie-80gb: sets their rates and memory.")
@click.option("-o", "output", type=WRITTEN, help="Write the topology file.  [default: print it]")
def import_(path: Path, device: str | None, output: Path | None) -> None:
    """Import a machine from the output of `nvidia-smi topo -m`.

    Other packages may add formats, as extras/nccl, extras/hwloc, extras/infragraph and extras/rocm_smi do.
    """
    check_written((output,), (path,))
    result = import_machine(path, device)
    if output is None:
        click.echo(result.text, nl=False)
        return
    output.write_text(result.text)
    for note in result.notes:
        click.echo(f"note: {display.printable(note)}", err=True)
    click.echo(f"{output}: {_size(result.machine)}")


def _size(machine: Machine) -> str:
    devices, links = len(machine.devices), len(machine.links)
    return f"{devices} device{'s' * (devices != 1)}, {links} link{'s' * (links != 1)}"


def _device(machine: Machine, name: str) -> int:
    names = [device.name for device in machine.devices]
    if name not in names:
        listed = ", ".join(names[:16]) + (", ..." if len(names) > 16 else "")
        raise TopologyError(f"{machine.name}: expected a device ({listed}), found {name!r}")
    return names.index(name)


main = command_errors(commands)
