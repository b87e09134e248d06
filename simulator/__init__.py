"""Simulates a plan's program on a machine: `simulator.simulate(plan, "p2.8xlarge")`."""

from simulator.report import simulate as simulate
