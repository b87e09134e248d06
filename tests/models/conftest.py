"""Lets tests of models use the one-worker interpreter of the graph's tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "graph"))
