"""The data set of random values feeds every model: its values are in range and the same however an input is cut."""

import numpy as np
import pytest

from executor.data import DATA_SETS, data_tensors
from executor.values import Tile
from planner.models import build

MODELS = {
    "mlp-2-6": {},
    "alexnet": {"image": 63, "width": 1 / 32, "classes": 6},
    "vgg-16": {"image": 32, "width": 1 / 32, "classes": 6},
    "classifier-9": {"image": 8, "backbone": "wresnet-14-0.0625", "embedding": 6},
    "rnn-1-4": {"unroll": 2, "input_width": 5, "classes": 7},
    "transformer-1-8": {"sequence": 6, "vocabulary": 11},
    "encoder-decoder-1-8": {"sequence": 3, "source_sequence": 5, "vocabulary": 9},
}


def values(data, tensor, rows):
    out = np.empty((rows[1] - rows[0], *tensor.shape[1:]), tensor.dtype)
    data.fill(np, out, Tile(tensor, ((rows,), *(((0, extent),) for extent in tensor.shape[1:]))), 3)
    return out


@pytest.mark.parametrize("name", MODELS)
def test_random_values_feed_every_model(name):
    graph = build(name, batch=8, **MODELS[name])
    data = DATA_SETS["random"](graph, 1)
    for tensor in data_tensors(graph):
        whole = values(data, tensor, (0, tensor.shape[0]))
        assert (values(data, tensor, (3, 5)) == whole[3:5]).all()
        assert len(np.unique(whole)) > 1
        if tensor.dtype == "int32":
            assert whole.min() >= 0
            assert whole.max() < tensor.init.below
        else:
            assert np.abs(whole).max() <= np.sqrt(3)
