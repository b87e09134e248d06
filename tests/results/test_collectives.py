"""Machines say what was fitted, and predictions are as near to what was published as the experiment claims."""

import csv
from dataclasses import replace

import msgspec
import pytest

from results.collectives import simulated
from results.collectives.fitting import predicted
from results.collectives.run import (
    A100,
    BUS,
    HERE,
    MACHINES,
    MIB,
    errors,
    fits,
    halves,
    pairs_errors,
    pairs_loss,
    pairs_points,
    rows,
)
from results.experiment import ROOT, read_data, read_published
from topologies import load_topology, reading

DATA = read_data(HERE)
MEASURED = ROOT.parent / "shared" / "measured" / "collectives.csv"
OUTLIERS = {("P6-B200", 4)}
"""Of which payloads below 256 KiB took longer than 64 MiB."""


def test_machines_say_what_is_fitted():
    assert msgspec.json.decode(msgspec.json.encode(fits())) == DATA["fits"]
    for machine, entries in DATA["fits"].items():
        stated = load_topology(machine).collectives
        for entry in entries:
            alike = [choice for choice in stated if choice.algorithm == entry["algorithm"]]
            shown = ("latency_s", "hop_s", "bandwidth_share")
            figures = {name: entry[name] for name in shown if name in entry}
            assert figures in [{name: getattr(choice, name) for name in figures} for choice in alike]


def test_no_row_is_fitted_on_and_judges():
    """Nor does a point that was published twice, and was fitted on once."""
    fitted, judged = halves(rows())
    assert not {row.point for row in fitted} & {row.point for row in judged}
    assert {row.point for row in fitted} | {row.point for row in judged} == {row.point for row in rows()}
    assert [row in judged for row in rows()] == DATA["judged"]
    assert 0.9 < len(fitted) / len(judged) < 1


def test_predictions_are_as_near_as_claimed():
    """Of the rows that judge, from 1 MiB on and below: nearly all of them within what is tolerated."""
    judged = [(row, error) for row, error in errors(DATA, judged=True) if row.name != A100]
    large = [(row, error) for row, error in judged if row.nbytes >= MIB]
    small = [(row, error) for row, error in judged if row.nbytes < MIB and (row.name, row.nodes) not in OUTLIERS]
    assert len(large) >= 30
    assert len(small) >= 5
    assert sum(abs(error) > 0.15 for _, error in large) <= 3
    assert all(abs(error) <= 0.33 for _, error in large)
    assert all(abs(error) <= 0.30 for _, error in small)
    a100 = [(row, error) for row, error in errors(DATA, judged=True) if row.name == A100]
    assert sum(abs(error) > row.tolerance for row, error in a100) <= 1


def test_predictions_are_found_again_by_simulating_a_plan():
    """A step whose only communication is an all-reduce takes that much longer, in two hops as one operation."""
    everything = rows()
    for nbytes, gpus in ((MIB, 2), (MIB, 8), (33 * MIB, 5), (1024 * MIB, 8)):
        (place,) = (
            n for n, row in enumerate(everything) if (row.name, row.nbytes, row.devices) == (A100, nbytes, gpus)
        )
        (seconds,) = simulated.seconds(load_topology("p4d.24xlarge"), gpus, [nbytes], library=True)
        assert seconds == pytest.approx(DATA["predicted_s"][place], rel=1e-6)
        assert predicted(load_topology("p4d.24xlarge"), everything[place]) == pytest.approx(seconds, rel=1e-6)


def test_the_link_is_as_fitted_for_pairs():
    stated = reading.link_types()[DATA["pairs"]["link"]].half_bandwidth_bytes
    assert stated == DATA["pairs"]["fitted_half_bandwidth_bytes"] == DATA["pairs"]["half_bandwidth_bytes"]
    points = pairs_points()
    assert pairs_loss(stated, points) < min(pairs_loss(stated + change, points) for change in (-20_000, 20_000))
    assert all(abs(error) <= 0.15 for row, error in pairs_errors(DATA) if row.nbytes >= 8 * MIB)


def test_messages_between_pairs_by_hand():
    machine, workers, nbytes = simulated.machine(), 4, 64 * MIB
    route, device = machine.route(0, 1), machine.devices[0]
    bandwidth = machine.bandwidth_bytes_per_s(0, 1)
    copied_s = 2 * nbytes / workers / device.spec.memory_bandwidth_bytes_per_s / device.spec.efficiency.elementwise
    messages_s = (workers - 1) * (nbytes / workers + route.half_bandwidth_bytes) / bandwidth
    expected = 4 * device.spec.launch_latency_s + 2 * (route.latency_s + messages_s) + copied_s
    assert simulated.seconds(machine, workers, [nbytes]) == pytest.approx([expected], rel=1e-9)


@pytest.mark.skipif(not MEASURED.is_file(), reason="../shared/measured/collectives.csv is not here")
def test_published_rows_are_the_measured_ones():
    with MEASURED.open() as file:
        measured = list(csv.DictReader(file))
    published = [tuple(map(str, row[:-1])) for row in read_published(HERE)["rows"]]
    names = ("collective", "machine", "nodes", "devices", "algorithm", "payload_bytes")
    assert published == [tuple(row[name] for name in names) for row in measured]
    for row, seconds in zip(measured, (row.seconds for row in rows()), strict=False):
        devices, rate = int(row["devices"]), float(row["bus_bandwidth_GB_per_s"])
        bus_bytes = float(row["payload_bytes"]) * BUS[row["collective"]] * (devices - 1) / devices
        assert bus_bytes / seconds / 1e9 == pytest.approx(rate)


def test_fewer_devices_than_a_node_has_are_the_first():
    assert {row.members for row in rows() if row.devices == 3} == {(0, 1, 2)}
    assert set(MACHINES) >= {(row.name, row.nodes) for row in rows()}
    assert replace(rows()[0], nbytes=1).tolerance == 0.30
