"""*Op-placement* (Tofu, Sec 7.1): whole layers on devices, round robin."""

from __future__ import annotations

from collections.abc import Callable

from planner.graph.facts import batch_size
from planner.program.tasks import Compute
from results.wresnet_throughput.systems.flow import Flow, flow_of, in_order_of_start, seconds_alone, worker_program
from results.wresnet_throughput.systems.layers import layers_of
from results.wresnet_throughput.systems.spread import spread
from results.wresnet_throughput.systems.system import SystemProgram, SystemRequest

PARTS_OF_COPY = 3  # a Send, a Receive and a Wait


def op_placement(request: SystemRequest) -> SystemProgram:
    """Place layer i on device i modulo the devices."""
    layers = layers_of(request.graph)
    flow = flow_of(worker_program(request.graph), layers)
    device_of = devices_of_tasks(flow, lambda node: layers[node] % request.devices)
    order = in_order_of_start(flow.after, device_of, seconds_alone(flow.worker, request.machine))
    program = spread(flow, device_of, order, request.devices)
    return SystemProgram(program, request.machine, batch_size(request.graph))


def devices_of_tasks(flow: Flow, device_of_node: Callable[[str], int]) -> list[int]:
    """Return every task's device; what copies a tensor on one device does so where the tensor was made."""
    devices: list[int] = []
    for position, task in enumerate(flow.worker.tasks):
        if isinstance(task, Compute):
            devices.append(device_of_node(task.nodes[-1]))
            continue
        devices.append(0)
        maker = next((maker for maker in flow.made_by[position].values() if maker is not None), None)
        if maker is not None:  # the end of a copy, whose tasks follow each other
            devices[-PARTS_OF_COPY:] = [devices[maker]] * PARTS_OF_COPY
    return devices
