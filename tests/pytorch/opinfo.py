"""Samples of operators from PyTorch's own test suite (OpInfo), each as a module that is trained beside its graph.

`python -m tests.pytorch.opinfo [NAME ...] [--part K/N] [--json FILE]` counts what becomes of them. Needs `expecttest`.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import resource
import sys
import warnings
from collections import Counter
from itertools import islice, product
from pathlib import Path

import torch
from torch import nn
from torch.testing._internal import common_methods_invocations as invocations
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, SampleInput, UnaryUfuncInfo
from torch.utils._pytree import tree_flatten, tree_unflatten

from planner.pytorch.user_model import UserModel
from tests.pytorch.outcomes import outcome_of, sgd, summary

invocations.wrapper_set_seed = lambda operator, *given, **named: operator(*given, **named)  # which forward may not do

SEED, MOST_ELEMENTS = 7, 20_000
NO_RESULT, SECONDS, BYTES = "no result", 120, 6 << 30
"""What becomes of a sample that takes longer, or whose process ends, which may take so much memory."""


class Sample(nn.Module):
    """An operator: floating-point tensors that may have gradients are parameters, all others inputs.

    Its inputs are further the weights of every element of its results in the loss.
    """

    def __init__(self, operator, sample, is_known=False):
        super().__init__()
        self.operator, self.is_known = operator, is_known
        self.leaves, self.form = tree_flatten((sample.input, sample.args, sample.kwargs))
        self.anchor = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.places, self.inputs = [], []
        for place, leaf in enumerate(self.leaves):
            if isinstance(leaf, torch.Tensor):
                self._hold(place, leaf.detach().clone(), leaf.requires_grad)
                self.leaves[place] = None

    def _hold(self, place, tensor, is_parameter):
        if is_parameter:
            self.register_parameter(f"p{place}", nn.Parameter(tensor))
        elif self.is_known:
            self.register_buffer(f"p{place}", tensor)
        else:
            self.inputs.append(tensor)
            self.places.append(place)

    def results(self, *tensors):
        given = dict(zip(self.places, tensors, strict=True))
        held = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        leaves = [given.get(place, held.get(f"p{place}", leaf)) for place, leaf in enumerate(self.leaves)]
        first, rest, named = tree_unflatten(leaves, self.form)
        outputs = tree_flatten(self.operator(first, *rest, **named))[0]
        return [output for output in outputs if isinstance(output, torch.Tensor)]

    def forward(self, *tensors):
        count = len(self.places)
        outputs = self.results(*tensors[:count])
        total = 2 * self.anchor
        for output, weight in zip(outputs, tensors[count:], strict=True):
            total = total + (output.to(torch.float64) * weight).sum()
        return total


def user_model(operator, sample, is_known):
    """Return a sample as a user's model; None for one that PyTorch itself cannot run, or that is large."""
    generator = torch.Generator().manual_seed(SEED)
    module = Sample(operator, sample, is_known)
    try:
        outputs = module.results(*module.inputs)
    except Exception:
        return None
    if sum(tensor.numel() for tensor in (*outputs, *module.inputs, *module.parameters())) > MOST_ELEMENTS:
        return None
    weights = [torch.randn(output.shape, generator=generator, dtype=torch.float64) for output in outputs]
    return UserModel(module, (*module.inputs, *weights), None, (), sgd(module))


def outcome(operator, sample, is_known=False):
    """Return one of OUTCOMES, and why; None for what PyTorch itself cannot train."""
    model = user_model(operator, sample, is_known)
    return model and outcome_of(model)


SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 3.0, -3.0, 6.0, -2.0, math.inf, -math.inf, math.nan)
"""Zeros, bounds of piecewise functions, and what is not finite."""


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=True)


def special_samples(info):
    """Yield samples of special values: of functions of elements all, and all pairs; of reductions rows alike."""
    finite = [number for number in SPECIAL if math.isfinite(number)]
    for values in (finite, SPECIAL):
        if isinstance(info, UnaryUfuncInfo):
            yield SampleInput(vector(*values))
            yield from (SampleInput(torch.tensor(number, dtype=torch.float64, requires_grad=True)) for number in values)
        elif isinstance(info, BinaryUfuncInfo):
            left, right = zip(*product(values, values), strict=True)
            yield SampleInput(vector(*left), args=(vector(*right),))
            yield from (SampleInput(vector(*values), args=(number,)) for number in values)
            for number in values:
                yield SampleInput(vector(*values), args=(torch.tensor(number, dtype=torch.float64),))
                yield SampleInput(torch.tensor(number, dtype=torch.float64), args=(vector(*values),))
        elif isinstance(info, ReductionOpInfo):
            yield SampleInput(vector(*values))
            yield SampleInput(torch.ones(2, 3, dtype=torch.float64, requires_grad=True), kwargs={"dim": 1})
            yield SampleInput(torch.zeros(2, 3, dtype=torch.float64, requires_grad=True), kwargs={"dim": 1})


def samples(info):
    """Yield the samples of an operator in double precision, and special ones."""
    torch.manual_seed(SEED)
    yield from info.sample_inputs("cpu", torch.float64, requires_grad=info.supports_autograd)
    if info.supports_autograd:
        yield from special_samples(info)


def outcomes(info, most=None, step=1):
    """Yield what becomes of every step-th sample of an operator; what is refused is tried again with inputs known."""
    for number, sample in islice(enumerate(samples(info)), 0, most, step):
        result = outcome(info.op, sample)
        if result and result[0] == "refused":
            known = outcome(info.op, sample, is_known=True)
            result = known if known and known[0] != "refused" else result
        if result:
            yield number, *result


def outcomes_apart(info, most=None):
    """Yield what `outcomes` does, from a process of its own; NO_RESULT, and nothing further, where that has none."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=_send, args=(sender, info, most))
    process.start()
    sender.close()
    number = 0
    try:
        while receiver.poll(SECONDS):
            if (result := receiver.recv()) is None:
                return
            yield result
            number = result[0] + 1
        yield number, NO_RESULT, f"over {SECONDS} s"
    except EOFError:
        process.join()
        yield number, NO_RESULT, f"its process ended with status {process.exitcode}"
    finally:
        process.kill()
        process.join()


def _send(sender, info, most):
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    for result in outcomes(info, most):
        sender.send(result)
    sender.send(None)


def name_of(info):
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name


def described(names=(), part=(0, 1)):
    """Return the operators of PyTorch's suite that have double precision, or those of these names."""
    infos = [info for info in invocations.op_db if torch.float64 in info.supported_dtypes("cpu")]
    infos = [info for info in infos if not names or info.name in names or name_of(info) in names]
    return infos[part[0] :: part[1]]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--part", default="0/1", help="every N-th operator from the K-th on")
    parser.add_argument("--most", type=int, help="how many samples of each operator, all by default")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    part = tuple(map(int, arguments.part.split("/")))
    warnings.simplefilter("ignore")
    counts, records = Counter(), {}
    for info in described(arguments.names, part):
        results = list(outcomes_apart(info, arguments.most))
        records[name_of(info)] = dict(Counter(kind for _, kind, _ in results))
        counts.update(kind for _, kind, _ in results)
        for number, kind, why in results:
            if kind in ("wrong", "bare", NO_RESULT) or (arguments.names and kind != "right"):
                print(f"{name_of(info)}[{number}] {kind}: {why[:300]}", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(records, indent=1))
    print(f"{summary(counts.elements())}, {counts[NO_RESULT]} {NO_RESULT}")
    sys.exit(counts["wrong"] + counts["bare"] > 0)


if __name__ == "__main__":
    main()
