"""How many launches a worker's transfers take: one for packing, one for assembling or summing, whatever the pieces."""

import pytest
from mpi4py import MPI

from executor import arena as transfers
from executor.arena import Arena
from executor.transport.point_to_point import PointToPoint
from executor.worker import Worker
from planner.models import build
from planner.program.lower import Lowering
from planner.program.tasks import Receive, Send
from planner.search import SearchOptions, search
from tests import cupy_double


def pieces(task):
    received = sum(len(message.pieces) for message in task.messages)
    return received if isinstance(task, Send) else received + sum(len(copy.pieces) for copy in task.local)


@pytest.mark.parametrize("model", ["cnn-3-8", "rnn-1-16"])
def test_one_launch_for_each_half_of_a_transfer(monkeypatch, model):
    launches = []

    def launch(_xp, moves):
        launches.append(moves)
        return transfers.nothing

    monkeypatch.setattr(transfers, "MultiFetch", launch)
    options = {"image": 16} if model.startswith("cnn") else {"unroll": 3}
    program = Lowering(search(build(model, batch=8, **options), SearchOptions(ways=(2, 2)))).worker(1)
    with cupy_double.installed() as cupy:
        arena = Arena(cupy, program.arena_bytes)
        Worker(program, arena, lambda memory: PointToPoint(memory, MPI.COMM_SELF, False))
    halves = [task for task in program.tasks if isinstance(task, Send | Receive) and pieces(task)]
    assert len(launches) == len(halves)
    assert sum(map(len, launches)) >= len(launches)
    assert sum(pieces(task) for task in halves) > 1.5 * len(launches)
