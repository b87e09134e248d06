"""The loop that people have: PyTorch's optimizers, schedulers, samplers and checkpoints around planned steps."""

import json
import os
import pickle
import random
import re
import runpy

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import CheckpointException
from torch.optim.lr_scheduler import OneCycleLR

import planner
from executor.checkpoint import CheckpointError
from executor.torch import distribute
from planner.errors import InputError
from planner.failures import JobError
from planner.pytorch import graph_of
from planner.pytorch.user_model import UserModel, imported, optimizer_of
from tests.executor_torch.test_torchrun import run, succeeding
from tests.pages import blocks_of
from tests.pytorch.test_sixteen_bits import ROUNDING, Autocast, case, in_single

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, weight_decay=0.01),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.8),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, betas=(0.8, 0.95), weight_decay=0.1),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.2),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
}


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model(kind="adamw", dropout=0.0):
    """A module in double precision with a batch and an optimizer of two groups."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Dropout(dropout), nn.Linear(4, 3)).double()
    groups = [{"params": [*module[0].parameters()]}, {"params": [*module[3].parameters()], "lr": 0.02}]
    batch = torch.randn(8, 6, dtype=torch.float64), torch.randint(3, (8,))
    return UserModel(module, batch[:1], nn.functional.cross_entropy, batch[1:], OPTIMIZERS[kind](groups))


def planned(given):
    return planner.plan(imported(given), workers=1)


def distributed(**options):
    """A module as above, and its training."""
    given = model(**options)
    return given, distribute(given.module, planned(given), given.optimizer)


def eager(given, clip=None):
    given.optimizer.zero_grad()
    loss = given.loss(given.module(*given.inputs), *given.targets)
    loss.backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(given.module.parameters(), clip)
    given.optimizer.step()
    given.optimizer.zero_grad()
    return loss.item()


def schedule(optimizer, momentum=False):
    return OneCycleLR(optimizer, max_lr=[0.1, 0.05], total_steps=12, cycle_momentum=momentum)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers_are_taken_over_scheduled_and_given_back(alone, kind):
    given, expected = model(kind), model(kind)
    cycles = (
        [schedule(trained.optimizer, "ad" in kind or kind == "momentum") for trained in (given, expected)]
        if kind != "adagrad"
        else []
    )
    plan = planned(given)
    for _ in range(2):
        assert eager(given) == eager(expected)
        for cycle in cycles:
            cycle.step()
    training = distribute(given.module, plan, given.optimizer)
    for _ in range(4):
        assert training.step(given.inputs, given.targets).item() == pytest.approx(eager(expected), rel=1e-12)
        for cycle in cycles:
            cycle.step()
    back = model(kind)
    back.module.load_state_dict(training.state_dict())
    back.optimizer.load_state_dict(training.optimizer.state_dict())
    states = expected.optimizer.state_dict()["state"].get(2, {})
    for name, value in states.items():
        if value is not None:
            torch.testing.assert_close(back.optimizer.state_dict()["state"][2][name], value, rtol=1e-12, atol=1e-12)
    assert [eager(back) for _ in range(2)] == pytest.approx([eager(expected) for _ in range(2)], rel=1e-12)


def test_an_optimizer_of_the_plan_is_made(alone):
    given, expected = model(), model()
    training = distribute(given.module, planned(given))
    assert isinstance(training.optimizer, torch.optim.AdamW)
    assert [group["lr"] for group in training.optimizer.param_groups] == [0.01, 0.02]
    for group in (*training.optimizer.param_groups, *expected.optimizer.param_groups):
        group["lr"] /= 2
    losses = [training.step(given.inputs, given.targets).item() for _ in range(3)]
    assert losses == pytest.approx([eager(expected) for _ in range(3)], rel=1e-12)


def test_clipping_is_of_all_gradients(alone):
    given, expected = model("sgd"), model("sgd")
    for group in given.optimizer.param_groups:
        group["clip_norm"] = 0.1
    training = distribute(given.module, planned(given), given.optimizer)
    losses = [training.step(given.inputs, given.targets).item() for _ in range(3)]
    assert losses == pytest.approx([eager(expected, 0.1) for _ in range(3)], rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"weight_decay": 0.5},
            r"0\.weight: planned with sgd .'weight_decay': 0\.01, .* found sgd .'weight_decay': 0\.5",
        ),
        ({"momentum": 0.5}, r"0\.weight: planned with sgd .* found sgd_momentum "),
        ({"clip_norm": 0.5}, r"0\.weight: planned .*'clip_norm': None,.* found .*'clip_norm': 0\.5"),
        ({"nesterov": True}, "nesterov is not supported"),
    ],
)
def test_a_change_that_needs_another_plan(alone, change, message):
    given, training = distributed(kind="sgd")
    given.optimizer.param_groups[0].update(change)
    with pytest.raises((planner.PlanError, planner.GraphError), match=message):
        training.step(given.inputs, given.targets)


def test_an_optimizer_of_other_parameters(alone):
    given = model()
    plan = planned(given)
    with pytest.raises(planner.PlanError, match=r"of the parameters that the plan trains; they differ in 3\.weight, 3"):
        distribute(given.module, plan, torch.optim.AdamW(given.module[0].parameters()))
    given.module[0].requires_grad_(False)
    assert given.optimizer.param_groups[0]["params"][0].requires_grad is False
    with pytest.raises(planner.PlanError, match=r"they differ in 0\.weight, 0\.bias: plan with this optimizer"):
        distribute(given.module, plan, given.optimizer)


def accumulated(given, parts):
    """A step of eager mode, which accumulates over parts of the batch, each of its share of the weight."""
    losses = []
    for inputs, targets in zip(given.inputs[0].chunk(parts), given.targets[0].chunk(parts), strict=True):
        losses.append(given.loss(given.module(inputs), targets) / parts)
        losses[-1].backward()
    given.optimizer.step()
    given.optimizer.zero_grad()
    return sum(losses).item()


def in_parts(given, parts):
    """The graph of a module whose batch is planned in parts."""
    inputs, targets = ([tensor.chunk(parts)[0] for tensor in tensors] for tensors in (given.inputs, given.targets))
    return planner.from_torch(
        given.module, inputs, loss=given.loss, targets=targets, optimizer=optimizer_of(given), micro_batches=parts
    )


def test_micro_batches_accumulate(alone):
    """A last batch of fewer rows, too."""
    given, expected = model(), model()
    training = distribute(given.module, planner.plan(in_parts(given, 4), workers=1), given.optimizer, fill=True)
    for rows, parts in ((8, 4), (8, 4), (2, 1), (8, 4)):
        part = expected._replace(inputs=(expected.inputs[0][:rows],), targets=(expected.targets[0][:rows],))
        assert training.step(part.inputs, part.targets).item() == pytest.approx(accumulated(part, parts), rel=1e-12)


def test_a_smaller_batch_is_filled_up(alone):
    given, expected = model(), model()
    training = distribute(given.module, planned(given), given.optimizer, fill=True)
    for rows in (8, 4, 2, 8):
        part = expected._replace(inputs=(expected.inputs[0][:rows],), targets=(expected.targets[0][:rows],))
        assert training.step(part.inputs, part.targets).item() == pytest.approx(eager(part), rel=1e-12)
    assert training.evaluate(given.inputs[0][:2], given.targets[0][:2]).item() > 0
    with pytest.raises(ValueError, match=r"expected shape \[8, 6\], found \[9, 6\]"):
        training.step(torch.zeros(9, 6, dtype=torch.float64), torch.zeros(9, dtype=torch.int64))


def test_autocast_around_a_step_would_cast_nothing(alone):
    given, training = distributed()
    with (
        torch.autocast("cpu"),
        pytest.raises(planner.PlanError, match=r"casts are planned; use autocast in the module's"),
    ):
        training.step(given.inputs, given.targets)


def test_evaluation_drops_and_updates_nothing(alone):
    given, training = distributed(dropout=0.5)
    first = training.step(given.inputs, given.targets)
    given.module.load_state_dict(training.state_dict())
    given.module.eval()
    expected = given.loss(given.module(*given.inputs), *given.targets)
    assert training.evaluate(given.inputs, given.targets).item() == pytest.approx(expected.item(), rel=1e-12)
    assert training.evaluate(given.inputs, given.targets).item() == pytest.approx(expected.item(), rel=1e-12)
    assert first.item() != pytest.approx(expected.item(), rel=1e-3)


def test_checkpoints_go_on_to_the_same_bits(alone, tmp_path):
    losses = []
    for begin, end in ((0, 6), (4, 8), (8, 9)):
        given, training = distributed(dropout=0.5)
        cycle = schedule(given.optimizer)
        assert training.resume(tmp_path / "run", schedule=cycle) == training.steps == begin
        for step in range(begin, end):
            losses.append((step, training.step(given.inputs, given.targets).item()))
            cycle.step()
            if training.steps % 2 == 0 and training.steps != 6:
                training.save(tmp_path / "run", schedule=cycle).result()
    assert len({step for step, _ in losses}) == len({*losses}) == 9
    assert [path.name for path in sorted((tmp_path / "run").iterdir())] == ["step-00000004", "step-00000008"]


def test_a_checkpoint_that_is_not_complete_is_passed_over(alone, tmp_path):
    given, training = distributed()
    for _ in range(2):
        training.step(given.inputs, given.targets)
        training.save(tmp_path).result()
    (tmp_path / "step-00000002" / ".metadata").unlink()
    assert training.resume(tmp_path) == 1


class Runs:
    """What makes a file where it is unpickled by a reader that runs what a file names."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.fixture
def touched(tmp_path):
    """A path that a pickle makes, where anything runs it."""
    path = tmp_path / "touched"
    pickle.loads(pickle.dumps(Runs(path)))
    assert path.exists()
    path.unlink()
    return path


PARENT_OF_ALL_PATHS = b"cpathlib\nPosixPath\n(N(dVparent\nV/\nstb."
"""A pickle that sets an attribute of a class."""


@pytest.mark.parametrize(
    ("index", "says"),
    [
        (lambda path, _: pickle.dumps(Runs(path)), "descriptions of tensors"),
        (lambda *_: pickle.dumps(torch.load), "descriptions of tensors"),
        (lambda *_: pickle.dumps(print), "descriptions of tensors"),
        (lambda *_: PARENT_OF_ALL_PATHS, "fields of descriptions"),
        (lambda _, index: index.replace(b"__0_0.distcp", b"/elsewhere12"), "files of this folder"),
    ],
)
def test_nothing_runs_that_an_index_names(alone, tmp_path, touched, index, says):
    _, training = distributed()
    training.save(tmp_path).result()
    (metadata,) = tmp_path.glob("step-*/.metadata")
    metadata.write_bytes(index(touched, metadata.read_bytes()))
    with pytest.raises((CheckpointException, CheckpointError), match=f"expected {says}, found"):
        training.resume(tmp_path)
    assert not touched.exists()


class Others:
    """What has a state of its own."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return {"state": self.state}

    def load_state_dict(self, state):
        self.state = state["state"]


def test_nothing_runs_that_a_value_names(alone, tmp_path, touched):
    _, training = distributed()
    training.save(tmp_path, others=Others(Runs(touched))).result()
    with pytest.raises((CheckpointException, pickle.UnpicklingError), match="Weights only load failed"):
        training.resume(tmp_path, others=Others(None))
    assert not touched.exists()


def test_no_checkpoint_is_written_of_what_is_not_finite(alone, tmp_path):
    given, training = distributed()
    training.save(tmp_path).result()
    training.step(given.inputs[0] * float("inf"), given.targets)
    with pytest.raises(JobError, match=r"step 1: \S+ is not finite: no checkpoint is written"):
        training.save(tmp_path)
    assert training.resume(tmp_path) == 0


MEETING = """
import sys, torch
from datetime import timedelta
from executor.torch import distribute
from tests.executor_torch.test_loop import model
import time, os
kind, given = sys.argv[1], model("sgd")
if kind == "weights":
    given.module[0].weight.data += int(os.environ["RANK"])
timeout = timedelta(seconds=10 if kind == "late" else 120)
training = distribute(given.module, "plan.json", given.optimizer, timeout=timeout)
rank = training.rank
if kind == "late" and rank == 1:
    time.sleep(30)
inputs = given.inputs[0] + rank * (kind == "other")
rows = slice(0, 4 + rank) if kind == "rows" else slice(None)
training.step(inputs[rows], given.targets[0][rows])
"""


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "other",
            "input: expected the same whole batch on all ranks, .*; rank 1 gave another than rank 0: with a Distri",
        ),
        (
            "rows",
            r"input: expected shape \[8, 6\], or \[4, 6\] on each of 2 ranks, found \[5, 6\]: DataLoader's drop_last",
        ),
        ("late", "rank 1 is gone or late: "),
        ("weights", r"rank 1 on \S+: weights: expected \w+, as on rank 0, found \w+: give all ranks the same, or dist"),
    ],
)
def test_ranks_that_do_not_agree(tmp_path, kind, message):
    planner.plan(imported(model("sgd")), workers=2).save(tmp_path / "plan.json")
    (tmp_path / "meeting.py").write_text(MEETING)
    done = run(2, "meeting", kind, cwd=tmp_path)
    assert done.returncode == 1
    assert re.search(message, done.stderr), done.stderr


SIXTEEN = """
import json, sys, torch
from executor.torch import distribute
from tests.executor_torch.test_loop import in_16_bits
given = in_16_bits(sys.argv[1])
training = distribute(given.module, "plan.json", given.optimizer)
losses, sent = [], 0
for _ in range(3):
    losses.append(training.step(given.inputs, given.targets).item())
    sent += sum(map(int, training.trainer.cluster.all_gather(training.sent_bytes.sum())))
if training.rank == 0:
    print(json.dumps([losses, sent]))
"""


def in_16_bits(kind):
    given = case("gpt")
    module = given[0].bfloat16() if kind == "module" else Autocast(given[0])
    return UserModel(module, (given[1],), in_single, (given[2],), OPTIMIZERS["adamw"](module.parameters()))


@pytest.mark.parametrize(("kind", "parts"), [("module", 1), ("autocast", 2)])
def test_16_bits_on_two_ranks(tmp_path, kind, parts):
    plan, expected = planner.plan(in_parts(in_16_bits(kind), parts), workers=2), in_16_bits(kind)
    plan.save(tmp_path / "plan.json")
    (tmp_path / "sixteen.py").write_text(SIXTEEN)
    done = succeeding(2, "sixteen", kind, cwd=tmp_path)
    losses, sent = json.loads(done.stdout)
    assert losses == pytest.approx([accumulated(expected, parts) for _ in range(3)], rel=ROUNDING)
    assert sent == 3 * plan.total_bytes > 0


KILLER = """
import os, random, signal, threading, time
life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
chosen = random.Random(int(os.environ["SEED"]) + life)
if life < int(os.environ["KILLS"]) and chosen.randrange(2) == int(os.environ["RANK"]):
    def kill():
        steps = chosen.randint(1, 11)
        while "training" not in globals() or training.steps < done + steps:
            time.sleep(0.001)
        time.sleep(chosen.uniform(0, 0.02))
        open("killed", "w").close()  # no line of its own, which would stand within another rank's
        os.kill(os.getpid(), signal.SIGKILL)
    done = 1 << 30
    threading.Thread(target=kill, daemon=True).start()
"""


def test_the_loop_in_the_documents_goes_on_where_a_rank_is_killed(tmp_path, monkeypatch):
    """Ranks die of SIGKILL at random, and the losses are those of a run that was never interrupted."""
    for _, text in blocks_of("docs/how-to/loop.md"):
        if text.startswith("# "):
            (tmp_path / text.split()[1]).write_text(text)
    planner.plan(graph_of(runpy.run_path(str(tmp_path / "model.py"))["make"]), workers=2).save(tmp_path / "plan.json")
    curves = []
    for kills in (0, 1):
        script = (tmp_path / "loop.py").read_text().replace('"run"', f'"run-{kills}"')
        (tmp_path / "killed.py").write_text(KILLER + script)
        monkeypatch.setenv("KILLS", str(kills))
        monkeypatch.setenv("SEED", str(random.randrange(1 << 30)))
        done = succeeding(2, "killed", cwd=tmp_path, restarts=kills)
        assert (tmp_path / "killed").exists() == bool(kills)
        curves.append({tuple(line.split()) for line in done.stdout.splitlines()})
    assert len(curves[0]) == 64
    assert curves[0] <= curves[1]
    assert len(curves[1] - curves[0]) <= 1  # of a rank that was killed while it wrote a line


def test_a_module_on_the_meta_device_is_initialized_part_by_part(alone, tmp_path):
    given = model("sgd")
    plan = planned(given)
    with torch.device("meta"):
        absent = model("sgd")
    first, second = (distribute(absent.module, plan).state_dict() for _ in range(2))
    assert all(parameter.is_meta for parameter in absent.module.parameters())
    assert {name: value.shape for name, value in first.items()} == {
        name: value.shape for name, value in given.module.state_dict().items()
    }
    bound = 6**-0.5
    assert 0.8 * bound < first["0.weight"].abs().max() <= bound
    assert all(torch.equal(first[name], second[name]) for name in first)
    torch.save(given.module.state_dict(), tmp_path / "weights.pt")
    read = distribute(absent.module, plan, weights=tmp_path / "weights.pt").state_dict()
    assert all(torch.equal(read[name], value) for name, value in given.module.state_dict().items())


class WithHead(nn.Module):
    """A layer, beside one that no loss reads and a mean that forward keeps in a parameter."""

    def __init__(self):
        super().__init__()
        self.layer, self.head, self.mean = nn.Linear(6, 3), nn.Linear(6, 9), nn.Parameter(torch.zeros(3))

    def forward(self, x):
        y = self.layer(x)
        result = y - self.mean.detach()
        with torch.no_grad():
            self.mean.mul_(0.9).add_(y.mean(0))
        return result


def test_an_optimizer_may_hold_parameters_without_gradients(alone):
    torch.manual_seed(0)
    module, data = WithHead().double(), (torch.randn(8, 6, dtype=torch.float64), torch.randint(3, (8,)))
    optimizer = torch.optim.AdamW(module.parameters(), weight_decay=0.1)
    graph = imported(UserModel(module, data[:1], nn.functional.cross_entropy, data[1:], optimizer))
    training = distribute(module, planner.plan(graph, workers=1), optimizer)
    losses = [training.step(*data).item() for _ in range(3)]
    theirs = torch.optim.AdamW(module.parameters(), weight_decay=0.1)
    for loss in losses:
        theirs.zero_grad()
        expected = nn.functional.cross_entropy(module(data[0]), data[1])
        expected.backward()
        theirs.step()
        assert loss == pytest.approx(expected.item(), rel=1e-12)


def test_what_is_no_tensor_and_what_is_no_planned_optimizer_is_said_in_a_line(alone):
    given = model()
    plan = planner.plan(imported(given), workers=1)
    training = distribute(given.module, plan)
    with pytest.raises(ValueError, match=r"input: expected a tensor, found ndarray: use torch\.as_tensor"):
        training.step(given.inputs[0].numpy(), given.targets)
    with pytest.raises(planner.GraphError, match="LBFGS is not supported: expected PyTorch's SGD"):
        distribute(given.module, plan, torch.optim.LBFGS(given.module.parameters()))


class Weighed(nn.Module):
    """A loss of samples, with weights if they are given; of `mask` nothing is read."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x, y, weights=None, mask=None):
        losses = nn.functional.cross_entropy(self.fc(x), y, reduction="none")
        return (losses if weights is None else losses * weights).mean()


def test_what_was_not_planned_is_refused_and_not_left_unread(alone):
    given, training = distributed()
    with pytest.raises(
        InputError, match=r"expected the 2 inputs and targets .* \(input, target\), found 3, among them input1: "
    ):
        training.step(given.inputs * 2, given.targets)
    x, y, mask = torch.randn(8, 6), torch.randint(3, (8,)), torch.ones(8)
    batch = {"x": x, "y": y, "mask": mask}
    weighed = UserModel(Weighed(), batch, None, (), None)
    training = distribute(weighed.module, planned(weighed))
    expected = weighed.module(**batch).item()
    assert training.step(batch).item() == pytest.approx(expected, rel=1e-6)
    for surplus in ({"weights": mask}, {"unknown": mask}):
        with pytest.raises(InputError, match=rf"\(x, y, mask\), found 4, among them {min(surplus)}"):
            training.step(batch | surplus)
    with pytest.raises(InputError, match=r"\(x, y, mask\), found 4, among them target"):
        training.step(batch, y)
