"""Ranks that run a program for real: values, data, transports, the worker's loop and training.

Importing this package changes nothing in the process; only the command (`executor.cli`) prepares the environment.
"""
