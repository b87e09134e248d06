"""Ranks that run a program: values, data, transports, the worker's loop and training.

Importing this package has no side effects on the process. A command that runs on ranks calls `executor.process.guard`.
"""
