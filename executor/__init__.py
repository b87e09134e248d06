"""Ranks that run a program for real: values, data, transports, the worker's loop and training.

Importing this package changes nothing in the process; a command that runs on ranks calls `executor.process.guard`.
"""
