"""What the installed CuPy answers to: names, parameters, element-wise loops; see derive.py."""

import json
from functools import cache
from inspect import Parameter, Signature
from pathlib import Path

NAMES = json.loads(Path(__file__).parents[2].joinpath("names.json").read_text())
UFUNC_KEYWORDS = frozenset(NAMES["ufunc keywords"])


def entry(module, name):
    """What CuPy has under a module's name; AttributeError where it has nothing."""
    try:
        return NAMES["modules"][module][name]
    except KeyError:
        raise AttributeError(f"module {module!r} of CuPy {NAMES['version']} has no attribute {name!r}") from None


def member(kind, name):
    """What CuPy has under a class's name; AttributeError where it has nothing."""
    try:
        return NAMES["classes"][kind][name]
    except KeyError:
        raise AttributeError(f"{kind} of CuPy {NAMES['version']} has no attribute {name!r}") from None


@cache
def signature(*words):
    """Build a signature from derive.py's words; `self` is left out."""
    parameters, kind = [], Parameter.POSITIONAL_OR_KEYWORD
    for word in words:
        name = word.strip("*").removesuffix("=")
        default = None if word.endswith("=") else Parameter.empty
        if word == "*":
            kind = Parameter.KEYWORD_ONLY
        elif word.startswith("**"):
            parameters.append(Parameter(name, Parameter.VAR_KEYWORD))
        elif word.startswith("*"):
            parameters.append(Parameter(name, Parameter.VAR_POSITIONAL))
            kind = Parameter.KEYWORD_ONLY
        elif name != "self":
            parameters.append(Parameter(name, kind, default=default))
    return Signature(parameters, __validate_parameters__=False)


def require_arguments(what, known, args, kwargs):
    """Raise TypeError unless CuPy's signature takes these arguments."""
    if known["parameters"] is not None:
        try:
            signature(*known["parameters"]).bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{what} of CuPy {NAMES['version']}: {error}") from None


def checked(kind):
    """Decorate a class: its public methods are CuPy's and are called with CuPy's arguments."""

    def decorate(owner):
        for name, attribute in list(vars(owner).items()):
            if name.startswith("_"):
                continue
            known = member(kind, name)
            if callable(attribute) and isinstance(known, dict) and "parameters" in known:
                setattr(owner, name, _guarded(f"{kind}.{name}", known, attribute))
        return owner

    return decorate


def checked_function(module):
    """Decorate a function of a module: it is CuPy's and is called with CuPy's arguments."""

    def decorate(function):
        return _guarded(f"{module}.{function.__name__}", entry(module, function.__name__), function, bound=False)

    return decorate


def _guarded(what, known, function, bound=True):
    def guarded(*args, **kwargs):
        require_arguments(what, known, args[1:] if bound else args, kwargs)
        return function(*args, **kwargs)

    guarded.__name__, guarded.__doc__ = function.__name__, function.__doc__
    return guarded
