"""A machine that runs a plan's program in simulated time: `simulator.simulate(plan, "p2.8xlarge")`."""

from simulator.interpreter import DeadlockError, Switches, Timeline, interpret
from simulator.report import simulate, simulate_system
from simulator.simulation import Simulation, simulated
from simulator.systems.registry import SYSTEMS

__all__ = [
    "SYSTEMS",
    "DeadlockError",
    "Simulation",
    "Switches",
    "Timeline",
    "interpret",
    "simulate",
    "simulate_system",
    "simulated",
]
