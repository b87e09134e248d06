"""Seconds of tasks: as measured where they were, else from calls that are like them."""

import pytest

from topologies import Estimates, TransferAmounts
from topologies.kernels import read_task
from topologies.schema import Measured, TransferCost

COST = TransferCost(task_s=1.0, message_s=10.0, piece_s=100.0, run_s=1000.0, byte_s=10000.0)


def estimates(tasks, call_s=0.0):
    measured = Measured(
        date="2000-01-01", ranks=2, threads=1, transport="p2p", rounds=3, spread=0.0, call_s=call_s,
        memory_alone_bytes_per_s=1e9, send=COST, post=TransferCost(), fetch=TransferCost(), reduce=TransferCost(),
        tasks=tasks,
    )  # fmt: skip
    return Estimates(measured)


def mm(m, n, k):
    return f"mm float32[{m},{k}] float32[{k},{n}] -> float32[{m},{n}]"


def test_a_call_as_read():
    ((count, call),) = read_task("3 x mm(transpose_a=True) float32[4,2]of[8,2] float32[4,8] -> float32[2,8] combined")
    assert (count, call.op, call.attributes) == (3, "mm", "(transpose_a=True)")
    assert call.work == pytest.approx(2 * 8 * 4)
    ((_, call),) = read_task("relu bfloat16[5,3] -> bfloat16[5,3]")
    assert call.work == 2 * 2 * 15
    assert read_task("loss float32[] -> float32[]")[0][1].work == 8


def call(op, extent):
    return f"{op} float32[{extent}] -> float32[{extent}]"


def half(op, extent):
    return call(op, extent).replace("float32", "float16")


@pytest.mark.parametrize(
    ("measured", "call_s", "task", "expected"),
    [
        ({mm(8, 8, 8): 0.25, mm(16, 16, 16): 123.0}, 0, mm(8, 8, 8), 0.25),
        ({call("relu", 100): 3.0}, 1.0, call("relu", 200), 1.0 + 2 * 2.0),  # a call, beside its work
        ({call("relu", 100): 1.0, call("tanh", 100): 5.0}, 0, f"{call('relu', 100)}; 2 x {call('tanh', 100)}", 11.0),
        ({f"{call('relu', 100)}; {call('tanh', 300)}": 4.0}, 0, call("relu", 100), 1.0),  # a chain tells of its calls
        ({call("relu", 100): 3.0, "send 1 messages 1 pieces 1 runs 4 bytes": 1.0}, 0, call("tanh", 100), None),
        ({call("relu", 100): 3.0}, 0, f"{call('relu', 100)}; {call('tanh', 9)}", None),
        ({call("relu", 100): 3.0, half("relu", 400): 2.0}, 0, half("relu", 100), 0.5),  # of its dtype
        ({call("relu", 100): 3.0}, 0, half("relu", 100), 1.5),  # of another, by bytes
    ],
)
def test_seconds_by_hand(measured, call_s, task, expected):
    assert estimates(measured, call_s).compute_s(task) == (expected and pytest.approx(expected))


@pytest.mark.parametrize("factor", [2, 3, 10])
def test_a_larger_call_of_one_known_rate_takes_as_much_longer_as_it_has_work(factor):
    estimate = estimates({mm(64, 64, 64): 1.0})
    assert estimate.compute_s(mm(64, 64, 64 * factor)) == pytest.approx(factor)


def test_an_estimate_lies_between_its_neighbours():
    estimate = estimates({mm(64, 64, 64): 1.0, mm(256, 256, 256): 32.0})
    middle = estimate.compute_s(mm(128, 128, 128))
    assert 32.0 * 2**-3 < middle < 1.0 * 2**3


def test_the_nearer_call_decides():
    near, far = "relu float32[100,64] -> float32[100,64]", "relu float32[10000,64] -> float32[10000,64]"
    estimate = estimates({near: 1.0, far: 1000.0})
    like_near = estimate.compute_s("relu float32[101,64] -> float32[101,64]")
    like_far = estimate.compute_s("relu float32[10001,64] -> float32[10001,64]")
    assert like_near == pytest.approx(1.01, rel=0.01)
    assert like_far == pytest.approx(1000.1, rel=0.01)


def test_transfers_are_known_or_a_sum():
    moved = TransferAmounts(messages=1, pieces=2, runs=3, nbytes=4)
    assert estimates({}).transfer_s("send", moved) == 1 + 10 + 200 + 3000 + 40000
    assert estimates({moved.spelled("send"): 0.5}).transfer_s("send", moved) == 0.5
    assert estimates({moved.spelled("send"): 0.5}).transfer_s("post", moved) == 0
