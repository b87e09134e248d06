"""Make experiments anew: `python -m results` all of them, `python -m results NAME...` some."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


def main(names: list[str]) -> int:
    """Run the scripts of these experiments, by default of all; return an exit status."""
    known = sorted(path.parent.name for path in HERE.glob("*/run.py"))
    if unknown := [name for name in names if name not in known]:
        print(f"expected experiments among {', '.join(known)}, found {', '.join(unknown)}", file=sys.stderr)
        return 2
    for name in names or known:
        started = time.perf_counter()
        if status := subprocess.run([sys.executable, str(HERE / name / "run.py")], check=False).returncode:
            print(f"{name}: failed with exit status {status}", file=sys.stderr)
            return 1
        print(f"{name}: {time.perf_counter() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
