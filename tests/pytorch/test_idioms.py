"""What people write trains like in PyTorch, for three steps of AdamW on other data in each, buffers and all."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from executor.cluster import single_rank  # noqa: E402
from executor.data import DataError  # noqa: E402
from executor.torch.batches import Batch, array_of  # noqa: E402
from executor.training import Trainer, rank_programs  # noqa: E402
from executor.weights import Weights  # noqa: E402
from planner.graph.optimizers import Optimizer  # noqa: E402
from planner.plans.plan import undivided  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from tests.pytorch.idioms import IDIOMS, case  # noqa: E402
from tests.pytorch.outcomes import defects  # noqa: E402

STEPS, RATE, DECAY = 3, 0.01, 0.01


def trainer_of(module, batch):
    """Return the importer's graph of a module, and what trains it."""
    state = {name: array_of(value).copy() for name, value in module.state_dict().items()}
    with defects() as met:
        graph = from_torch(module, batch, optimizer=Optimizer("adamw", lr=RATE, decay=DECAY))
    assert not met
    trainer = Trainer(rank_programs(undivided(graph), 0, 0), single_rank(1), np, "p2p")
    trainer.begin_with(Weights.of(state, graph))
    return graph, trainer


@pytest.mark.parametrize("name", IDIOMS)
def test_trains_like_pytorch(name):
    module, batches = case(name, STEPS)
    graph, trainer = trainer_of(module, batches[0])
    module, _ = case(name, STEPS)
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE, weight_decay=DECAY)
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        result = module(*batch)
        loss = getattr(result, "loss", result)
        loss.backward()
        optimizer.step()
        trainer.load(Batch(graph, module, batch, ()), step)
        trainer.run()
        assert float(trainer.host_copy(graph.metrics["loss"])) == pytest.approx(loss.item(), rel=1e-9, abs=1e-12)
    for entry, value in module.state_dict().items():
        tensor = graph.entries[entry].tensor
        if tensor is not None:
            ours = np.asarray(trainer.host_copy(tensor), np.float64).reshape(value.shape)
            assert ours == pytest.approx(array_of(value).astype(np.float64), rel=1e-8, abs=1e-9), entry
    for entry, _ in module.named_buffers():
        assert graph.entries[entry].tensor is not None or graph.entries[entry].counts


def test_a_batch_without_a_longest_sequence_is_an_error():
    module, batches = case("packed sequences", 2)
    graph, trainer = trainer_of(module, batches[0])
    batches[1][2].clamp_(max=3)
    trainer.load(Batch(graph, module, batches[1], ()), 0)
    with pytest.raises(DataError, match="repeat_interleave"):
        trainer.run()
