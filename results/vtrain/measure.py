"""One point in a process of its own: JSON of the point and of fits [speed, host_launch_s]; prints seconds as JSON."""

from __future__ import annotations

import json
import sys

from results.vtrain.simulated import Fit, Point, program, seconds

if __name__ == "__main__":
    point, fits = map(json.loads, sys.argv[1:])
    step = program(Point(*point))
    print(json.dumps({"as_described_s": seconds(step, Fit()), "fits_s": [seconds(step, Fit(*fit)) for fit in fits]}))
