"""What Python keeps from one call to the next: a second trace differs, or the steps of PyTorch that are compared."""

import random
import threading
from collections import OrderedDict, deque
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count, cycle
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
CALLS = 0


@dataclass
class Settings:
    calls: int = 0


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


def calls_differ(module, **how):
    with pytest.raises(GraphError, match=OF_CALLS):
        from_torch(module, (torch.randn(4, 6),), **how)


def entry(kept, key="calls"):
    kept[key] += 1
    return kept[key]


def attribute(kept):
    kept.calls += 1
    return kept.calls


def array(kept):
    kept += 1
    return float(kept[0])


def last(kept):
    kept.append(kept[0] + 1)
    return sum(kept)


def average(kept, key="mean"):
    kept[key] = kept[key] * 0.5 + torch.ones(6) * 0.5
    return kept[key].detach()


def in_a_thread():
    kept = threading.local()
    kept.calls = 0
    return kept


KEPT = {
    "a dict": (lambda: {"calls": 0}, entry),
    "a dict in a dict": (lambda: {"all": {"calls": 0}}, lambda kept: entry(kept["all"])),
    "a list": (lambda: [0], lambda kept: entry(kept, 0)),
    "a namespace": (lambda: SimpleNamespace(calls=0), attribute),
    "a dataclass": (Settings, attribute),
    "a queue": (lambda: deque([1, 2, 3], maxlen=3), last),
    "a helper": (Annealing, Annealing.factor),
    "a thread": (in_a_thread, attribute),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_attributes_keep_is_refused(name):
    make, factor = KEPT[name]
    calls_differ(Keeping(make(), factor))


def in_context(kept):
    kept.set(kept.get() + 1)
    return kept.get()


def hooks_on(module):
    module.fc.register_forward_hook(lambda layer, given, result: result * 0.5)
    return 1


def another_part(module):
    module.add_module(str(len(module._modules)), nn.Identity())
    return len(module._modules)


def parts_turned(module):
    module.fc, module.other = module.other, module.fc
    return 1


def modes_turned(module):
    module.fc.train(not module.fc.training)
    return 2 if module.fc.training else 1


def calls_counted(module):
    module.calls += 1
    return module.calls


@pytest.mark.parametrize("change", [hooks_on, another_part, modes_turned, calls_counted])
def test_what_modules_consist_of_is_not_changed(change):
    module = Keeping(None, None)
    module.calls, module.other, module.factor = 0, nn.Linear(6, 6), lambda _: change(module)
    calls_differ(module)


def test_what_is_set_to_the_same_mode_in_every_call_is_no_change():
    module = Keeping(None, None)
    module.factor = lambda _: 1 if module.fc.eval().training else 2
    trained_alike(module, (torch.randn(4, 6, dtype=torch.float64),))


def test_what_is_counted_and_not_read_is_taken_and_put_back():
    module = Keeping({"calls": 0, "shapes": []}, None)
    module.factor = lambda kept: kept["shapes"].append(entry(kept)) or 2
    trained_alike(module, (torch.randn(4, 6, dtype=torch.float64),))
    assert module.kept == {"calls": 0, "shapes": []}


def test_what_is_another_object_alike_is_no_change():
    module = Keeping(SimpleNamespace(sizes=[6], text="a"), lambda kept: 2)
    module.factor = lambda kept: setattr(module, "kept", SimpleNamespace(sizes=[6], text="".join("a"))) or 2
    trained_alike(module, (torch.randn(4, 6, dtype=torch.float64),))


def test_what_is_set_in_the_first_call_alone_is_another_call():
    module = Keeping(None, lambda kept: 1 if kept is None else 2)
    module.register_forward_hook(lambda module, _, __: setattr(module, "kept", "called"))
    calls_differ(module)


class OfTheClass(Keeping):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return self.fc(x).mean() * self.calls


class OfTheFile(Keeping):
    def forward(self, x):
        FACTORS["calls"] += 1
        return self.fc(x).mean() * FACTORS["calls"]


class OfTheFileItself(Keeping):
    def forward(self, x):
        global CALLS  # noqa: PLW0603
        CALLS += 1
        return self.fc(x).mean() * CALLS


def counted():
    global CALLS  # noqa: PLW0603
    CALLS += 1
    return CALLS


class OfTheFileThroughAFunction(Keeping):
    def forward(self, x):
        return self.scaled(self.fc(x).mean())

    def scaled(self, x):
        return x * counted()


SETTINGS, NUMBERS, ANNEALED = Settings(), count(1), Annealing()


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


def with_an_attribute(_):
    with_an_attribute.calls = getattr(with_an_attribute, "calls", 0) + 1
    return with_an_attribute.calls


class Static:
    @staticmethod
    def factor():
        return attribute(Settings)

    @property
    def factors(self):
        return attribute(Settings)


class OfAProperty(Keeping, Static):
    def forward(self, x):
        return self.fc(x).mean() * self.factors


class OfAStaticMethod(Keeping, Static):
    def forward(self, x):
        return self.fc(x).mean() * Static.factor()


SEEN = {
    "an enclosed number": enclosing(),
    "a default": with_a_default,
    "an attribute": with_an_attribute,
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


class AnnealedLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x / self.calls


@pytest.mark.parametrize("loss", [AnnealedLoss(), Annealing()])
def test_what_a_loss_keeps_is_refused(loss):
    loss = loss if isinstance(loss, nn.Module) else LossOf(loss).of
    calls_differ(Keeping(None, lambda _: 1), loss=loss)


class LossOf:
    def __init__(self, annealing):
        self.annealing = annealing

    def of(self, x):
        return x * self.annealing.factor()


class Counting:
    """A loss that counts its calls in this file, by itself, in a method, and in one that this calls."""

    def __call__(self, x):
        return x * counted()

    def through_another(self, x):
        return self(x)


@pytest.mark.parametrize("loss", [Counting(), Counting().through_another])
def test_what_methods_and_objects_that_are_losses_keep_in_files_is_refused_beside_pytorch(loss):
    assert is_refused_beside_pytorch(Keeping(None, lambda _: 1), loss)


class Empty:
    """A class that keeps nothing yet."""


def of_an_empty_class(_):
    Empty.calls = getattr(Empty, "calls", 0) + 1
    return Empty.calls


def test_what_a_file_keeps_that_a_call_imports_is_no_change(monkeypatch, tmp_path):
    (tmp_path / "imported_late.py").write_text("FACTOR, DOUBLE = 1.5, 2\n")
    monkeypatch.syspath_prepend(tmp_path)

    def factor(_):
        import imported_late  # noqa: PLC0415

        return imported_late.FACTOR * imported_late.DOUBLE

    module = Keeping(None, factor).double()
    trained_alike(module, (torch.randn(4, 6, dtype=torch.float64),))


@pytest.mark.parametrize(
    ("kept", "factor"),
    [
        ({"mean": torch.zeros(6)}, average),
        ([torch.zeros(6)], lambda kept: average(kept, 0)),
        (SimpleNamespace(mean=torch.zeros(6)), lambda kept: average(vars(kept))),
    ],
)
def test_tensors_in_containers_and_objects_are_refused_beside_pytorch(kept, factor):
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


HELD = SimpleNamespace(angles={})


def of_a_default(x, kept=[0]):  # noqa: B006
    before, kept[0] = kept[0], x.mean(0).detach()
    return before


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


def test_tensors_that_a_hook_leaves_in_the_same_call_are_read():
    left = {}
    module = Shifted(lambda x: left["result"] * 2)
    module.fc.register_forward_hook(lambda *results: left.update(result=results[-1]))
    graph = from_torch(module.double(), (torch.randn(4, 6, dtype=torch.float64),))
    assert {"fc.weight", "fc.bias"} <= graph.updates.keys()


class Adding(nn.Module):
    """A layer that adds what its result costs to a list."""

    def __init__(self, costs):
        super().__init__()
        self.layer, self.costs = nn.Linear(6, 6, dtype=torch.float64), costs

    def forward(self, x):
        result = self.layer(x).tanh()
        self.costs.append(result.square().mean())
        return result


class Costly(nn.Module):
    """Two layers that add to one list, of which what they cost is read, and which is emptied before or after that."""

    def __init__(self, *, is_emptied_first):
        super().__init__()
        self.is_emptied_first, self.costs = is_emptied_first, []
        self.layers = nn.Sequential(Adding(self.costs), Adding(self.costs))

    def forward(self, x):
        if self.is_emptied_first:
            self.costs.clear()
        result = self.layers(x).mean() + sum(self.costs)
        if not self.is_emptied_first:
            self.costs.clear()
        return result


@pytest.mark.parametrize("is_emptied_first", [True, False])
def test_a_list_that_several_modules_hold_stays_one(is_emptied_first):
    module, x = Costly(is_emptied_first=is_emptied_first), torch.randn(4, 6, dtype=torch.float64)
    trained_alike(module, (x,))
    assert all(layer.costs is module.costs for layer in module.layers)
    assert not module.costs


class Attending(nn.Module):
    """A layer that makes its mask when it is first called, and keeps what it attended to last, to be looked at."""

    def __init__(self, mask):
        super().__init__()
        self.fc, self.make, self.mask, self.attended = nn.Linear(6, 6), mask, None, None

    def forward(self, x):
        if self.mask is None or len(self.mask) != len(x):
            self.mask = self.make(self, x)
        attended = (self.fc(x) @ x.T).masked_fill(self.mask, -1e9).softmax(1)
        self.attended = attended.detach()
        return (attended @ x).square().mean()


class Late(nn.Module):
    """Has a buffer from its first call on, or one of another number in each."""

    def __init__(self, make, registers):
        super().__init__()
        self.fc, self.make, self.again = nn.Linear(6, 6), make, registers == "again"
        if registers != "late":
            self.register_buffer("table", None)

    def forward(self, x):
        y = self.fc(x)
        table = getattr(self, "table", None)
        if table is None or self.again:
            self.register_buffer("table", self.make(y))
        return (y * (self.table if table is None else table)).sin().sum()


@pytest.mark.parametrize("registers", ["late", "as none"])
def test_a_buffer_of_constants_is_registered_late(registers):
    module = Late(lambda y: torch.arange(6, dtype=y.dtype), registers)
    trained_alike(module, (torch.randn(4, 6, dtype=torch.float64),))
    assert getattr(module, "table", None) is None


@pytest.mark.parametrize("registers", ["late", "as none"])
def test_a_buffer_of_data_that_is_registered_late_is_refused_beside_pytorch(registers):
    module = Late(lambda y: y.detach().mean(0), registers)
    from_torch(module, (torch.randn(4, 6),))
    assert getattr(module, "table", None) is None
    assert is_refused_beside_pytorch(module)


def test_tensors_in_a_list_do_not_change_places():
    module = Keeping([torch.ones(6), torch.zeros(6)], None)
    module.factor = lambda kept: kept.reverse() or kept[0]
    with pytest.raises(GraphError, match="forward creates a new constant"):
        from_torch(module, (torch.randn(4, 6),))


def test_a_mask_is_kept_beside_what_each_call_keeps():
    module = Attending(lambda _, x: torch.ones(len(x), len(x), dtype=torch.bool).triu(1))
    trained_alike(module, (torch.randn(4, 6, dtype=torch.float64),))


class Looked(Attending):
    """The same, that keeps the layer's results in a list, a dict and an object, too."""

    def __init__(self, mask):
        super().__init__(mask)
        self.kept, self.seen, self.last = SimpleNamespace(text="a"), [1], {}

    def forward(self, x):
        self.kept.result = self.last["result"] = self.fc(x)
        self.seen = [self.kept.result]
        return super().forward(x)


def test_an_import_leaves_no_tensors_in_a_module():
    module = Looked(lambda _, x: torch.ones(len(x), len(x), dtype=torch.bool).triu(1))
    from_torch(module, (torch.randn(4, 6),))
    assert (module.kept, module.seen, module.last, module.mask) == (SimpleNamespace(text="a"), [1], {}, None)
    assert module(torch.randn(5, 6)).isfinite()


class RegisteredLate(nn.Module):
    """A layer, and what the first call registers beside it."""

    def __init__(self, register):
        super().__init__()
        self.fc, self.register = nn.Linear(6, 6), register
        self.register_buffer("late", None, persistent=False)

    def forward(self, x):
        if self.late is None:
            self.register(self, x)
        return (self.fc(x) * self.late).square().mean()


def a_parameter(module, _):
    module.late = nn.Parameter(torch.ones(6))


def test_a_parameter_that_the_first_call_makes_is_refused_and_taken_back():
    module = RegisteredLate(a_parameter)
    calls_differ(module)
    assert module.late is None
    assert {*dict(module.named_modules())} == {"", "fc"}


def test_constant_buffers_that_the_first_call_registers_are_taken():
    module = RegisteredLate(lambda m, x: m.register_buffer("late", torch.arange(6).to(x), persistent=False)).double()
    trained_alike(module, (torch.randn(4, 6, dtype=torch.float64),))
    assert module.late is None


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


def kept_by_a_class(extent):
    if not hasattr(Shifted, "angles"):
        Shifted.angles = torch.arange(extent).double().cos()
    return Shifted.angles


def kept_in_an_object(extent):
    if extent not in HELD.angles:
        HELD.angles[extent] = {"cos": [torch.arange(extent).double().cos()]}
    return HELD.angles[extent]["cos"][0]


class Slotted:
    """What has no other attributes than angles."""

    __slots__ = ("angles",)


SLOTTED = Slotted()


def kept_in_a_slot(extent):
    if not hasattr(SLOTTED, "angles"):
        SLOTTED.angles = torch.arange(extent).double().cos()
    return SLOTTED.angles


class Table:
    """What makes angles once, for all of its class."""

    by_extent, calls = {}, 0

    def angles(self, extent):
        if extent not in Table.by_extent:
            Table.by_extent[extent] = torch.arange(extent).double().cos()
        return self.by_extent[extent]

    @lru_cache(maxsize=4)  # noqa: B019
    def by_python(self, extent):
        return torch.arange(extent).double().cos()

    def count(self, x):
        Table.calls += 1
        return x * Table.calls


TABLE = Table()


def kept_by_a_class_of_an_object(extent):
    return TABLE.angles(extent) + TABLE.by_python(extent)


def kept_in_another_file(extent):
    from tests.pytorch import models  # noqa: PLC0415

    if not hasattr(models, "angles"):
        models.angles = torch.arange(extent).double().cos()
    return models.angles


IN_FILES = (
    kept_in_an_object,
    kept_in_a_slot,
    kept_in_another_file,
    kept_by_a_class_of_an_object,
    kept_in_a_file,
    kept_by_python,
    kept_by_a_class,
)


@pytest.mark.parametrize("cached", [kept_in_a_default, kept_in_an_attribute])
def test_constants_that_functions_keep_are_constants_and_none_of_a_trace_is_left(cached):
    module, x = Shifted(lambda x: cached(x.shape[1])).double(), torch.randn(4, 6).double()
    from_torch(module, (x,))
    assert type(module(x)) is torch.Tensor
    assert module(x).isfinite()  # of real tensors
    trained_alike(module, (x,))


@pytest.mark.parametrize("cached", IN_FILES)
def test_constants_that_files_and_classes_keep_are_constants_once_they_are_made(cached):
    module, x = Shifted(lambda x: cached(x.shape[1])).double(), torch.randn(4, 6).double()
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
    trained_alike(Turned(id), (torch.randn(4, 6, dtype=torch.float64),))


def assigned(module):
    module.frequencies = module.frequencies * 2


class Lazy(OrderedDict):
    """Loads what it is asked for, which may fail."""

    def keys(self):
        return ["absent"]

    def __iter__(self):
        return iter(self.keys())

    def __getitem__(self, key):
        raise ValueError(key)


LOADED = Lazy()


def of_what_is_loaded(x):
    return x if LOADED is None else 2 * x


def test_nothing_is_loaded_to_be_looked_at():
    module, x = Shifted(of_what_is_loaded).double(), torch.randn(4, 6).double()
    trained_alike(module, (x,))


def with_parts_turned():
    module = Keeping(None, None)
    module.other, module.factor = nn.Linear(6, 6), lambda _: parts_turned(module)
    return module


UNSEEN = {
    "an array": lambda: Keeping(np.zeros(1), array),
    "an iterator": lambda: Keeping(count(1), next),
    "a cycle": lambda: Keeping(cycle([1.0, 2.0, 3.0]), next),
    "a generator": lambda: Keeping((number for number in range(1, 999)), next),
    "a generator of random numbers": lambda: Keeping(random.Random(0), random.Random.random),
    "another of those": lambda: Keeping(np.random.default_rng(0), np.random.Generator.random),
    "a context": lambda: Keeping(ContextVar("calls", default=0), in_context),
    "parts that change places": with_parts_turned,
    "a class": lambda: OfTheClass(None, None),
    "a file": lambda: OfTheFile(None, None),
    "a file itself": lambda: OfTheFileItself(None, None),
    "a file through a function": lambda: OfTheFileThroughAFunction(None, None),
    "an object of a file": lambda: Keeping(None, lambda _: attribute(SETTINGS)),
    "a class of a file": lambda: Keeping(None, lambda _: attribute(Settings)),
    "an iterator of a file": lambda: Keeping(None, lambda _: next(NUMBERS)),
    "a partial function": lambda: Keeping(None, partial(lambda kept, _: attribute(SETTINGS), None)),
    "a property": lambda: OfAProperty(None, None),
    "a static method": lambda: OfAStaticMethod(None, None),
    "the first thing of a class": lambda: Keeping(None, of_an_empty_class),
    "a class of an object": lambda: Shifted(TABLE.count),
    "a tensor in a default": lambda: Shifted(of_a_default),
    "a tensor of a function": lambda: Shifted(of_a_function),
    "constants of a trace": lambda: Shifted(made_late),
    "of a buffer that is assigned": lambda: Turned(assigned),
    "of a buffer that changes": lambda: Turned(lambda module: module.frequencies[1:].mul_(2)),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_no_attribute_of_the_module_shows_is_refused_beside_pytorch(name):
    assert is_refused_beside_pytorch(UNSEEN[name]())
