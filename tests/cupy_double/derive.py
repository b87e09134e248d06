"""Write names.json: the names and signatures of the installed CuPy that the double answers to.

Needs CuPy (and NCCL's library, for the signatures of its communicator), but no GPU:

    python -m venv cupy && cupy/bin/pip install cupy-cuda12x nvidia-nccl-cu12
    cupy/bin/python tests/cupy_double/derive.py
"""

import importlib
import inspect
import json
import re
from pathlib import Path

import cupy
import cupy.cuda.nccl
import numpy as np

MODULES = (
    "cupy", "cupy.linalg", "cupy.lib.stride_tricks", "cupy.cuda", "cupy.cuda.runtime", "cupy.cuda.nccl",
    "cupyx.scipy.special",
)  # fmt: skip
CLASSES = (
    "cupy.ndarray", "cupy.RawModule", "cupy.RawKernel", "cupy.cuda.Device", "cupy.cuda.Event", "cupy.cuda.Stream",
    "cupy.cuda.Memory", "cupy.cuda.UnownedMemory", "cupy.cuda.MemoryPointer", "cupy.cuda.MemoryPool",
    "cupy.cuda.PinnedMemoryPointer", "cupy.cuda.nccl.NcclCommunicator",
)  # fmt: skip
UFUNC_KEYWORDS = ("out", "where", "axes", "axis", "keepdims", "casting", "order", "dtype", "subok", "initial")
WRITTEN = Path(__file__).with_name("names.json")


def parameters(signature):
    """Return a signature as words: `a`, `axis=`, `*args`, `*` before keyword-only ones, `**kwargs`."""
    words, keyword_only = [], False
    for parameter in signature.parameters.values():
        prefix = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        if parameter.kind == parameter.KEYWORD_ONLY and not keyword_only and "*" not in {w[:1] for w in words}:
            words.append("*")
        keyword_only = keyword_only or parameter.kind == parameter.KEYWORD_ONLY
        words.append(prefix + parameter.name + ("" if parameter.default is parameter.empty else "="))
    return words


def told(doc):
    """Return the signature that Cython writes in the first line of a docstring, as words; None where it does not."""
    match = re.match(r"[\w.]+\((.*)\)( -> .*)?$", (doc or "").split("\n")[0])
    if match is None:
        return None
    words = []
    for part in filter(None, (part.strip() for part in match[1].split(","))):
        name, equals, _ = part.partition("=")
        words.append(name.split()[-1].split(":")[0] + equals)
    return words


def entry(value):
    """Describe one name."""
    if isinstance(value, cupy.ufunc):
        methods = [name for name in ("reduce", "accumulate", "reduceat", "outer", "at") if is_implemented(value, name)]
        return {"ufunc": list(value.types), "nin": value.nin, "nout": value.nout, "methods": methods}
    if inspect.ismodule(value) or (isinstance(value, type) and issubclass(value, np.generic)):
        return "module" if inspect.ismodule(value) else "dtype"
    if isinstance(value, int | float):
        return {"value": value if np.isfinite(value) else repr(value)}
    if isinstance(value, type):
        return {"parameters": told(value.__doc__) or told(value.__init__.__doc__) or signed(value)}
    return {"parameters": signed(value) or told(value.__doc__)} if callable(value) else "attribute"


def is_implemented(ufunc, method):
    """True unless a method says that it is not supported: every ufunc has all of them as attributes."""
    try:
        getattr(ufunc, method)(object(), object())
    except NotImplementedError:
        return False
    except (AttributeError, TypeError, ValueError, cupy.cuda.runtime.CUDARuntimeError):
        pass  # the operand is none, or there is no GPU: it was about to compute
    return True


def signed(value):
    """Return the signature that Python knows, as words; None where it knows none."""
    try:
        return parameters(inspect.signature(value))
    except ValueError:
        return None


def members(owner):
    """Describe every public name of a module or class."""
    return {name: entry(getattr(owner, name)) for name in dir(owner) if not name.startswith("_")}


def ufunc_keywords():
    """Return the keywords that a call of an element-wise function takes: it refuses others before it needs a GPU."""
    taken = []
    for keyword in UFUNC_KEYWORDS:
        try:
            cupy.add(1, 2, **{keyword: None})
        except TypeError as error:
            if "Wrong arguments" in str(error):
                continue
        except cupy.cuda.runtime.CUDARuntimeError:
            pass
        taken.append(keyword)
    return taken


def find(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def main():
    names = {
        "version": cupy.__version__,
        "ufunc keywords": ufunc_keywords(),
        "modules": {path: members(importlib.import_module(path)) for path in MODULES},
        "classes": {path: members(find(path)) for path in CLASSES},
    }
    lines = [f'"version": {json.dumps(names["version"])}', f'"ufunc keywords": {json.dumps(names["ufunc keywords"])}']
    for kind in ("modules", "classes"):
        groups = [
            f"{json.dumps(path)}: {{\n"
            + ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(group.items()))
            + "\n}"
            for path, group in names[kind].items()
        ]
        lines.append(f'"{kind}": {{\n' + ",\n".join(groups) + "\n}")
    WRITTEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
