"""State dicts of imported modules: every entry is known, and comes back to the bit under any plan."""

import random
import sys
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from safetensors.torch import load_file, save_model  # noqa: E402

from executor.cluster import single_rank  # noqa: E402
from executor.torch.batches import array_of  # noqa: E402
from executor.training import Trainer, rank_programs  # noqa: E402
from executor.weights import Weights, WeightsError  # noqa: E402
from executor.weights.saving import save_weights  # noqa: E402
from planner.errors import InputError  # noqa: E402
from planner.graph import Optimizer  # noqa: E402
from planner.graph.graph_json import from_data, to_data  # noqa: E402
from planner.layout import Ways, owned_by_all, parse_placement  # noqa: E402
from planner.plans.plan import undivided  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from tensor_partitioner.commands.on_ranks import load_pytorch  # noqa: E402
from tests.pytorch.eager import trained_alike  # noqa: E402
from tests.pytorch.models import CASES  # noqa: E402


def imported(name):
    module, inputs, loss, targets = CASES[name]()
    module = module.double()
    return module, from_torch(module, inputs, loss=loss, targets=targets, optimizer=Optimizer("sgd"))


@pytest.mark.parametrize("name", ["resnet50", "lstm", "gpt"])
def test_a_state_dict_comes_back(name, tmp_path):
    module, graph = imported(name)
    assert set(graph.entries) == set(module.state_dict())
    assert from_data(to_data(graph)) == graph
    save_model(module, tmp_path / "in.safetensors")
    torch.save(module.state_dict(), tmp_path / "in.pt")
    expected = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    for source in ("in.safetensors", "in.pt"):
        trainer = Trainer(rank_programs(undivided(graph), 0, 0), single_rank(1), np, "p2p")
        trainer.begin_with(Weights.of(tmp_path / source, graph))
        assert save_weights(tmp_path / "out.safetensors", trainer, 0) == []
        module.load_state_dict(load_file(tmp_path / "out.safetensors"))
        for key, tensor in module.state_dict().items():
            assert torch.equal(tensor, expected[key]), key


@pytest.mark.parametrize("ways", [(2, 2), (3,)], ids=str)
def test_every_rank_reads_what_it_holds(ways):
    """Tiles of all workers under drawn layouts, put together, are the module's tensors."""
    module, graph = imported("gpt")
    weights = Weights.of({key: array_of(parameter).copy() for key, parameter in module.state_dict().items()}, graph)
    rng = np.random.default_rng(0)
    for key, parameter in module.named_parameters():
        stored = graph.tensors[key]
        dims = [dim for dim, extent in enumerate(stored.shape) if extent >= np.prod(ways)]
        layout = tuple(parse_placement(f"S{rng.choice(dims)}" if dims else "R") for _ in ways)
        whole = np.full(stored.shape, np.nan)
        for region in owned_by_all(stored.shape, layout, Ways(ways)):
            at = np.ix_(*[[i for start, stop in runs for i in range(start, stop)] for runs in region])
            whole[at] = weights.tile(stored, region)
        np.testing.assert_array_equal(whole.reshape(parameter.shape), array_of(parameter))


def test_dimensions_are_grouped_and_names_tied():
    _, graph = imported("gpt")
    assert graph.entries["layers.0.attention.qkv.weight"].shape == (48, 16)
    assert graph.tensors["layers.0.attention.qkv.weight"].shape == (3, 4, 4, 16)
    assert graph.entries["head.weight"].tensor == graph.entries["tokens.weight"].tensor == "tokens.weight"
    assert graph.entries["numbers"].tensor is None
    _, lstm = imported("lstm")
    assert lstm.tensors["lstm.weight_ih_l0"].shape == (4, 16, 16)
    assert lstm.entries["lstm.weight_ih_l0"].shape == (64, 16)
    _, resnet = imported("resnet50")
    assert resnet.entries["bn1.num_batches_tracked"].counts


def test_an_entry_of_a_tensor_that_is_none_is_refused():
    _, graph = imported("mlp")
    entry = replace(graph.entries["0.bias"], tensor="nothing")
    with pytest.raises(ValueError, match=r"entry '0.bias': expected a tensor that no node produces, found 'nothing'"):
        from_data(to_data(replace(graph, entries={"0.bias": entry})))
    with pytest.raises(ValueError, match=r"entry '0.bias': .* dimensions of \(32,\), or finer"):
        from_data(to_data(replace(graph, entries={"0.bias": replace(entry, tensor="0.weight")})))


def test_a_file_of_other_things_is_refused(tmp_path):
    _, graph = imported("mlp")
    for content in ({"epoch": 3}, {7: torch.ones(2)}):
        torch.save(content, tmp_path / "checkpoint.pt")
        with pytest.raises(WeightsError, match=r"checkpoint.pt: expected a state dict, tensors by name, found dict"):
            Weights.of(tmp_path / "checkpoint.pt", graph)
    (tmp_path / "other.pt").write_bytes(b"what is this?")
    with pytest.raises(WeightsError, match=r"other.pt: expected a state dict, as torch.save writes it"):
        Weights.of(tmp_path / "other.pt", graph)


def test_a_damaged_file_is_read_or_refused(tmp_path):
    module, graph = imported("mlp")
    path, rng, refused = tmp_path / "damaged.pt", random.Random(1), 0
    torch.save(module.state_dict(), path)
    content = path.read_bytes()
    for _ in range(150):
        damaged = bytearray(content[: rng.choice((len(content), rng.randrange(len(content))))])
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            Weights.of(path, graph)
        except InputError as error:
            assert str(error).startswith((f"{path}: ", "weights"))  # noqa: PT017
            refused += 1
    assert refused > 50


def test_without_pytorch_a_command_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "executor.torch", None)
    with pytest.raises(InputError, match=r"in.pt: needs PyTorch, which is not installed: pip install .*\[torch\]"):
        load_pytorch("in.pt")


class Noisy(torch.nn.Module):
    """A layer whose weight is scaled by what a buffer has: more numbers than a graph holds."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(512, 512)
        self.register_buffer("noise", torch.randn(512, 512))

    def forward(self, x):
        return (x @ (self.fc.weight * self.noise + self.noise[0])).square().mean()


def test_a_buffer_that_no_graph_holds_comes_with_the_weights():
    graph = trained_alike(Noisy(), (torch.randn(2, 512).double(),))
    assert graph.entries["noise"].tensor == "noise"
