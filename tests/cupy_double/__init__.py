"""A strict double of CuPy, to run on the host what is written for a GPU.

`package` holds packages named `cupy` and `cupyx`, which stand for CuPy where they are found first: in a process of its
own by PYTHONPATH, in this one within `installed`.
"""

import importlib
import sys
from contextlib import contextmanager
from pathlib import Path

PACKAGE = Path(__file__).with_name("package")
_MODULES = {}


def _taken():
    """Take every module of CuPy's, or of the double's, out of those imported."""
    names = [name for name in sys.modules if name.partition(".")[0] in ("cupy", "cupyx")]
    return {name: sys.modules.pop(name) for name in names}


@contextmanager
def installed():
    """Let `import cupy` find the double for a while; yields the double."""
    before = _taken()
    sys.modules.update(_MODULES)
    sys.path.insert(0, str(PACKAGE))
    try:
        yield importlib.import_module("cupy")
    finally:
        sys.path.remove(str(PACKAGE))
        _MODULES.update(_taken())
        sys.modules.update(before)
