"""What is remembered is bounded in bytes."""

from planner.layout import memo


def test_the_oldest_is_forgotten_where_results_exceed_the_limit(monkeypatch):
    monkeypatch.setattr(memo, "MEMO_BYTES", 10)
    computed = []

    @memo.remembered(len)
    def repeated(count):
        computed.append(count)
        return bytes(count)

    for count in (4, 5, 4, 3, 5, 4, 11, 11):
        assert repeated(count) == bytes(count)
    assert computed == [4, 5, 3, 4, 11]
