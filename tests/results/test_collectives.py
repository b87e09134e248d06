"""Machines say what was fitted, and predictions are as near to what was published as the experiment claims."""

from results.collectives.run import (
    A100,
    HERE,
    MIB,
    errors,
    halves,
    rows,
)
from results.experiment import read_data
from topologies import load_topology

DATA = read_data(HERE)
OUTLIERS = {("P6-B200", 4)}
"""Of which payloads below 256 KiB took longer than 64 MiB."""


def test_machines_say_what_is_fitted():
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
