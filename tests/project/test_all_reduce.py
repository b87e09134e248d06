"""The link of the library is as fitted, and the experiment holds what is claimed of it."""

import pytest

from results.all_reduce import simulated
from results.all_reduce.run import FITTED_GPUS, FITTED_MIB, HERE, MIB, loss, ratios
from results.experiment import read_data, read_published
from topologies import library

FOUND, PUBLISHED = read_data(HERE), read_published(HERE)


def test_the_link_is_as_fitted():
    stated = library.link_types()[FOUND["link"]].half_bandwidth_bytes
    assert stated == FOUND["fitted_half_bandwidth_bytes"] == FOUND["half_bandwidth_bytes"]
    at = PUBLISHED["mib"].index(FITTED_MIB)
    points = {gpus: PUBLISHED["microseconds"][str(gpus)][at] for gpus in FITTED_GPUS}
    assert loss(stated, points) < min(loss(stated - 20_000, points), loss(stated + 20_000, points))


@pytest.mark.parametrize(("least", "most", "error"), [(1, 1, 0.3), (8, 1024, 0.15)])
def test_predictions_are_as_near_as_claimed(least, most, error):
    found = [ratio for curve in ratios(FOUND, least, most).values() for ratio in curve]
    assert len(found) >= 7
    assert all(abs(ratio - 1) <= error for ratio in found)


@pytest.mark.parametrize(("gpus", "mib"), [(2, 1), (5, 33), (8, 1024)])
def test_predictions_are_found_again(gpus, mib):
    (seconds,) = simulated.seconds(simulated.machine(), gpus, [mib * MIB])
    data = FOUND["microseconds"][str(gpus)][PUBLISHED["mib"].index(mib)]
    assert seconds * 1e6 == pytest.approx(data, abs=0.01)
