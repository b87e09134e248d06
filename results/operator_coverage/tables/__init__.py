"""Which operators of other frameworks are described: tables of their names, with compositions of ours or reasons."""

from results.operator_coverage.tables.aten import ATEN
from results.operator_coverage.tables.composition import Application, Composition, composition
from results.operator_coverage.tables.entry import KINDS, Entry, counts
from results.operator_coverage.tables.mxnet import FORWARD, IMPERATIVE, PLUGINS
from results.operator_coverage.tables.mxnet_backward import BACKWARD
from results.operator_coverage.tables.mxnet_names import ALIASES, TENSOR_FOLDER
from results.operator_coverage.tables.onnx import CLASSICAL, DEFAULT, PREVIEW
from results.operator_coverage.tables.operators import OPERATORS, operator

CATALOGS = {
    "MXNet 0.11.0": {
        "operators": FORWARD,
        "imperative functions": IMPERATIVE,
        "plugins": PLUGINS,
        "gradients": BACKWARD,
    },
    "ONNX 1.23": {"operators": DEFAULT, "preview domains": PREVIEW, "classical machine learning": CLASSICAL},
    "core ATen 2.11": {"operators": ATEN},
}
"""Every catalog's groups of operators."""

__all__ = [
    "ALIASES",
    "CATALOGS",
    "KINDS",
    "OPERATORS",
    "TENSOR_FOLDER",
    "Application",
    "Composition",
    "Entry",
    "composition",
    "counts",
    "operator",
]
