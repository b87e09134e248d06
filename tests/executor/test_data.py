from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_digits

from executor.data import DATA_SETS, HELD_OUT, DataError, Random, data_set, digit_images
from planner.graph.ir import Graph, Init, Tensor
from tests.executor.training import get, index_of

CLASSES = 10


def graph(*shape, classes=CLASSES, dtype="float32"):
    images = Tensor("images", shape, dtype, "input", Init("data"))
    labels = Tensor("labels", shape[:1], "int32", "input", Init("data", below=classes))
    return Graph({"images": images, "labels": labels}, (), {}, {"labels": "labels"})


def batch(data, of, step=0):
    return get(data, of.tensors["images"], step), get(data, of.tensors["labels"], step)


def test_a_data_set_that_is_none(monkeypatch):
    monkeypatch.setitem(DATA_SETS, "odd", lambda graph, seed: None)
    with pytest.raises(DataError, match="data set odd: expected a DataSet, found None"):
        data_set("odd", graph(64, 3), 0)


def test_random_batches():
    of = graph(64, 3, 5, 5)
    data = Random(of, seed=1)
    images, labels = batch(data, of)
    assert abs(images.std() - 1) < 0.05
    assert set(labels) == set(range(CLASSES))
    assert not np.array_equal(batch(data, of, 1)[0], images)
    assert np.array_equal(batch(Random(of, seed=1), of)[0], images)


def test_random_labels_take_their_classes_from_the_logits():
    of = graph(200, 4, classes=0)
    with pytest.raises(DataError, match="input labels: expected"):
        Random(of, 0)
    logits = Tensor("logits", (200, 3), "float32", "activation")
    of = Graph({**of.tensors, "logits": logits}, (), {}, {"logits": "logits"})
    assert set(batch(Random(of, 0), of)[1]) == {0, 1, 2}


@pytest.mark.parametrize("kind", [Random, digit_images])
def test_micro_batches_are_rows_of_the_batch(kind):
    of, cut = graph(8, 1, 8, 8), replace(graph(2, 1, 8, 8), micro_batches=4)
    data, names = kind(cut, 3), ("images", "labels")
    for name, whole_batch in zip(names, batch(kind(of, 3), of, 250), strict=True):
        micro_batches = [get(data, cut.tensors[name], 250, micro_batch=number) for number in range(4)]
        np.testing.assert_array_equal(np.concatenate(micro_batches), whole_batch)
    assert data.steps_per_epoch == kind(of, 3).steps_per_epoch


@pytest.mark.parametrize("kind", [Random, digit_images])
def test_a_tile_is_a_slice_of_the_batch(xp, kind):
    of, region = graph(8, 2, 12, 12), (((0, 2), (5, 7)), ((1, 2),), ((0, 3), (9, 12)), ((2, 10),))
    data = kind(of, 3)
    images, labels = batch(data, of, 200)
    assert np.array_equal(get(data, of.tensors["images"], 200, region, xp), images[index_of(region)])
    assert np.array_equal(get(data, of.tensors["labels"], 200, region[:1], xp), labels[index_of(region[:1])])


def pixels_of(images, labels):
    """Every sample as something hashable, with its label."""
    return [(image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True)]


def test_digits_are_the_original_images_with_their_labels():
    of = graph(32, 1, 8, 8, dtype="float64")
    images, labels = batch(digit_images(of, 5), of)
    originals, targets = load_digits().images, load_digits().target
    for image, label in zip(images[:, 0], labels, strict=True):
        scaled = np.rint((image - image.min()) / (image.max() - image.min()) * 16)
        best = np.abs(originals - scaled).sum(axis=(1, 2)).argmin()
        assert np.corrcoef(originals[best].ravel(), image.ravel())[0, 1] > 0.999
        assert targets[best] == label


def test_an_epoch_shows_every_training_image_once_and_no_held_out_one():
    of = graph(1437 // 3, 1, 8, 8, dtype="float64")
    data = digit_images(of, 0)
    assert data.steps_per_epoch == 3
    seen = [sample for step in range(3) for sample in pixels_of(*batch(data, of, step))]
    again = [sample for step in range(3, 6) for sample in pixels_of(*batch(data, of, step))]
    assert seen != again
    assert sorted(seen) == sorted(again)
    held = data.held_out
    kept = [s for step in range(held.steps_per_epoch) for s in pixels_of(*batch(held, of, step))][: held.count]
    assert held.count == HELD_OUT
    assert len(seen) + held.count == 1797
    assert len({*seen, *kept}) == len({image.tobytes() for image in load_digits().images})


def test_batches_that_straddle_epochs():
    of = graph(1000, 64)
    labels = np.concatenate([batch(digit_images(of, 0), of, step)[1] for step in range(3)])
    first, second = np.bincount(labels[:1437]), np.bincount(labels[1437:2874])
    assert np.array_equal(first, second)


def test_the_last_held_out_batch_is_filled_up():
    of = graph(100, 64)
    held = digit_images(of, 0).held_out
    assert held.steps_per_epoch == 4
    assert [len(range(held.real(step))) for step in range(4)] == [100, 100, 100, 60]
    labels = batch(held, of, 3)[1]
    assert np.array_equal(labels[:60], held.samples.labels[300:])
    assert set(labels[60:]) == {labels[59]}


def test_digits_are_repeated_centred_and_tiled():
    small, large, flat = graph(4, 1, 8, 8), graph(4, 3, 18, 16), graph(4, 100)
    original = batch(digit_images(small, 0), small)[0][:, 0]
    image = batch(digit_images(large, 0), large)[0]
    assert np.array_equal(image[:, 0, 1:17], original.repeat(2, axis=1).repeat(2, axis=2))
    assert np.array_equal(image[:, 0], image[:, 2])
    background = original.min()
    assert (image[:, :, [0, 17]] == background).all()
    pixels = original.reshape(4, 64)
    assert np.array_equal(batch(digit_images(flat, 0), flat)[0], np.concatenate([pixels, pixels[:, :36]], axis=1))


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (graph(4, 1, 7, 8), r"images of shape .*found \[4, 1, 7, 8\]"),
        (graph(4, 63), r"found \[4, 63\]"),
        (graph(4, 1, 8), r"found \[4, 1, 8\]"),
        (graph(4, 64, classes=9), "at least 10 classes, found 9"),
        (Graph({}, (), {}, {}), "found 0 and 0"),
    ],
)
def test_graphs_that_digits_do_not_fit(of, says):
    with pytest.raises(DataError, match=says):
        digit_images(of, 0)
