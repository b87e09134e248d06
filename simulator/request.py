"""What the command `simulate` is asked for, once or for every cell of a sweep: a plan, found or made, on a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from planner.arguments import is_saved_plan, planned
from planner.plans.plan import Plan
from planner.plans.plan_json import load_plan
from planner.report.schema import Report
from simulator.report import Settings, data_parallelism, report, simulation_of
from simulator.simulation import Simulation
from topologies import load_topology


@dataclass(frozen=True, slots=True)
class Request:
    """A model or a saved plan, and the command's options, as plain data that another process can be given.

    `recorded` asks for every message, which traces and plots show.
    """

    source: str
    options: Mapping[str, Any]
    recorded: bool = False

    @property
    def name(self) -> str:
        """What the report calls the plan: the file that holds it, without folders, or the model."""
        saved = self.source if is_saved_plan(self.source) else self.options["output"]
        return self.source if saved is None else Path(saved).name

    def plan(self) -> Plan:
        """Load the plan, or search it; for little time, or within memory, on the machine that is simulated."""
        if is_saved_plan(self.source):
            return load_plan(self.source)
        about_machine = self.options["objective"] == "time" or self.options["memory"] is not None
        return planned(self.source, self.options, self.options["topo"] if about_machine else None)

    def run(self) -> tuple[Simulation, Report]:
        """Plan and simulate."""
        machine = load_topology(self.options["topo"])
        plan = self.plan()
        settings = Settings(**{one.name: self.options[one.name] for one in fields(Settings)})
        found = simulation_of(plan, machine, settings, record_messages=self.recorded)
        beside = data_parallelism(plan, machine, settings) if self.options["data_parallel"] else None
        return found, report(plan, self.name, found, asdict(settings), beside, tasks=self.options["tasks"])
