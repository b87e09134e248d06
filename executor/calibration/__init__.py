"""Measure the machine of a job with its ranks, and write it as a topology file."""
