"""What the simulator says of a model's step on a machine: seconds by class of kernel and by operator, and memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from planner.plans.plan import Plan
from planner.program.tasks import Compute, Task
from results.single_gpu import devices
from simulator.report import Settings, plan_program, report, simulation_of
from topologies import Machine
from topologies.imports import Parts

TRANSFER = "transfer"
"""The class of what is no computation."""


def gpu(pci_device: str) -> Machine:
    """Return a machine of one GPU of the library's, by what nvidia-smi calls its device: 0xDDDDVVVV.

    TopologyError for one that the library does not know.
    """
    digits = pci_device.removeprefix("0x").lower()
    parts = Parts(None)
    parts.add_gpu(0, f"{digits[4:]}:{digits[:4]}")
    return devices.machine(devices.described(parts.devices[0].type))


def kinds(task: Task) -> tuple[str, str]:
    """Return a task's class of kernels, and the operator of its first."""
    return (task.category, task.kernels[0].op) if isinstance(task, Compute) else (TRANSFER, TRANSFER)


def most_first(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return seconds by what took them, the most first."""
    return dict(sorted(seconds.items(), key=itemgetter(1), reverse=True))


def predicted(plan: Plan, machine: Machine) -> dict[str, Any]:
    """Predict a step: its seconds, those of each class and operator, and the memory of the device, in bytes."""
    system, settings = plan_program(plan, machine, prefetch=1), Settings()
    told = report(plan, "plan", simulation_of(system, settings), settings.told(machine), tasks=True)
    tasks = system.program.workers[0].tasks
    classes, operators = defaultdict[str, float](float), defaultdict[str, float](float)
    for record in told.tasks:
        category, operator = kinds(tasks[record.task])
        classes[category] += record.seconds
        operators[operator] += record.seconds
    return {
        "seconds": told.seconds_per_step,
        "arena_bytes": told.arena_bytes[0],
        "memory_bytes": told.devices[0].peak_bytes,
        "memory_by_kind": dict(told.devices[0].by_kind),
        "classes": most_first(classes),
        "operators": most_first(operators),
        "tasks": len(tasks),
    }
