"""What is remembered is bounded in bytes."""

import numpy as np

from planner.layout import communication


def test_the_oldest_is_forgotten_where_results_exceed_the_limit(monkeypatch):
    monkeypatch.setattr(communication, "MEMO_BYTES", 10)
    computed = []

    @communication.remembered
    def repeated(count):
        computed.append(count)
        return np.zeros(count, dtype=np.int8)

    for count in (4, 5, 4, 3, 5, 4, 11, 11):
        assert len(repeated(count)) == count
    assert computed == [4, 5, 3, 4, 11]
