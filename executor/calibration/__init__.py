"""Measuring the machine that a job runs on, with the ranks of the job, as a topology file."""
