"""The planner: from a training graph to a plan, from a plan to a program."""
