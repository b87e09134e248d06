"""Every ATen operator of four families' training steps, run by the catalog's kernels, equals PyTorch call by call."""

import warnings

import numpy as np
import pytest

import tdl

torch = pytest.importorskip("torch")
from torch.utils import _pytree as pytree  # noqa: E402

from tests.tdl import aten_translation  # noqa: E402
from tests.tdl.aten_models import FAMILIES, traced  # noqa: E402
from tests.tdl.aten_translation import RANDOM, TRANSLATIONS, UNDEFINED  # noqa: E402


def operator(node):
    """Name of an ATen operator without overload; None for what only takes a result apart."""
    target = node.target
    return target.overloadpacket.__name__ if isinstance(target, torch._ops.OpOverload) else None


def array(value):
    if not isinstance(value, torch.Tensor):
        return value
    found = value.detach().numpy()
    return found if found.dtype == np.float64 else found.astype(np.float64 if found.dtype == np.float32 else np.int32)


class Compare(torch.fx.Interpreter):
    """Runs a graph in PyTorch and compares every call, once per operator and shapes, to its translation."""

    def __init__(self, module):
        super().__init__(module)
        self.compared = set()

    def run_node(self, node):
        expected = super().run_node(node)
        name = operator(node) if node.op == "call_function" else None
        if name is not None:
            args, kwargs = self.fetch_args_kwargs_from_env(node)
            key = name, str(pytree.tree_map(lambda own: own.shape if isinstance(own, torch.Tensor) else own, args))
            if key not in self.compared:
                self.compared.add(key)
                self.compare(name, expected, args, kwargs)
        return expected

    def compare(self, name, expected, args, kwargs):
        args, kwargs = pytree.tree_map(array, (args, kwargs))
        found = TRANSLATIONS[name](*args, **kwargs)
        found = found if isinstance(found, tuple) else (found,)
        expected = [array(own) for own in (expected if isinstance(expected, tuple | list) else (expected,))]
        for own, right in zip(found, expected, strict=True):
            if own is None or (isinstance(right, np.ndarray) and right.size == 0):
                continue
            assert own.shape == right.shape, name
            if name in RANDOM:
                assert set(np.unique(own)) <= {0.0, 1.0}
            elif name not in UNDEFINED:
                np.testing.assert_allclose(own, right, rtol=1e-9, atol=1e-12, err_msg=name)


def compared(family):
    """Names of the ATen operators of a family's training step, and the calls (operator and shapes) compared."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TF32 acceleration")
        module, arguments = traced(family)
        compare = Compare(module)
        with torch.backends.mkldnn.flags(enabled=False):
            compare.run(*pytree.tree_leaves(arguments))
    names = {operator(node) for node in module.graph.nodes if node.op == "call_function"} - {None}
    return names, compare.compared


@pytest.mark.parametrize("family", FAMILIES)
def test_every_call_of_a_training_step_equals_torch(family):
    aten_translation.USED.clear()
    names, calls = compared(family)
    assert {name for name, _ in calls} == names <= set(TRANSLATIONS)
    assert set(tdl.catalog) >= aten_translation.USED
