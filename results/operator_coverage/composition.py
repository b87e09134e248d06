"""Compositions: how a foreign operator is written with described ones, as a few assignments in Python's own syntax.

    m = mean(x[4], dims=(0, 2, 3), count=8); v = batch_norm_var(x, m, count=8)

`x[4]` is an operand of rank 4; the rank is given where an operand first occurs. Attributes are literals. The results of
the last statement are the outputs. The text is parsed, never executed.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from results.operator_coverage.operators import operator
from tdl.evaluate import Array
from tdl.index import TDLError
from tdl.operator import Description


@dataclass(frozen=True, slots=True)
class Application:
    """One operator applied: values read and made, by name, and literal attributes."""

    operator: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Composition:
    """Applications in order; `operands` maps the names of those from outside to their ranks."""

    operands: Mapping[str, int]
    applications: tuple[Application, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """Distinct operators, in the order of their first use."""
        return tuple(dict.fromkeys(application.operator for application in self.applications))

    def descriptions(self) -> tuple[Description, ...]:
        """Describe every application at the ranks that reach it.

        Raises TDLError where an operator is unknown, or does not take its operands or attributes.
        """
        ranks = dict(self.operands)
        descriptions = []
        for application in self.applications:
            given = tuple(ranks[name] for name in application.inputs)
            description = operator(application.operator).describe(given, application.attributes)
            if application.outputs and len(application.outputs) != len(description.outputs):
                raise TDLError(f"{application.operator} has {len(description.outputs)} outputs: {application.outputs}")
            for name, output in zip(application.outputs, description.outputs, strict=False):
                ranks[name] = len(output.index)
            descriptions.append(description)
        return tuple(descriptions)

    def evaluate(self, arrays: Mapping[str, Array]) -> tuple[Array, ...]:
        """Compute the outputs of the last application by reference evaluation of each."""
        values = dict(arrays)
        results: tuple[Array, ...] = ()
        for application, description in zip(self.applications, self.descriptions(), strict=True):
            inputs = [values[name] for name in application.inputs]
            results = description.evaluate(inputs, application.attributes)
            values.update(zip(application.outputs, results, strict=False))
        return results


@cache
def composition(text: str) -> Composition:
    """Parse a composition; TDLError names what is no assignment of one operator's results."""
    operands: dict[str, int] = {}
    defined: set[str] = set()
    applications = []
    for statement in ast.parse(text).body:
        outputs, call = _assigned(statement, text)
        inputs = tuple(_input(argument, operands, defined, text) for argument in call.args)
        attributes = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        applications.append(Application(ast.unparse(call.func), inputs, attributes, outputs))
        defined |= set(outputs)
    return Composition(operands, tuple(applications))


def _assigned(statement: ast.stmt, text: str) -> tuple[tuple[str, ...], ast.Call]:
    """Return the names that a statement assigns (none for a bare call) and its call."""
    match statement:
        case ast.Expr(value=ast.Call() as call):
            return (), call
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
            return (name,), call
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Call() as call):
            return tuple(ast.unparse(name) for name in names), call
    raise TDLError(f"'{ast.unparse(statement)}' in '{text}' does not apply one operator")


def _input(argument: ast.expr, operands: dict[str, int], defined: set[str], text: str) -> str:
    """Return the name of what is read; the first mention of an operand declares its rank."""
    match argument:
        case ast.Name(id=name) if name in operands or name in defined:
            return name
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=int() as rank)):
            if name in defined or operands.setdefault(name, rank) != rank:
                raise TDLError(f"'{name}' in '{text}' is declared twice")
            return name
    raise TDLError(f"'{ast.unparse(argument)}' in '{text}' is neither an operand with its rank nor an earlier result")
