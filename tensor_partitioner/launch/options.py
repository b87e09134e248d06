"""Launch files as the model of a command. The file's values apply where the command line sets none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from simulator.projection.cluster import cluster
from tensor_partitioner.launch.read import read_launch

ENDINGS = (".sh", ".toml")
"""Suffixes that always mark launch files. A YAML or JSON may be another kind of file; only `diagnose` takes it."""


def launched(source: str, options: Mapping[str, Any], *, is_fixed: bool) -> tuple[str, dict[str, Any]]:
    """Return the model of a launch file and the options completed by its values. Other sources are returned unchanged.

    If the training `is_fixed`, its parallelism is the file's. Prints assumptions on stderr.
    """
    options = dict(options)
    if Path(source).suffix not in ENDINGS or options["topo"] is None:
        return source, options
    launch, devices = read_launch(source), cluster(options["topo"]).devices
    said: dict[str, Any] = {**launch.options, "batch": launch.samples(devices), "stack": launch.stack}
    if is_fixed:
        said["parallel"] = launch.parallel(devices)
    if is_fixed and options.get("parallel") is not None:
        click.echo(f"note: {source}: --parallel replaces all of the file's {said['parallel']}", err=True)
    if launch.assumed:
        click.echo(f"note: {source}: assumed {', '.join(launch.assumed)}", err=True)
    return launch.model, options | {name: value for name, value in said.items() if options.get(name) is None}
