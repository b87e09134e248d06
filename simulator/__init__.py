"""A machine that runs a plan's program in simulated time: `simulator.simulate(plan, "p2.8xlarge")`."""

from simulator.report import simulate

__all__ = ["simulate"]
