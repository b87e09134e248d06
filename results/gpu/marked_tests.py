"""Run the tests that are marked `gpu`, of the folders whose tests need no network."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from results.gpu.processes import Process, run as run_process
from results.gpu.settings import this_run

FOLDERS = ("kernels", "multifetch", "executor", "cupy_double")
OUTCOMES = ("failure", "error", "skipped")


def outcomes(written: Path) -> tuple[dict[str, int], list[str]]:
    """Read pytest's XML: how many tests passed, failed, ended in an error or were skipped, and which are not right."""
    counts, wrong = Counter({"passed": 0, **dict.fromkeys(OUTCOMES, 0)}), []
    for case in ElementTree.parse(written).iter("testcase"):
        outcome = next((child.tag for child in case if child.tag in OUTCOMES), "passed")
        counts[outcome] += 1
        if outcome in ("failure", "error"):
            wrong.append(f"{case.get('classname')}.{case.get('name')}")
    return dict(counts), wrong


def main() -> int:
    """Write marked_tests.json."""
    run, _ = this_run()
    written, folders = run.work / "tests.xml", [f"tests/{folder}" for folder in FOLDERS]
    options = ("-q", "--tb=short", "-p", "no:cacheprovider", f"--junitxml={written}")
    command = (sys.executable, "-m", "pytest", *options, *run.scale.pytest, *folders)
    ended = run_process(Process("pytest", command, run.left_s), run.work, run.until)
    counts, wrong = outcomes(written) if written.exists() else ({}, [])
    run.write("marked_tests", {"counts": counts, "wrong": wrong, "failure": ended.failure, "seconds": ended.seconds})
    return 1 if ended.failure or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
