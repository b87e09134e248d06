"""State dicts read into plans and written from them: to the bit, whatever holds what; what does not fit is one line."""

import random
import re
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from executor.process.launch import SharedError
from executor.weights import Weights, WeightsError
from executor.weights.saving import save_weights, state_dict
from planner.errors import InputError
from planner.graph import GraphBuilder, Init, Optimizer, training_graph
from planner.graph.ir import Entry, content_digest, entries_of, groups
from planner.layout import elements, local_shape
from planner.layout.region import coarser, whole
from planner.models import build
from planner.plans.plan import single_worker
from planner.search import SearchOptions, search
from tests.executor.training import index_of, run, trained

RNG = np.random.default_rng(0)
NUMBERS = np.arange(5)


def imported():
    """A graph as an import makes it: a weight [6, 4] is [2, 3, 4] and has two names, a buffer is in no tensor."""
    builder = GraphBuilder("float64")
    x = builder.input("x", (8, 4))
    w = builder.weight("w", (2, 3, 4), Init("uniform", 1.0))
    b = builder.weight("b", (), Init("uniform", 1.0))
    y = builder.apply("einsum", x, w, name="y", equation="bd,khd->bkh")
    y = builder.apply("sum", y, name="z", dims=(0, 1, 2))
    graph = training_graph(builder, {"loss": builder.apply("mul", y, b, name="loss")}, Optimizer("sgd", lr=0.1))
    entries = {
        "w": Entry("w", (6, 4), "float64"),
        "tied": Entry("w", (6, 4), "float64"),
        "b": Entry("b", (), "float64"),
        "numbers": Entry(None, (5,), "int64", content_digest(NUMBERS)),
        "count": Entry(None, (), "int64", counts=True),
    }
    return replace(graph, entries=entries)


GRAPH = imported()
W = RNG.normal(size=(6, 4))
HELD = {"w": W, "tied": W, "b": np.array(0.5), "numbers": NUMBERS, "count": np.array(7)}


def plan_of(graph, ways=(2,)):
    return search(graph, SearchOptions(ways=ways))


def trainer_of(graph):
    return trained(single_worker(plan_of(graph)), 0)


def begun(arrays):
    trainer = trainer_of(GRAPH)
    trainer.begin_with(Weights.of(arrays, GRAPH))
    return trainer


def test_what_is_read_is_written_again(tmp_path):
    trainer = begun(HELD)
    np.testing.assert_array_equal(trainer.view("w"), W.reshape(2, 3, 4))
    assert save_weights(tmp_path / "out.safetensors", trainer, 3) == []
    expected = HELD | {"count": np.array(10)}
    for loaded in (load_file(tmp_path / "out.safetensors"), state_dict(trainer, 3)):
        assert set(loaded) == set(expected)
        for name, array in expected.items():
            assert loaded[name].dtype == array.dtype
            np.testing.assert_array_equal(loaded[name], array)
    assert list(tmp_path.iterdir()) == [tmp_path / "out.safetensors"]


def test_what_a_link_leads_to_is_replaced_and_keeps_its_mode(tmp_path):
    (tmp_path / "old").touch(0o640)
    (tmp_path / "link").symlink_to("old")
    save_weights(tmp_path / "link", begun(HELD), 3)
    assert (tmp_path / "link").is_symlink()
    assert set(load_file(tmp_path / "old")) == set(HELD)
    assert (tmp_path / "old").stat().st_mode & 0o777 == 0o640


def test_what_is_not_known_is_left_out(tmp_path):
    trainer = trainer_of(GRAPH)
    assert save_weights(tmp_path / "out.safetensors", trainer, 3) == ["numbers"]
    loaded = load_file(tmp_path / "out.safetensors")
    assert set(loaded) == set(HELD) - {"numbers"}
    np.testing.assert_array_equal(loaded["w"], trainer.view("w").reshape(6, 4))
    assert loaded["count"] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": None, "tied": None}, r"expected an entry w, .* found none among b, numbers, count: save it whole"),
        ({"more": NUMBERS}, r"state dict, found more: leave them out"),
        ({"w": W.reshape(4, 6)}, r"w: expected shape \[6, 4\], found \[4, 6\]: another model"),
        ({"b": np.float32(1)[None][0]}, r"b: expected float64, found float32: convert the file"),
        ({"numbers": NUMBERS + 1}, r"numbers: expected the content that the module had"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    arrays = {name: np.asarray(array) for name, array in (HELD | change).items() if array is not None}
    with pytest.raises(WeightsError, match=message):
        Weights.of(arrays, GRAPH)


def test_names_of_one_weight_have_one_value():
    with pytest.raises(SharedError, match="w and tied: expected equal values of a shared weight"):
        begun(HELD | {"tied": W + 1})
    np.testing.assert_array_equal(begun({**HELD, "tied": W}).view("w"), W.reshape(2, 3, 4))
    without = {name: array for name, array in HELD.items() if name not in ("w", "numbers", "count")}
    np.testing.assert_array_equal(begun(without).view("w"), W.reshape(2, 3, 4))


@pytest.mark.parametrize(
    ("suffix", "says"), [(".safetensors", "expected a safetensors file"), (".npz", "as numpy.savez writes them")]
)
def test_a_file_that_is_none_is_one_line(suffix, says, tmp_path):
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(b"what is this?")
    with pytest.raises(InputError, match=says):
        Weights.of(path, GRAPH)
    with pytest.raises(FileNotFoundError):
        Weights.of(tmp_path / f"none{suffix}", GRAPH)


def test_weights_of_the_zoo_have_their_own_names(tmp_path):
    graph = build("mlp-2-16", batch=8)
    assert set(entries_of(graph)) == {name for name in graph.updates if graph.tensors[name].role == "weight"}
    plan = tmp_path / "plan.json"
    single_worker(plan_of(graph)).save(plan)
    first, second = tmp_path / "first.safetensors", tmp_path / "second.npz"
    assert run(plan, "--steps", 2, "--save-weights", first) == 0
    np.savez(second, **load_file(first))
    for source in (first, second):
        out = tmp_path / "out.safetensors"
        assert run(plan, "--steps", 1, "--weights", source, "--save-weights", out, "--check") == 0
        assert set(load_file(out)) == set(entries_of(graph))
    save_file({"x": W}, tmp_path / "other.safetensors")
    with pytest.raises(SharedError, match=r"other.safetensors: expected an entry fc1") as raised:
        run(plan, "--weights", tmp_path / "other.safetensors")
    assert raised.value.status == 2


@pytest.mark.parametrize("count", [7, 11])
def test_the_loss_of_held_out_samples_is_of_whole_batches(count, tmp_path, capsys):
    single_worker(plan_of(GRAPH)).save(tmp_path / "plan.json")
    trained_on, rows = RNG.normal(size=(8, 4)), RNG.normal(size=(count, 4))

    def score(held_out):
        np.savez(tmp_path / "x.npz", x=trained_on, held_out_x=held_out)
        assert run(tmp_path / "plan.json", "--data", tmp_path / "x.npz", "--in-order", "--eval", "--log", 1) == 0
        return re.search("held-out loss ([^,]*),", capsys.readouterr().out)[1]

    if count < 8:
        with pytest.raises(
            SharedError, match="--eval by the loss: expected at least a batch of 8 held-out samples, found 7"
        ):
            score(rows)
    else:
        assert score(rows) == score(rows[:8])


@pytest.mark.mpi
def test_every_rank_writes_its_part(ranks, tmp_path):
    plan = plan_of(GRAPH, (2, 2))
    plan.save(tmp_path / "plan.json")
    save_file(HELD, tmp_path / "in.safetensors")
    arguments = ("--weights", tmp_path / "in.safetensors", "--save-weights", tmp_path / "out.safetensors")
    ranks.succeed(4, "-m", "tensor_partitioner", "execute", tmp_path / "plan.json", "--backend", "numpy", *arguments)
    single_worker(plan).save(tmp_path / "single.json")
    assert run(tmp_path / "single.json", *arguments[:2], "--save-weights", tmp_path / "alone.safetensors") == 0
    loaded, expected = load_file(tmp_path / "out.safetensors"), load_file(tmp_path / "alone.safetensors")
    assert set(loaded) == set(HELD)
    for name, array in expected.items():
        np.testing.assert_allclose(loaded[name], array, rtol=1e-12)
    assert (loaded["w"] != W).any()


@pytest.mark.parametrize("seed", range(20))
def test_a_region_under_coarser_dimensions_has_the_same_elements(seed):
    rng = random.Random(seed)
    fine = tuple(rng.randint(1, 4) for _ in range(4))
    cut = rng.randint(0, 4)
    coarse = tuple(int(np.prod(part)) for part in (fine[:cut], fine[cut:]))
    region = tuple(_some_runs(extent, rng) for extent in fine)
    places = np.arange(int(np.prod(fine)))
    coarsened = coarser(region, fine, coarse)
    local, joined = places.reshape(fine)[index_of(region)], places.reshape(coarse)[index_of(coarsened)]
    np.testing.assert_array_equal(local.reshape(-1), joined.reshape(-1))
    assert elements(coarsened) == local.size
    assert local_shape(coarser(whole(fine), fine, coarse)) == coarse


def _some_runs(extent, rng):
    start = rng.randrange(extent)
    first = (start, rng.randint(start + 1, extent))
    rest = (first[1] + 1, extent)
    return (first, rest) if rest[0] < rest[1] and rng.random() < 0.5 else (first,)


def test_shapes_that_do_not_group_have_no_groups():
    assert groups((6, 4), (2, 3, 4)) == ((0, 1), (2,))
    assert groups((6,), (4, 2)) is None
    assert groups((), (2,)) is None
    assert groups((1, 4), (1, 4, 1)) == ((0,), (1, 2))
