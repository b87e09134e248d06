"""Training steps under `jax.jit` on host devices, placed by an exported file: python -m tests.export.devices.

XLA_FLAGS=--xla_force_host_platform_device_count=8 must be set.
"""

import json
import re
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import torch

import planner
from planner.export.exported import export
from tests.export.modules import decoder, mlp

jax.config.update("jax_enable_x64", True)
STEPS, RATE = 3, 0.1


def mlp_loss(p, x, target, seen):
    layers = sorted(p)
    for name in layers:
        x = seen(name, x @ p[name].T)
        x = jax.nn.relu(x) if name != layers[-1] else x
    return cross_entropy(x, target)


def cross_entropy(logits, target):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), target[:, None], 1).mean()


def norm(p, name, x):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]


def affine(p, name, x):
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def gpt_loss(p, tokens, target, seen):
    x = p["tokens.weight"][tokens] + p["positions"]
    batch, length, width = x.shape
    qkv = seen("block.attention.qkv", affine(p, "block.attention.qkv", norm(p, "block.norm1", x)))
    q, k, v = (part.reshape(batch, length, 2, -1).transpose(0, 2, 1, 3) for part in jnp.split(qkv, 3, 2))
    scores = q @ k.transpose(0, 1, 3, 2) / q.shape[-1] ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    attended = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(batch, length, width)
    x = x + affine(p, "block.attention.out", attended)
    up = seen("block.mlp.0", affine(p, "block.mlp.0", norm(p, "block.norm2", x)))
    x = x + affine(p, "block.mlp.2", jax.nn.gelu(up))
    return cross_entropy(norm(p, "norm", x).reshape(-1, width) @ p["tokens.weight"].T, target)


CASES = {"mlp": (mlp, mlp_loss), "gpt": (decoder, gpt_loss)}


def trained(loss, parameters, x, target, seen):
    """Return the losses of some steps of SGD, and the parameters."""

    @jax.jit
    def step(parameters, x, target):
        value, slopes = jax.value_and_grad(loss)(parameters, x, target, seen)
        return value, jax.tree.map(lambda weight, slope: weight - RATE * slope, parameters, slopes)

    losses = []
    for _ in range(STEPS):
        value, parameters = step(parameters, x, target)
        losses.append(float(value))
    return losses, parameters


def collectives(loss, arguments, seen):
    """Return how often the compiled gradient communicates, by kind."""
    text = jax.jit(jax.value_and_grad(lambda p, x, t: loss(p, x, t, seen))).lower(*arguments).compile().as_text()
    kinds = ("all-gather", "all-reduce", "all-to-all", "reduce-scatter", "collective-permute")
    return {kind: len(re.findall(rf" {kind}(?:-start)?\(", text)) for kind in kinds}


def compared(name, ways):
    """Return losses on one device and on all, and by PyTorch."""
    make, loss = CASES[name]
    torch.manual_seed(1)
    module, (x,), torch_loss, (target,) = make()
    module, x = (
        module.double(),
        torch.randint(0, 32, x.shape) if x.dtype == torch.long else torch.randn_like(x).double(),
    )
    graph = planner.from_torch(module, (x,), loss=torch_loss, targets=(target,))
    exported = export(planner.plan(graph, ways=ways), "jax")
    file = type(sys)("exported")
    exec(exported.source("exported"), file.__dict__)
    parameters = {name: np.asarray(parameter.detach().numpy()) for name, parameter in module.named_parameters()}
    data = {next(iter(set(file.DATA) - {"target"})): x.numpy(), "target": target.numpy()}
    activation = {
        path: next((output for output in file.OUTPUTS if output.startswith(f"{path}.")), "")
        for path in {name.rpartition(".")[0] for name in parameters}
    }
    laid = []

    def seen(path, value):
        planned = activation[path.removesuffix(".weight")]
        if not planned or file.OUTPUTS[planned][0] != value.shape:
            return value
        laid.append(planned)
        return file.constrained(planned, value)

    placed, given = file.placed(parameters), file.placed(data)
    inputs = next(given[key] for key in given if key != "target")
    expected, _ = trained(loss, parameters, *data.values(), lambda _, value: value)
    losses, _ = trained(loss, placed, inputs, given["target"], seen)
    return {
        "torch": float(torch_loss(module(x), target).item()),
        "expected": expected,
        "losses": losses,
        "laid": sorted(set(laid)),
        "split": sum(not array.sharding.is_fully_replicated for array in placed.values()),
        "devices": len(next(iter(placed.values())).sharding.device_set),
        "collectives": collectives(loss, (placed, inputs, given["target"]), seen),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps({name: compared(name, ways) for name, ways in (("mlp", (2, 2, 2)), ("gpt", (2, 2)))}))
