"""The link of the library is as fitted, and the experiment holds what is claimed of it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 8), st.integers(8, 1 << 22), st.sampled_from([0, 1e5, 1e7]))
def test_a_larger_all_reduce_never_takes_less_time_and_moves_what_it_must(workers, items, half_bandwidth_bytes):
    machine = simulated.machine(half_bandwidth_bytes)
    shorter, longer = simulated.seconds(machine, workers, [4 * items, 8 * items])
    assert 0 < shorter <= longer * (1 + 1e-9)
    assert simulated.plan(workers, 4 * items).total_bytes == 2 * (workers - 1) * 4 * items


def test_an_all_reduce_of_one_size_by_hand():
    machine, workers, nbytes = simulated.machine(), 4, 64 * MIB
    route, device = machine.route(0, 1), machine.devices[0]
    bandwidth = machine.bandwidth_bytes_per_s(0, 1)
    copied_s = 2 * nbytes / workers / device.spec.memory_bandwidth_bytes_per_s / device.spec.efficiency.elementwise
    messages_s = (workers - 1) * (nbytes / workers + route.half_bandwidth_bytes) / bandwidth
    expected = 4 * device.spec.launch_latency_s + 2 * (route.latency_s + messages_s) + copied_s
    assert simulated.seconds(machine, workers, [nbytes]) == pytest.approx([expected], rel=1e-9)
