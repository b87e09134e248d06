import math

import numpy as np
import pytest

from executor.check import check, relative_difference, tolerance
from executor.data import Random
from executor.kernels import KERNELS
from executor.training import needed_nodes, right_answers
from planner.graph.facts import classification
from planner.graph.ir import Graph, Node
from planner.models import build
from planner.plans.plan import single_worker
from planner.search import SearchOptions, search
from tests.cross.cases import Case
from tests.executor.training import trained

PLAN = single_worker(Case("mlp", (2,), "recursive", "S", "float64", "adam").plan())
WEIGHTS = [name for name in PLAN.graph.updates if PLAN.graph.tensors[name].role == "weight"]
COMPARED = len(PLAN.graph.updates) + len(WEIGHTS)
"""Every updated tensor, and the gradient of every weight."""


def checked(trainer, steps=1):
    return check(trainer, Random(trainer.graph, trainer.programs.plan.seed), steps)


@pytest.mark.parametrize(
    ("values", "expected", "result"),
    [
        ([1.0, -2.0], [1.0, -2.0], 0.0),
        ([1.0, -2.0], [1.0, -4.0], 0.5),
        ([0.0], [0.0], 0.0),
        ([0.25], [0.0], 0.25),
        ([], [], 0.0),
    ],
)
def test_difference(values, expected, result):
    assert relative_difference(np.array(values), np.array(expected)) == result


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_never_equal(bad):
    assert math.isnan(relative_difference(np.array([bad]), np.array([bad])))


def test_equal_runs_pass():
    report = checked(trained(PLAN, 3), 3)
    assert report.passed
    assert (report.tensors, report.undecided) == (COMPARED, 0)
    assert report.worst_difference == 0


@pytest.mark.parametrize(("value", "reported"), [(1.0, True), (np.nan, False)])
def test_a_wrong_tensor_is_named(value, reported):
    trainer, name = trained(PLAN, 2), WEIGHTS[0]
    trainer.view(name)[0, 0] += value
    report = checked(trainer, 2)
    assert not report.passed
    assert (report.failed, report.tensors) == (1, COMPARED)
    assert report.worst_tensor == name
    assert (report.worst_difference is not None) == reported


def transformer(optimizer, dtype="float32"):
    """Shifting all keys by one vector changes no attention: the gradient of their bias is zero but for rounding."""
    options = {"batch": 2, "sequence": 8, "vocabulary": 16, "heads": 4, "optimizer": optimizer, "dtype": dtype}
    return single_worker(search(build("transformer-2-64", **options), SearchOptions(ways=(2,))))


def by_a_factor(out):
    out *= 1.01


def in_one_element(out):
    out.reshape(-1)[0] += 0.05


def trained_with(monkeypatch, op, wrong, optimizer):
    """A transformer after one step, every result of an operator of which was wrong."""
    right = KERNELS[op]

    def kernel(call):
        right(call)
        wrong(call.outputs[-1] if op == optimizer else call.outputs[0])

    with monkeypatch.context() as patch:
        patch.setitem(KERNELS, op, kernel)
        return trained(transformer(optimizer), 1)


@pytest.mark.parametrize("wrong", [by_a_factor, in_one_element])
@pytest.mark.parametrize("op", ["einsum", "softmax_backward", "UPDATE"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "rmsprop", "adagrad"])
def test_a_wrong_kernel_fails(monkeypatch, optimizer, op, wrong):
    op = optimizer if op == "UPDATE" else op
    assert not checked(trained_with(monkeypatch, op, wrong, optimizer)).passed


def test_one_wrong_call_of_a_kernel_fails():
    """Wrong in a single element of the one gradient that is zero but for rounding."""
    trainer = trained(transformer("adam"), 1)
    state = trainer.view("l0.attention.qkv.b.m")
    assert np.abs(state).min() < 1e-6 * np.abs(state).max()
    state.reshape(-1)[np.abs(state).argmin()] += 1e-4 * np.abs(state).max()
    report = checked(trainer)
    assert (report.failed, report.worst_tensor) == (1, "l0.attention.qkv.b.m")


def test_a_wrong_gradient_fails_where_the_update_hides_it(monkeypatch):
    """Adam divides a gradient by its own size, so that its first step is the same whatever the gradient's factor."""
    trainer, right = trained_with(monkeypatch, "softmax_backward", by_a_factor, "adam"), trained(transformer("adam"), 1)
    for name in trainer.graph.updates:
        trainer.view(name)[...] = right.view(name)
    report = checked(trainer)
    assert not report.passed
    assert report.worst_tensor.endswith(".grad")


def test_rounding_excuses_no_more_than_it_does():
    """The keys' bias is all rounding under Adam, one learning rate in size: undecided, but ten times that is wrong."""
    trainer = trained(transformer("adam"), 1)
    trainer.view("l0.attention.qkv.b")[1] *= -1
    report = checked(trainer)
    assert (report.passed, report.undecided) == (True, 1)
    trainer = trained(transformer("adam"), 1)
    trainer.view("l0.attention.qkv.b")[1] *= 10
    report = checked(trainer)
    assert (report.failed, report.worst_tensor) == (1, "l0.attention.qkv.b")


@pytest.mark.parametrize(
    ("by_rounding", "expected"), [(0, 1e-5), (1e-6, 1.6e-5), (1e-3, 0.016), (0.01, 0.05), (0.02, 0.05), (2, 4)]
)
def test_the_tolerance_is_capped(by_rounding, expected):
    assert tolerance(by_rounding, 1e-5) == pytest.approx(expected)


def test_steps_matter():
    assert not checked(trained(PLAN, 2), 3).passed


def test_evaluation_uses_the_trained_weights_and_only_forward_nodes():
    programs = trained(PLAN, 2, evaluate="logits").programs
    training, evaluation = programs.training, programs.evaluation
    assert len(evaluation.worker.tasks) < len(training.worker.tasks)
    for name, tensor in PLAN.graph.tensors.items():
        if tensor.init is not None:
            here = evaluation.worker.buffers[evaluation.tensors[name]]
            there = training.worker.buffers[training.tensors[name]]
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
