"""What people write trains like in PyTorch, for three steps of AdamW on other data in each, buffers and all."""

import pytest

torch = pytest.importorskip("torch")

from executor.data import DataError  # noqa: E402
from executor.torch.batches import Batch  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from tests.pytorch.eager import STEPS, trainer_of  # noqa: E402
from tests.pytorch.idioms import IDIOMS, case  # noqa: E402
from tests.pytorch.outcomes import defects  # noqa: E402
from tests.pytorch.test_never_wrong import compare  # noqa: E402


@pytest.mark.parametrize("name", IDIOMS)
def test_trains_like_pytorch(name):
    module, batches = case(name, STEPS)
    with defects() as met:
        difference, graph = compare(module, *batches)
    assert not met
    assert difference < 1e-9
    for entry, _ in module.named_buffers():
        assert graph.entries[entry].tensor is not None or graph.entries[entry].counts


def test_a_batch_without_a_longest_sequence_is_an_error():
    module, batches = case("packed sequences", 2)
    graph = from_torch(module, batches[0])
    trainer = trainer_of(graph, module)
    batches[1][2].clamp_(max=3)
    trainer.load(Batch(graph, module, batches[1], ()), 0)
    with pytest.raises(DataError, match="repeat_interleave"):
        trainer.run()
