import math

import numpy as np
import pytest

from executor.check import check, difference
from executor.cluster import alone
from executor.data import Random
from executor.job import classification
from executor.training import Trainer, lowered, needed_nodes, right_answers
from planner.graph.ir import Graph, Node
from planner.plans.plan import single_worker
from tests.cross.cases import Case

PLAN = single_worker(Case("mlp", (2,), "recursive", "S", "float64", "adam").plan())


def trained(steps, evaluate=False):
    trainer = Trainer(lowered(PLAN, 1, "p2p", evaluate), alone(1), np, "p2p")
    data = Random(PLAN.graph, PLAN.seed)
    for step in range(steps):
        trainer.load(data, step)
        trainer.run()
    return trainer, data


@pytest.mark.parametrize(
    ("found", "expected", "result"),
    [
        ([1.0, -2.0], [1.0, -2.0], 0.0),
        ([1.0, -2.0], [1.0, -4.0], 0.5),
        ([0.0], [0.0], 0.0),
        ([0.25], [0.0], 0.25),
        ([], [], 0.0),
    ],
)
def test_difference(found, expected, result):
    assert difference(np.array(found), np.array(expected)) == result


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_never_equal(bad):
    assert math.isnan(difference(np.array([bad]), np.array([bad])))


def test_equal_runs_pass():
    found = check(*trained(3), 3)
    assert found.passed
    assert found.tensors == len(PLAN.graph.updates)
    assert found.worst_difference == 0


@pytest.mark.parametrize(("value", "reported"), [(1.0, True), (np.nan, False)])
def test_a_wrong_tensor_is_named(value, reported):
    trainer, data = trained(2)
    name = next(n for n in PLAN.graph.updates if PLAN.graph.tensors[n].role == "weight")
    trainer.worker.memory.views[trainer.programs.training.tensors[name]][0, 0] += value
    found = check(trainer, data, 2)
    assert not found.passed
    assert found.worst_tensor == name
    assert (found.worst_difference is not None) == reported


def test_steps_matter():
    trainer, data = trained(2)
    assert not check(trainer, data, 3).passed


def test_evaluation_uses_the_trained_weights_and_only_forward_nodes():
    trainer, _ = trained(2, evaluate=True)
    program = trainer.programs.evaluation
    assert len(program.workers[0].tasks) < len(trainer.programs.training.workers[0].tasks)
    for name, tensor in PLAN.graph.tensors.items():
        if tensor.init is not None:
            number, other = program.tensors[name], trainer.programs.training.tensors[name]
            here, there = program.workers[0].buffers[number], trainer.programs.training.workers[0].buffers[other]
            assert here.offset == there.offset


def test_needed_nodes_are_ancestors_in_order():
    nodes = tuple(
        Node(name, "relu", inputs, (name,))
        for name, inputs in [("a", ("x",)), ("b", ("a",)), ("c", ("a",)), ("d", ("c",))]
    )
    assert needed_nodes(Graph({}, nodes, {}, {}), "c") == ("a", "c")


def test_right_answers_skip_the_filling():
    logits = np.array([[0, 1], [1, 0], [0, 1], [0, 1]])
    assert right_answers(logits, np.array([1, 1, 1])) == 2


def test_only_classifiers_have_answers():
    assert classification(PLAN.graph) is not None
    assert classification(Case("rnn", (2,), "recursive", "S").plan().graph) is not None
    assert classification(Graph({}, (), {}, {})) is None
