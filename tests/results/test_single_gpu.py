"""The devices of the library say what the experiment has fitted, and it holds what is claimed of it."""

import pytest

from results.experiment import read_data
from results.single_gpu.devices import convolutions, described, products
from results.single_gpu.fitting import error
from results.single_gpu.run import HERE, P100_PCIE, PUBLISHED, changed

DATA = read_data(HERE)


@pytest.mark.parametrize(("name", "key"), [("gk210", "gk210"), ("p100-sxm2-16gb", "p100")])
def test_devices_are_as_fitted(name, key):
    device = described(name)
    figures = {**device["efficiency"], **device["products"]}
    assert {name: figures[name] for name in DATA["fits"][key]} == DATA["fits"][key]


@pytest.mark.parametrize(("name", "kind", "most"), [("gk210", "held out", 0.15), ("p100", "own peaks", 0.2)])
def test_predictions_are_as_near_as_claimed(name, kind, most):
    rates = DATA[name]
    assert all(abs(rates[kind][run] / figure - 1) <= most for run, figure in rates["measured"].items())


def test_single_kernels_are_predicted_better_than_without_their_shape():
    shaped = changed(described("p100-sxm2-16gb"), **P100_PCIE)
    plain = {**shaped, "products": None}
    windows = list(convolutions(PUBLISHED["p100_convolutions"]["rows"]))
    single = list(products(PUBLISHED["p100_products"]["rows"]))
    for measured in (windows, single):
        assert error(shaped, measured) < error(plain, measured)
