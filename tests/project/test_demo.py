"""What `make demo` prints: little enough to be read, and at its end what was shown."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 60


@pytest.mark.mpi
@pytest.mark.slow
def test_the_demo_is_short_and_ends_in_a_sentence(tmp_path):
    line = [
        "make",
        "--no-print-directory",
        "demo",
        f"DEMO={tmp_path}",
        "DEMO_MODEL=wresnet-14-1",
        "DEMO_STEPS=3",
        "COLUMNS=80",
    ]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    lines = (done.stdout + done.stderr).splitlines()
    assert 10 < len(lines) <= MOST_LINES
    said = " ".join(" ".join(done.stdout.splitlines()[-3:]).split())
    match = re.search(r"a step was predicted to take (\S+ \S+) on .* and took (\S+ \S+), (\S+) times as long; ", said)
    assert match, said
    assert said.endswith("between 56 of 56 pairs of workers exactly the planned bytes were moved")
