"""Which operators of other frameworks are described: tables of their names, with compositions of ours or reasons."""

from tdl.coverage.aten import ATEN
from tdl.coverage.composition import Application, Composition, composition
from tdl.coverage.entry import KINDS, Entry, counts
from tdl.coverage.mxnet import FORWARD, IMPERATIVE, PLUGINS
from tdl.coverage.mxnet_backward import BACKWARD
from tdl.coverage.mxnet_names import ALIASES, TENSOR_FOLDER
from tdl.coverage.onnx import CLASSICAL, DEFAULT, PREVIEW
from tdl.coverage.operators import OPERATORS, operator

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
