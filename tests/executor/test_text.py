"""Text: windows of the standard library's source, the same for tokens and for vectors, split or not."""

import sysconfig
from pathlib import Path

import numpy as np
import pytest

from executor.data import CHARACTERS, HELD_OUT_CHARACTERS, DataError, data_set, data_tensors, source_files, source_text
from planner.models import build
from tests.executor.training import get, index_of

SEQUENCE, BATCH = 16, 6
TOKENS = {"batch": BATCH, "sequence": SEQUENCE, "vocabulary": CHARACTERS, "heads": 1}
VECTORS = {"batch": BATCH, "unroll": SEQUENCE, "input_width": CHARACTERS, "classes": CHARACTERS}


def shown(graph, data, step):
    """What a graph is shown as [batch, sequence], and what it is to predict."""
    values = {tensor.name: get(data, tensor, step) for tensor in data_tensors(graph)}
    if "tokens" in values:
        return values["tokens"], values["labels"].reshape(BATCH, SEQUENCE)
    vectors = np.stack([values[f"x.{step}"] for step in range(SEQUENCE)], 1)
    assert (vectors.sum(2) == 1).all()
    return vectors.argmax(2), np.stack([values[f"labels.{step}"] for step in range(SEQUENCE)], 1)


@pytest.fixture(scope="module")
def graphs():
    return build("transformer-1-8", **TOKENS), build("rnn-1-4", **VECTORS)


def test_tokens_and_vectors_are_the_same_text(graphs):
    for step in (0, 12345):
        tokens, vectors = (shown(graph, source_text(graph, 3), step) for graph in graphs)
        np.testing.assert_array_equal(tokens, vectors)
        np.testing.assert_array_equal(tokens[0][:, 1:], tokens[1][:, :-1])


def test_windows_are_of_the_files(graphs):
    data = source_text(graphs[0], 0)
    text = b"".join(bytes(codes) for codes in source_files(Path(sysconfig.get_path("stdlib"))))
    for data_or_held in (data, data.held_out):
        inputs, labels = shown(graphs[0], data_or_held, 0)
        for row, after in zip(inputs, labels, strict=True):
            assert bytes(row.astype(np.uint8)) + bytes(after.astype(np.uint8)[-1:]) in text


def test_no_window_is_trained_on_and_held_out(graphs):
    data = source_text(graphs[0], 0)
    every = sum(map(len, source_files(Path(sysconfig.get_path("stdlib")))))
    assert 0.08 < 1 - data.samples.count * SEQUENCE / every < 0.12
    assert data.held_out.count * SEQUENCE == HELD_OUT_CHARACTERS // SEQUENCE // BATCH * BATCH * SEQUENCE
    assert data.held_out.real(data.held_out.steps_per_epoch - 1) == BATCH


def test_an_epoch_shows_every_window_once(graphs):
    data = source_text(graphs[0], 0)
    chosen = data._chosen(np.arange(2 * data.samples.count))
    for epoch in np.split(chosen, 2):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(data.samples.count))
    assert not np.array_equal(*np.split(chosen, 2))


@pytest.mark.parametrize("options", [{}, {"micro_batches": 3}])
def test_parts_are_of_the_whole(options):
    cut = build("transformer-1-8", **TOKENS, **options)
    data, full = source_text(cut, 5), build("transformer-1-8", **TOKENS)
    expected = shown(full, source_text(full, 5), 70)
    for tensor in data_tensors(cut):
        wanted = expected[0] if tensor.name.startswith("tokens") else expected[1]
        micro_batches = [get(data, tensor, 70, micro_batch=number) for number in range(cut.micro_batches)]
        np.testing.assert_array_equal(np.concatenate(micro_batches), wanted)
        region = (((1, 2),), *(((2, 5), (9, 11)) for _ in tensor.shape[1:]))
        np.testing.assert_array_equal(get(data, tensor, 70, region), get(data, tensor, 70)[index_of(region)])


def test_identity_and_seed(graphs):
    first, second = source_text(graphs[0], 0), source_text(graphs[0], 1)
    assert first.identity.startswith("text ")
    assert first.identity != second.identity
    assert first.identity == source_text(graphs[1], 0).identity


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("transformer-1-8", {**TOKENS, "vocabulary": 100}, "tokens to tell 128 characters apart, found 100"),
        ("rnn-1-4", {**VECTORS, "input_width": 64}, "x.0 to tell 128 characters apart, found 64"),
        ("rnn-1-4", {**VECTORS, "classes": 127}, "labels.0 to tell 128 characters apart, found 127"),
        ("cnn-1-4", {}, "expected int32 tokens .* at every timestep, found images float32"),
        ("encoder-decoder-1-8", {"sequence": 4, "source_sequence": 4, "vocabulary": 128}, "found source int32"),
    ],
)
def test_graphs_that_text_does_not_fit(name, options, says):
    with pytest.raises(DataError, match=says):
        data_set("text", build(name, **options), 0)
