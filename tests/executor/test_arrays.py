"""A user's own arrays: every input by name, cut as the graph cuts it; what does not fit is said in one line."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from executor.data import DataError, data_set, data_tensors
from planner.errors import InputError
from planner.models import build
from tests.executor.training import get, index_of

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(50, 1, 8, 8))
LABELS = RNG.integers(0, 10, 50)
CNN = {"batch": 8, "image": 8, "channels": 1, "classes": 10}
GPT = {"batch": 4, "sequence": 6, "vocabulary": 11, "heads": 1}


def written(folder, **arrays):
    path = folder / "mine.npz"
    np.savez(path, **arrays)
    return str(path)


def test_an_epoch_shows_every_sample_with_its_label(tmp_path):
    graph = build("cnn-1-4", **CNN)
    data = data_set(written(tmp_path, images=IMAGES, labels=LABELS), graph, 0)
    assert data.steps_per_epoch == 7
    assert data.held_out is None
    images = np.concatenate([get(data, graph.tensors["images"], step) for step in range(7)])[:50]
    labels = np.concatenate([get(data, graph.tensors["labels"], step) for step in range(7)])[:50]
    order = [np.abs(IMAGES - image).sum((1, 2, 3)).argmin() for image in images]
    assert sorted(order) == list(range(50))
    np.testing.assert_array_equal(images, IMAGES[order].astype(np.float32))
    np.testing.assert_array_equal(labels, LABELS[order])


def test_sequences_have_many_labels_a_sample(tmp_path):
    graph = build("transformer-1-8", **GPT, micro_batches=2)
    tokens, labels = RNG.integers(0, 11, (2, 20, 6))
    path = written(tmp_path, tokens=tokens, labels=labels, held_out_tokens=tokens[:5], held_out_labels=labels[:5])
    data = data_set(path, graph, 1)
    for number in range(2):
        shown = [get(data, graph.tensors[name], 3, micro_batch=number) for name in ("tokens", "labels")]
        for row, after in zip(shown[0], shown[1].reshape(2, 6), strict=True):
            (sample,) = np.flatnonzero((tokens == row).all(1))
            np.testing.assert_array_equal(after, labels[sample])
    assert (data.held_out.metric, data.held_out.batch, data.held_out.count) == ("logits", 2, 5)
    np.testing.assert_array_equal(get(data.held_out, graph.tensors["tokens"], 1), tokens[2:4])


def test_a_folder_is_mapped_and_each_batch_is_checked(tmp_path):
    graph = build("cnn-1-4", **CNN)
    wrong = np.where(np.arange(50) == 20, 10, LABELS)
    for name, labels in (("right", LABELS), ("wrong", wrong)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "images.npy", IMAGES)
        np.save(tmp_path / name / "labels.npy", labels)
    mapped = data_set(str(tmp_path / "right"), graph, 0)
    assert all(isinstance(values, np.memmap) for values in mapped.samples.values.values())
    read = data_set(written(tmp_path, images=IMAGES, labels=LABELS), graph, 0)
    for step in range(8):
        for tensor in data_tensors(graph):
            np.testing.assert_array_equal(get(mapped, tensor, step), get(read, tensor, step))
    strange = data_set(str(tmp_path / "wrong"), graph, 0, mixed=False)
    assert len({mapped.identity, strange.identity, read.identity}) == 3
    get(strange, graph.tensors["labels"], 1)
    with pytest.raises(DataError, match="labels: expected numbers from 0 below 10, found 0 to 10"):
        get(strange, graph.tensors["labels"], 2)
    (tmp_path / "right" / "labels.npy").write_bytes(b"text")
    with pytest.raises(InputError, match=r"right: labels.npy: expected an array as numpy.save writes it"):
        data_set(str(tmp_path / "right"), graph, 0)


def test_parts_are_of_the_whole(tmp_path):
    graph = build("cnn-1-4", **CNN)
    data = data_set(written(tmp_path, images=IMAGES, labels=LABELS), graph, 0)
    region = (((0, 2), (5, 6)), ((0, 1),), ((1, 3),), ((0, 2), (7, 8)))
    tensor = graph.tensors["images"]
    np.testing.assert_array_equal(get(data, tensor, 9, region), get(data, tensor, 9)[index_of(region)])


def test_other_data_has_another_identity(tmp_path):
    graph = build("cnn-1-4", **CNN)
    first, second = (data_set(written(tmp_path, images=IMAGES + n, labels=LABELS), graph, 0).identity for n in range(2))
    assert first != second


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"images": IMAGES}, "expected an array labels, found images"),
        (
            {"images": IMAGES[:, 0], "labels": LABELS},
            r"images: expected shape \[samples, 1, 8, 8\], found \[50, 8, 8\]",
        ),
        ({"images": IMAGES[:9], "labels": LABELS}, "the same number of samples for every input, found .*9.*50"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, "the same number of samples"),
        ({"images": IMAGES, "labels": LABELS + 1}, "labels: expected numbers from 0 below 10, found 1 to 10"),
        ({"images": IMAGES, "labels": LABELS - 1}, "found -1 to 8"),
        ({"images": IMAGES, "labels": LABELS / 2}, "labels: expected whole numbers, found float64"),
        ({"images": IMAGES * np.nan, "labels": LABELS}, "images: expected numbers that are finite as float32"),
        ({"images": IMAGES * 1e39, "labels": LABELS}, "images: expected numbers that are finite as float32"),
        ({"images": IMAGES, "labels": LABELS, "held_out_images": IMAGES}, "expected an array held_out_labels"),
        ({"images": IMAGES, "labels": LABELS, "label": LABELS}, "expected arrays images, labels, .*, found label$"),
        ({"images": IMAGES[:7], "labels": LABELS[:7]}, "expected at least the 8 samples of a batch, found 7"),
        ({"images": np.array([{}] * 50), "labels": LABELS}, "expected arrays as numpy.savez writes them"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, arrays, says):
    with pytest.raises(InputError, match=says) as caught:
        data_set(written(tmp_path, **arrays), build("cnn-1-4", **CNN), 0)
    assert "mine.npz" in str(caught.value)


@pytest.mark.parametrize(
    ("ignored", "says"), [(-100, None), (-1, "from 0 below 10, or -1, found -100 to 9"), (None, "found -100")]
)
def test_labels_that_do_not_count(tmp_path, ignored, says):
    graph = build("cnn-1-4", **CNN)
    labels = replace(graph.tensors["labels"], init=replace(graph.tensors["labels"].init, ignored=ignored))
    graph = replace(graph, tensors={**graph.tensors, "labels": labels})
    path = written(tmp_path, images=IMAGES, labels=np.where(np.arange(50) % 3, LABELS, -100))
    with pytest.raises(InputError, match=says) if says else nullcontext():
        data_set(path, graph, 0)


@pytest.mark.parametrize("content", [b"", b"PK not a zip", b"text"])
def test_files_that_hold_no_arrays(tmp_path, content):
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"expected arrays as numpy.savez writes them"):
        data_set(str(path), build("cnn-1-4", **CNN), 0)


def test_an_unknown_data_set():
    with pytest.raises(DataError, match=r"unknown data set 'cats': expected random, digits, text or a file NAME.npz"):
        data_set("cats", build("cnn-1-4", **CNN), 0)
