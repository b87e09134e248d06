"""A machine that runs a plan's program in simulated time: `simulator.simulate(plan, "p2.8xlarge")`."""

from simulator.interpreter import DeadlockError, Switches, Timeline, interpret
from simulator.report import simulate
from simulator.simulation import Simulation, simulated

__all__ = ["DeadlockError", "Simulation", "Switches", "Timeline", "interpret", "simulate", "simulated"]
