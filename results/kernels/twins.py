"""The zoo's models written in PyTorch, on the weights of a graph: each returns (loss, logits)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from tdl.operator import named

Tensors = Mapping[str, Tensor]


def mlp(weights: Tensors, inputs: Tensors) -> tuple[Tensor, Tensor]:
    x = inputs["images"]
    layers = len(weights)
    for layer in range(1, layers + 1):
        x = x @ weights[f"fc{layer}.w"]
        x = functional.relu(x) if layer < layers else x
    return functional.cross_entropy(x, inputs["labels"].long()), x


def normalized(x: Tensor, weights: Tensors, name: str) -> Tensor:
    if f"{name}.w" not in weights:
        return x
    return functional.batch_norm(x, None, None, weights[f"{name}.w"], weights[f"{name}.b"], training=True, eps=1e-5)


def convolved(x: Tensor, weights: Tensors, name: str, norm: str, stride: int = 1) -> Tensor:
    weight = weights[f"{name}.w"]
    y = functional.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
    return normalized(y, weights, norm)


def classified(x: Tensor, weights: Tensors, inputs: Tensors) -> tuple[Tensor, Tensor]:
    logits = functional.adaptive_avg_pool2d(x, 1).flatten(1) @ weights["fc.w"]
    return functional.cross_entropy(logits, inputs["labels"].long()), logits


def cnn(weights: Tensors, inputs: Tensors) -> tuple[Tensor, Tensor]:
    x = inputs["images"]
    for layer in range(1, 1 + sum(name.startswith("conv") for name in weights)):
        x = functional.relu(convolved(x, weights, f"conv{layer}", f"bn{layer}"))
    return classified(x, weights, inputs)


def wresnet(weights: Tensors, inputs: Tensors) -> tuple[Tensor, Tensor]:
    return classified(wresnet_features(weights, inputs), weights, inputs)


def wresnet_features(weights: Tensors, inputs: Tensors) -> Tensor:
    def conv(x: Tensor, name: str, stride: int = 1) -> Tensor:
        return convolved(x, weights, name, f"{name}.bn", stride)

    large = inputs["images"].shape[-1] >= 64
    x = functional.relu(conv(inputs["images"], "stem.conv", 2 if large else 1))
    if large:
        x = functional.max_pool2d(x, 3, stride=2, padding=1)
    blocks = sorted({tuple(name.split(".")[:2]) for name in weights if name.startswith("stage")})
    for stage, unit in blocks:
        name = f"{stage}.{unit}"
        stride = 2 if unit == "unit1" and stage != "stage1" else 1
        y = functional.relu(conv(x, f"{name}.conv1"))
        y = conv(functional.relu(conv(y, f"{name}.conv2", stride)), f"{name}.conv3")
        if f"{name}.shortcut.w" in weights:
            x = conv(x, f"{name}.shortcut", stride)
        x = functional.relu(x + y)
    return x


def affine(x: Tensor, weights: Tensors, name: str) -> Tensor:
    return functional.linear(x, weights[f"{name}.w"].T, weights[f"{name}.b"])


def three_layers(x: Tensor, weights: Tensors, inputs: Tensors) -> tuple[Tensor, Tensor]:
    x = functional.relu(affine(x.flatten(1), weights, "fc1"))
    logits = affine(functional.relu(affine(x, weights, "fc2")), weights, "fc3")
    return functional.cross_entropy(logits, inputs["labels"].long()), logits


def alexnet(weights: Tensors, inputs: Tensors) -> tuple[Tensor, Tensor]:
    x = inputs["images"]
    for layer, (stride, padding) in enumerate([(4, 2), (1, 2), (1, 1), (1, 1), (1, 1)], start=1):
        x = functional.conv2d(x, weights[f"conv{layer}.w"], weights[f"conv{layer}.b"], stride, padding)
        x = functional.relu(x)
        x = functional.max_pool2d(x, 3, 2) if layer in {1, 2, 5} else x
    return three_layers(x, weights, inputs)


def vgg(weights: Tensors, inputs: Tensors) -> tuple[Tensor, Tensor]:
    x = inputs["images"]
    for stage in range(1, 6):
        for layer in range(1, 4 if stage > 2 else 3):
            x = functional.relu(functional.conv2d(x, weights[f"conv{stage}_{layer}.w"], padding=1))
        x = functional.max_pool2d(x, 2)
    return three_layers(x, weights, inputs)


def classifier(weights: Tensors, inputs: Tensors) -> tuple[Tensor, Tensor]:
    x = functional.adaptive_avg_pool2d(wresnet_features(weights, inputs), 1).flatten(1)
    logits = x @ weights["embedding.w"] @ weights["fc.w"]
    return functional.cross_entropy(logits, inputs["labels"].long()), logits


def rnn(weights: Tensors, inputs: Tensors) -> tuple[Tensor, Tensor]:
    """PyTorch's own LSTM, its weights replaced by the graph's."""
    steps = sum(name.startswith("x.") for name in inputs)
    layers = sum(name.endswith(".wx") for name in weights)
    _, hidden, width = weights["lstm1.wx"].shape
    lstm = torch.nn.LSTM(width, hidden, layers, bias=False, dtype=weights["fc.w"].dtype, device="meta")
    parameters = {}
    for layer in range(layers):
        parameters[f"weight_ih_l{layer}"] = weights[f"lstm{layer + 1}.wx"].flatten(0, 1)
        parameters[f"weight_hh_l{layer}"] = weights[f"lstm{layer + 1}.wh"].flatten(0, 1)
    xs = torch.stack([inputs[f"x.{step}"] for step in range(steps)])
    outputs, _ = torch.func.functional_call(lstm, parameters, (xs,))
    logits = outputs @ weights["fc.w"]
    labels = torch.stack([inputs[f"labels.{step}"] for step in range(steps)]).long()
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits[-1]


def layer_norm(x: Tensor, weights: Tensors, name: str) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weights[f"{name}.w"], weights[f"{name}.b"], eps=1e-5)


def projected(x: Tensor, weights: Tensors, name: str) -> Tensor:
    """To heads: the weight [parts, heads, width of a head, d] as one matrix; returns the parts [b, heads, s, e]."""
    weight = weights[f"{name}.w"]
    weight = weight[None] if weight.ndim == 3 else weight
    parts, heads, head, width = weight.shape
    bias = weights[f"{name}.b"].flatten() if f"{name}.b" in weights else None
    y = functional.linear(x, weight.reshape(-1, width), bias)
    return y.reshape(*x.shape[:2], parts, heads, head).permute(2, 0, 3, 1, 4)


def attention(x: Tensor, weights: Tensors, name: str, memory: Tensor | None = None, causal: bool = False) -> Tensor:
    y = layer_norm(x, weights, f"{name}.norm")
    if memory is None:
        q, k, v = projected(y, weights, f"{name}.qkv")
    else:
        (q,), (k, v) = projected(y, weights, f"{name}.q"), projected(memory, weights, f"{name}.kv")
    y = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    weight = weights[f"{name}.out.w"]
    y = y.transpose(1, 2).flatten(2)
    return x + functional.linear(y, weight.flatten(1), weights[f"{name}.out.b"])


def feed_forward(x: Tensor, weights: Tensors, name: str, gelu: str = "none") -> Tensor:
    y = functional.gelu(affine(layer_norm(x, weights, f"{name}.norm"), weights, f"{name}.up"), approximate=gelu)
    return x + affine(y, weights, f"{name}.down")


def embedded(words: Tensor, weights: Tensors, name: str, table: str) -> Tensor:
    return functional.embedding(words.long(), weights[f"{table}.w"]) + weights[f"{name}.positions.w"]


def all_positions(x: Tensor, weights: Tensors, inputs: Tensors, table: str) -> tuple[Tensor, Tensor]:
    logits = x @ weights["logits.w"] if "logits.w" in weights else x @ weights[f"{table}.w"].T
    return functional.cross_entropy(logits.flatten(0, 1), inputs["labels"].long().flatten()), logits


def depth(weights: Tensors, prefix: str) -> int:
    return sum(name.startswith(prefix) and name.endswith("mlp.up.w") for name in weights)


def transformer(weights: Tensors, inputs: Tensors, gelu: str = "none") -> tuple[Tensor, Tensor]:
    x = embedded(inputs["tokens"], weights, "embedding", "embedding")
    for layer in range(depth(weights, "l")):
        x = attention(x, weights, f"l{layer}.attention", causal=True)
        x = feed_forward(x, weights, f"l{layer}.mlp", gelu)
    return all_positions(layer_norm(x, weights, "norm"), weights, inputs, "embedding")


def rms_norm(x: Tensor, weights: Tensors, name: str) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], weights[f"{name}.w"], eps=1e-5)


def turned(x: Tensor) -> Tensor:
    """Rotary positions of heads [b, h, s, e], whose angles are in single precision, at least."""
    length, half = x.shape[2], x.shape[3] // 2
    angle = torch.promote_types(x.dtype, torch.float32)
    frequencies = 1e4 ** (-torch.arange(half, device=x.device, dtype=angle) / half)
    angles = torch.outer(torch.arange(length, device=x.device, dtype=angle), frequencies).repeat(1, 2)
    low, high = x.chunk(2, dim=-1)
    return x * angles.cos().to(x.dtype) + torch.cat((-high, low), dim=-1) * angles.sin().to(x.dtype)


def grouped_attention(x: Tensor, weights: Tensors, name: str) -> Tensor:
    y = rms_norm(x, weights, f"{name}.norm")
    ((q,), (k,), (v,)) = (projected(y, weights, f"{name}.{part}") for part in "qkv")
    y = functional.scaled_dot_product_attention(
        turned(q), turned(k), v, is_causal=True, enable_gqa=len(k[0]) < len(q[0])
    )
    return x + functional.linear(y.transpose(1, 2).flatten(2), weights[f"{name}.out.w"].flatten(1))


def gated(x: Tensor, weights: Tensors, name: str) -> Tensor:
    y = rms_norm(x, weights, f"{name}.norm")
    y = functional.silu(y @ weights[f"{name}.gate.w"]) * (y @ weights[f"{name}.up.w"])
    return x + y @ weights[f"{name}.down.w"]


def llama(weights: Tensors, inputs: Tensors) -> tuple[Tensor, Tensor]:
    x = functional.embedding(inputs["tokens"].long(), weights["embedding.w"])
    for layer in range(depth(weights, "l")):
        x = gated(grouped_attention(x, weights, f"l{layer}.attention"), weights, f"l{layer}.mlp")
    return all_positions(rms_norm(x, weights, "norm"), weights, inputs, "embedding")


def encoder_decoder(weights: Tensors, inputs: Tensors) -> tuple[Tensor, Tensor]:
    tied = "embedding.w" in weights
    x = embedded(inputs["source"], weights, "encoder.embedding", "embedding" if tied else "encoder.embedding")
    for layer in range(depth(weights, "encoder.l")):
        x = attention(x, weights, f"encoder.l{layer}.attention")
        x = feed_forward(x, weights, f"encoder.l{layer}.mlp")
    memory = layer_norm(x, weights, "encoder.norm")
    x = embedded(inputs["target"], weights, "decoder.embedding", "embedding" if tied else "decoder.embedding")
    for layer in range(depth(weights, "decoder.l")):
        x = attention(x, weights, f"decoder.l{layer}.attention", causal=True)
        x = attention(x, weights, f"decoder.l{layer}.cross", memory=memory)
        x = feed_forward(x, weights, f"decoder.l{layer}.mlp")
    return all_positions(layer_norm(x, weights, "decoder.norm"), weights, inputs, "embedding")


TWINS: Mapping[str, Callable[[Tensors, Tensors], tuple[Tensor, Tensor]]] = {
    **named(mlp, cnn, wresnet, rnn, alexnet, vgg, classifier, transformer, llama),
    "encoder": encoder_decoder,
    "gpt2": partial(transformer, gelu="tanh"),
}
