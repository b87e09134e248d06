"""What Python keeps from one call to the next: a second trace differs, or the steps of PyTorch that are compared."""

import random
from collections import OrderedDict, deque
from functools import lru_cache
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from planner.errors import GraphError  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from tests.pytorch.eager import trained_alike  # noqa: E402
from tests.pytorch.outcomes import is_refused_beside_pytorch  # noqa: E402

OF_CALLS = r"forward computes .+ in its first call but .+ in the next"
"""What is said of a module of which a second trace differs."""

FACTORS = {"calls": 0}


class Annealing:
    def __init__(self):
        self.calls = 0

    def factor(self):
        self.calls += 1
        return 1 / self.calls


class Keeping(nn.Module):
    """A layer, an attribute, and a factor that is computed with it."""

    def __init__(self, kept, factor):
        super().__init__()
        self.fc, self.kept, self.factor = nn.Linear(6, 6), kept, factor

    def forward(self, x):
        return (self.fc(x) * self.factor(self.kept)).square().mean()


def example():
    return (torch.randn(4, 6, dtype=torch.float64),)


def calls_differ(module, **how):
    with pytest.raises(GraphError, match=OF_CALLS):
        from_torch(module, (torch.randn(4, 6),), **how)


def entry(kept, key="calls"):
    kept[key] += 1
    return kept[key]


def last(kept):
    kept.append(kept[0] + 1)
    return sum(kept)


def average(kept, key="mean"):
    kept[key] = kept[key] * 0.5 + torch.ones(6) * 0.5
    return kept[key].detach()


KEPT = {
    "a dict in a dict": (lambda: {"all": {"calls": 0}}, lambda kept: entry(kept["all"])),
    "a list": (lambda: [0], lambda kept: entry(kept, 0)),
    "a queue": (lambda: deque([1, 2, 3], maxlen=3), last),
    "a helper": (Annealing, Annealing.factor),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_attributes_keep_is_refused(name):
    make, factor = KEPT[name]
    calls_differ(Keeping(make(), factor))


def test_what_is_counted_and_not_read_is_taken_and_put_back():
    module = Keeping({"calls": 0, "shapes": []}, None)
    module.factor = lambda kept: kept["shapes"].append(entry(kept)) or 2
    trained_alike(module, example())
    assert module.kept == {"calls": 0, "shapes": []}


ANNEALED = Annealing()


def enclosing():
    calls = 0

    def factor(_):
        nonlocal calls
        calls += 1
        return calls

    return factor


def with_a_default(_, calls=[]):  # noqa: B006
    calls.append(1)
    return len(calls)


SEEN = {
    "an enclosed number": enclosing(),
    "a default": with_a_default,
    "a method": lambda _, *, factor=ANNEALED.factor: factor(),
    "random numbers": lambda _: random.random(),
    "NumPy's random numbers": lambda _: np.random.rand(),
}


@pytest.mark.parametrize("name", SEEN)
def test_what_functions_keep_is_refused(name):
    calls_differ(Keeping(None, SEEN[name]))


def test_what_hooks_and_losses_that_are_functions_keep_is_refused():
    module, factor = Keeping(None, lambda _: 1), enclosing()
    calls_differ(module, loss=lambda x: x * factor(None))
    module.fc.register_forward_hook(lambda *results: results[-1] * factor(None))
    calls_differ(module)


@pytest.mark.parametrize(
    ("kept", "factor"), [({"mean": torch.zeros(6)}, average), ([torch.zeros(6)], lambda kept: average(kept, 0))]
)
def test_tensors_in_containers_are_refused_beside_pytorch(kept, factor):
    def of_data(module, arguments):
        module.factor = lambda held: factor(held) + arguments[0].mean(0).detach() * 0

    module = Keeping(kept, None)
    module.register_forward_pre_hook(of_data)
    assert is_refused_beside_pytorch(module)


def test_a_backward_pass_in_forward_is_refused():
    def backward(_):
        module.fc.weight.sum().backward()
        return 1

    module = Keeping(None, backward)
    with pytest.raises(GraphError, match=r"test_python_state\.py:\d+: backward\(\) in forward: .*return the loss"):
        from_torch(module, (torch.randn(4, 6),))


def of_a_function(x):
    before, of_a_function.mean = getattr(of_a_function, "mean", 0), x.mean(0).detach()
    return before


class Shifted(nn.Module):
    """A layer, and what a function keeps of the data."""

    def __init__(self, shift):
        super().__init__()
        self.fc, self.shift = nn.Linear(6, 6), shift

    def forward(self, x):
        return (self.fc(x) + self.shift(x)).square().mean()


class Attending(nn.Module):
    """A layer that makes its mask when it is first called, and keeps its results in several ways, to be looked at."""

    def __init__(self):
        super().__init__()
        self.fc, self.mask = nn.Linear(6, 6), None
        self.kept, self.seen, self.last = SimpleNamespace(text="a"), [1], {}

    def forward(self, x):
        if self.mask is None or len(self.mask) != len(x):
            self.mask = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        self.kept.result = self.last["result"] = self.fc(x)
        self.seen = [self.kept.result]
        return ((self.fc(x) @ x.T).masked_fill(self.mask, -1e9).softmax(1) @ x).square().mean()


def test_a_mask_is_kept_and_no_tensors_are_left_of_an_import():
    module = Attending()
    trained_alike(module, example())
    assert (module.kept, module.seen, module.last, module.mask) == (SimpleNamespace(text="a"), [1], {}, None)
    assert module(torch.randn(5, 6, dtype=torch.float64)).isfinite()


CACHE = {}


def kept_in_a_file(extent):
    if extent not in CACHE:
        CACHE[extent] = torch.arange(extent).double().cos()
    return CACHE[extent]


def kept_in_a_default(extent, cache=[]):  # noqa: B006
    cache[:] = cache or [torch.arange(extent).double().cos()]
    return cache[0]


@lru_cache(maxsize=4)
def kept_by_python(extent):
    return torch.arange(extent).double().cos()


def kept_in_an_attribute(extent):
    if not hasattr(kept_in_an_attribute, "angles"):
        kept_in_an_attribute.angles = torch.arange(extent).double().cos()
    return kept_in_an_attribute.angles


@pytest.mark.parametrize("cached", [kept_in_a_default, kept_in_an_attribute])
def test_constants_that_functions_keep_are_constants_and_none_of_a_trace_is_left(cached):
    module, (x,) = Shifted(lambda x: cached(x.shape[1])).double(), example()
    from_torch(module, (x,))
    assert type(module(x)) is torch.Tensor
    assert module(x).isfinite()  # of real tensors
    trained_alike(module, (x,))


@pytest.mark.parametrize("cached", [kept_in_a_file, kept_by_python])
def test_constants_that_files_keep_are_constants_once_they_are_made(cached):
    module, (x,) = Shifted(lambda x: cached(x.shape[1])).double(), example()
    module(x)
    trained_alike(module, (x,))


MADE_LATE = {}


def made_late(x):
    return x * MADE_LATE.setdefault("angles", torch.arange(6).double().cos())


class Turned(nn.Module):
    """A layer that keeps the cosines of frequencies, which it may change."""

    def __init__(self, change):
        super().__init__()
        self.fc, self.cosines, self.change = nn.Linear(6, 6), None, change
        self.register_buffer("frequencies", torch.arange(6.0))

    def forward(self, x):
        if self.cosines is None:
            self.cosines = self.frequencies.cos()
        turned = self.fc(x) * self.cosines
        turned += x
        self.change(self)
        return turned.square().mean()


def test_what_is_kept_of_a_buffer_that_stays_is_constant():
    trained_alike(Turned(id), example())


class Lazy(OrderedDict):
    """Loads what it is asked for, which may fail."""

    def keys(self):
        return ["absent"]

    def __iter__(self):
        return iter(self.keys())

    def __getitem__(self, key):
        raise ValueError(key)


def test_nothing_is_loaded_to_be_looked_at():
    trained_alike(Keeping(Lazy(), lambda kept: 2), example())


def array(kept):
    kept += 1
    return float(kept[0])


def with_parts_turned():
    module = Keeping(None, None)

    def turned(_):
        module.fc, module.other = module.other, module.fc
        return 1

    module.other, module.factor = nn.Linear(6, 6), turned
    return module


UNSEEN = {
    "an array": lambda: Keeping(np.zeros(1), array),
    "an iterator": lambda: Keeping(count(1), next),
    "a file": lambda: Keeping(None, lambda _: entry(FACTORS)),
    "parts that change places": with_parts_turned,
    "a tensor of a function": lambda: Shifted(of_a_function),
    "constants of a trace": lambda: Shifted(made_late),
    "of a buffer that changes": lambda: Turned(lambda module: module.frequencies[1:].mul_(2)),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_no_attribute_of_the_module_shows_is_refused_beside_pytorch(name):
    assert is_refused_beside_pytorch(UNSEEN[name]())
