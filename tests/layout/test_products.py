"""Which operators are products, and of what shape: against shapes written down, and against operation counts."""

from math import prod

import pytest

import tdl
from planner.layout import signatures
from planner.layout.geometry import contraction
from planner.models import build
from planner.program.lower import lower
from planner.program.tasks import Compute
from planner.search import SearchOptions, search
from topologies import Product
from topologies.kernels import Window

TINY = {"batch": 6, "image": 64, "classes": 5}


def products_of(graph, op):
    signature_of = signatures(graph)
    kinds = {id(signature_of[node.name]): signature_of[node.name] for node in graph.nodes if node.op == op}
    return [contraction(signature).product(signature.extents) for signature in kinds.values()]


def window(taps, pixels, taps_in, pixels_in, dense=True):
    return Window((taps, taps), (pixels, pixels), taps_in, pixels_in, dense)


def test_the_three_products_of_a_layer():
    graph = build("rnn-1-32", batch=8, unroll=1, input_width=16, classes=4)
    shapes = {(p.m, p.n, p.k) for p in products_of(graph, "mm")}
    assert {(8, 4, 32), (8, 32, 4), (32, 4, 8)} <= shapes  # [8, 32] by [32, 4] and its gradients
    assert {p.batch for p in products_of(graph, "mm")} == {1}


def test_convolutions_and_their_gradients():
    graph = build("wresnet-14-1", **TINY)
    # the stem: 3 channels of 64 x 64 to 64 of 32 x 32 by 7 x 7 of stride 2
    stem = Product(1, 6 * 32 * 32, 64, 3 * 49, window(7, 32, "k", "m", dense=False))
    assert stem in products_of(graph, "convolution")
    of_weight = Product(1, 64, 3 * 49, 6 * 32 * 32, window(7, 32, "n", "k", dense=False))
    assert of_weight in products_of(graph, "convolution_backward_weight")
    # 64 to 64 channels of 16 x 16 by 3 x 3
    dense = Product(1, 6 * 16 * 16, 64, 64 * 9, window(3, 16, "k", "m"))
    assert dense in products_of(graph, "convolution")
    assert dense in products_of(graph, "convolution_backward_input")
    # 256 to 512 channels of 16 x 16 to 8 x 8 by 1 x 1: of four places in a gradient one has terms
    strided = Product(1, 6 * 16 * 16, 256, 512 // 4, window(1, 16, "k", "m", dense=False))
    assert strided in products_of(graph, "convolution_backward_input")


def test_heads_are_a_batch():
    graph = build("transformer-1-128", batch=2, sequence=10, vocabulary=11, heads=4)
    assert Product(2 * 4, 10, 10, 32, aligned=2) in products_of(graph, "einsum")


@pytest.mark.parametrize("name", ["wresnet-14-1", "cnn-5-16"])
def test_products_do_the_operations_that_are_counted(name):
    graph = build(name, **TINY)
    for signature in signatures(graph).values():
        contracted = contraction(signature)
        if contracted is not None:
            product = contracted.product(signature.extents)
            operations = signature.description.operations(signature.extents)
            multiplied = 2 * product.batch * product.m * product.n * product.k
            assert operations <= multiplied <= operations * 1.25  # a sum of 2.25 terms on average takes 3
            assert prod((product.m, product.n)) > 0


def test_other_operators_are_no_products():
    graph = build("wresnet-14-1", **TINY)
    products = {node.op for node in graph.nodes if contraction(signatures(graph)[node.name]) is not None}
    assert products <= {op for op, operator in tdl.catalog.items() if operator.category in ("matmul", "convolution")}
    assert {"mm", "convolution", "convolution_backward_input", "convolution_backward_weight"} == products


def test_every_call_of_a_program_has_its_shape():
    graph = build("cnn-5-16", batch=5, image=13, classes=3)
    plan = search(graph, SearchOptions((2, 2), "model-parallel", "S,R"))
    for worker in lower(plan).workers:
        for task in worker.tasks:
            if isinstance(task, Compute) and task.category in ("matmul", "convolution"):
                (kernel,) = task.kernels
                assert len(task.products) == len(kernel.calls)
                multiplied = sum(2 * p.batch * p.m * p.n * p.k for p in task.products)
                assert task.operations <= multiplied <= task.operations * 1.3
            elif isinstance(task, Compute):
                assert task.products == ()
