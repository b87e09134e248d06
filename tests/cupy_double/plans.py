"""Plans of two workers for small models, in a file each."""

from planner.models import build
from planner.search import SearchOptions, search

MODELS = {
    "mlp": ("mlp-2-32", {"batch": 16, "optimizer": "adam"}),
    "cnn": ("cnn-3-8", {"batch": 8, "image": 16}),
    "rnn": ("rnn-1-16", {"batch": 8, "unroll": 3}),
}


def saved(folder, models):
    """Write plans of models; return their files, which have their names."""
    for name, (model, options) in models.items():
        search(build(model, **options), SearchOptions(ways=(2,))).save(folder / name)
    return [folder / name for name in models]
