"""Small messages by Unix sockets: every one arrives as it was sent, whatever the order, and who is gone is named."""

import socket
import sys
from threading import Barrier, Thread

import numpy as np
import pytest

pytest.importorskip("torch")
from executor.torch.transport import GONE, LATE, NUMBER, SMALL, LocalSockets, connected

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="where ranks have no such sockets")

PATIENCE_S = 30


def pair(timeout_s=PATIENCE_S):
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return [LocalSockets({1 - rank: end}, timeout_s) for rank, end in enumerate(ends)]


def message(value, elements=8):
    return np.full(elements, value, np.float32)


def received(sockets, rank, number, elements=8):
    into = message(np.nan, elements)
    sockets.receive(rank, number, memoryview(into.view(np.uint8)))
    return into


def sent(sockets, rank, number, array):
    sockets.send(rank, number, memoryview(array.view(np.uint8)))


def test_messages_are_told_apart_by_number_and_come_in_order_of_each():
    first, second = pair()
    for number, value in ((3, 1), (5, 2), (3, 3)):
        sent(first, 1, number, message(value))
    assert [received(second, 0, number)[0] for number in (5, 3, 3)] == [2, 1, 3]
    first.close()
    second.close()


def test_a_message_of_the_largest_size_arrives_whole():
    first, second = pair()
    array = np.arange(SMALL // 4, dtype=np.float32)
    sent(first, 1, 0, array)
    assert np.array_equal(received(second, 0, 0, array.size), array)
    assert first.carries(1, SMALL)
    assert not first.carries(1, SMALL + 1)
    assert not first.carries(2, 4)
    first.close()
    second.close()


def test_what_ranks_tell_each_other_is_told_apart_from_messages_whatever_its_length():
    first, second = pair()
    values = [{"name": 1}, np.arange(SMALL, dtype=np.float32), None]
    sent(first, 1, 0, message(5))
    for value in values:
        first.tell(1, value)
    told = [second.told(0) for _ in values]
    assert (told[0], told[2]) == (values[0], None)
    assert np.array_equal(told[1], values[1])
    assert received(second, 0, 0)[0] == 5
    first.close()
    second.close()


def joined(count, work):
    """What threads return that are the ranks of a host, each with sockets to the others."""
    barrier, places, results = Barrier(count), [None] * count, [None] * count

    def rank_of(rank):
        def gather(value):
            places[rank] = value
            barrier.wait(PATIENCE_S)
            return places

        sockets = connected(rank, gather, PATIENCE_S)
        results[rank] = work(rank, sockets)
        barrier.wait(PATIENCE_S)
        sockets.close()

    threads = [Thread(target=rank_of, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return results


def test_ranks_that_send_more_than_there_is_room_for_in_a_ring_go_on():
    """Everybody sends to the next one before it receives anything: without taking in meanwhile nobody could."""
    count, messages, elements = 3, 100, SMALL // 4

    def work(rank, sockets):
        for number in range(messages):
            sent(sockets, (rank + 1) % count, number, message(number + rank, elements))
        return [received(sockets, (rank - 1) % count, number, elements)[-1] for number in reversed(range(messages))]

    for rank, values in enumerate(joined(count, work)):
        assert values == [number + (rank - 1) % count for number in reversed(range(messages))]


def test_who_does_not_know_the_secret_is_no_rank():
    barrier, places = Barrier(2), [None, None]

    def gather(rank, value):
        places[rank] = value
        barrier.wait(PATIENCE_S)
        if rank == 1:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
                stranger.connect(places[0][1])
                stranger.send(bytes(16) + (1).to_bytes(NUMBER, "big"))
        return places

    ends = [None, None]

    def rank_of(rank):
        ends[rank] = connected(rank, lambda value: gather(rank, value), PATIENCE_S)

    threads = [Thread(target=rank_of, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    sent(ends[1], 0, 7, message(4))
    assert received(ends[0], 1, 7)[0] == 4
    for end in ends:
        end.close()


def test_one_that_is_gone_and_one_that_does_not_send_are_said():
    first, second = pair(timeout_s=0.01)
    with pytest.raises(TimeoutError) as late:
        received(first, 1, 0)
    second.close()
    with pytest.raises(ConnectionError) as gone:
        received(first, 1, 0)
    with pytest.raises(ConnectionError) as refused:
        sent(first, 1, 0, message(1))
    assert any(words in str(late.value) for words in LATE)
    assert all(any(words in str(error.value) for words in GONE) for error in (gone, refused))
    first.close()
