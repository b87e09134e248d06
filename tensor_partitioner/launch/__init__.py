"""Launch files of other trainers: the model, the number of devices, and the parallelism.

A launch file is read in place of a model or by itself. Its suffix and its fields tell which trainer it belongs to.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec

from planner.errors import InputError
from simulator.projection.network import cluster
from tensor_partitioner.launch.launch import LaunchFile as LaunchFile
from tensor_partitioner.launch.megatron import is_script, read_nemo, read_script
from tensor_partitioner.launch.trainers import read_accelerate, read_axolotl, read_deepspeed, read_toml
from topologies.reading import limited, read_bytes

MOST_BYTES = 1 << 20
OF_TRAINING = ("dtype", "optimizer", "sequence")
"""Options of the file that apply to any model."""

EXPECTED = (
    "expected a Megatron-LM script or its printed arguments, a torchtitan TOML, a DeepSpeed JSON, or a YAML of NeMo, "
    "Accelerate or Axolotl"
)


def read_launch(path: str, model: str | None = None) -> LaunchFile:
    """Read a launch file. Raises InputError, in one line, if it is not one.

    `model` replaces the file's model. It is required if the file names none.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"{path}: {EXPECTED}, found no such file")
    try:
        launch = _read(path, read_bytes(file, MOST_BYTES).decode().replace("\r\n", "\n"), file.suffix.lower(), model)
    except InputError:
        raise
    except (ValueError, msgspec.DecodeError, RecursionError) as error:  # ValueError: also integers of many digits
        raise InputError(f"{path}: {EXPECTED}: {error}") from error
    if model is None:
        return launch
    return replace(
        launch, model=model, options={name: of for name, of in launch.options.items() if name in OF_TRAINING}
    )


def _read(path: str, text: str, suffix: str, model: str | None) -> LaunchFile:
    if suffix == ".toml":
        return read_toml(path, _mapping(path, tomllib.loads, text), model)
    if suffix == ".json":
        return read_deepspeed(path, _mapping(path, msgspec.json.decode, text), model)
    if suffix in {".yaml", ".yml"}:
        said = _mapping(path, msgspec.yaml.decode, text)
        if "base_model" in said:
            return read_axolotl(path, said, model)
        if "distributed_type" in said:
            return read_accelerate(path, said, model)
        return read_nemo(path, said)
    if is_script(text):
        return read_script(path, text)
    raise InputError(f"{path}: {EXPECTED}")


def _mapping(path: str, decode: Callable[[str], object], text: str) -> Mapping[str, Any]:
    said = limited(decode(text))
    if not isinstance(said, dict):
        raise InputError(f"{path}: {EXPECTED}, found no fields")
    return said


# Launch files as the model of a command. The file's values apply where the command line sets none.


ENDINGS = (".sh", ".toml", ".yaml", ".yml")
"""Suffixes that always mark launch files. A JSON may be another kind of file; only `diagnose` takes it."""


def launched(source: str, options: Mapping[str, Any], *, is_fixed: bool) -> tuple[str, dict[str, Any]]:
    """Return the model of a launch file and the options completed by its values. Other sources are returned unchanged.

    If the training `is_fixed`, its parallelism is the file's. Prints assumptions on stderr.
    """
    options = dict(options)
    if not isinstance(source, str) or Path(source).suffix not in ENDINGS or options["topo"] is None:
        return source, options
    launch, devices = read_launch(source), cluster(options["topo"]).devices
    said: dict[str, Any] = {**launch.options, "batch": launch.samples(devices), "stack": launch.stack}
    if is_fixed:
        said["parallel"] = launch.parallel(devices)
    if is_fixed and options.get("parallel") is not None:
        click.echo(f"note: {source}: --parallel replaces all of the file's {said['parallel']}", err=True)
    if launch.assumed:
        click.echo(f"note: {source}: assumed {', '.join(launch.assumed)}", err=True)
    options["not_priced"] = launch.not_priced
    return launch.model, options | {name: value for name, value in said.items() if options.get(name) is None}
