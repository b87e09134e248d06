"""Language models of published sizes: their parameters, their operations, and Hugging Face's losses and gradients."""

import importlib
import re
from math import prod

import numpy as np
import pytest

from planner.layout import Ways, needed, signatures
from planner.layout.geometry import produced
from planner.layout.region import elements, intersect
from planner.models import build, llama
from planner.models.sequences import slopes
from tests.graph import one_worker
from tests.models.tiny import SIZES, tiny

torch = pytest.importorskip("torch")
F = torch.nn.functional

COUNTS = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bloom-176b": 176_247_271_424,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "hf:deepseek-ai/DeepSeek-V2-Lite": 15_706_484_224,
    "hf:deepseek-ai/DeepSeek-V3": 671_026_404_352,
    "hf:meta-llama/Llama-4-Maverick-17B-128E": 400_711_848_960,
}


def parameters(graph):
    return sum(tensor.elements for tensor in graph.tensors.values() if tensor.role == "weight" and tensor.init)


@pytest.mark.parametrize("name", COUNTS)
def test_published_counts(name):
    assert parameters(build(name, batch=1)) == COUNTS[name]


def test_gpt_3_rounds_to_what_is_published():
    assert parameters(build("gpt-3-175b", batch=1)) == pytest.approx(174.6e9, rel=1e-4)


def operations(graph, ops=None):
    signature_of = signatures(graph)
    chosen = (node for node in graph.nodes if ops is None or node.op.startswith(ops))
    chosen = [node for node in chosen if node.name != "rotary.angles"]
    return sum(signature_of[node.name].description.operations(signature_of[node.name].extents) for node in chosen)


@pytest.mark.parametrize(("name", "elementwise"), [("gpt2", 0.03), ("llama-3.1-8b", 0.01)])
def test_operations_are_6_per_parameter_and_token_and_those_of_attention(name, elementwise):
    """Products are exact, what is left out of the closed form takes little more.

    Weights that are no products' (embeddings of tokens, if they are not the output layer's, and of positions, norms and
    biases) count nothing. Causal attention sees half of all pairs: of 2 products forward and 7 backward, of which 3 are
    of scores that are made again and 2 of their gradients, those that add up what is seen count half.
    """
    batch = 2
    graph = build(name, batch=batch, optimizer="none")
    tensors = graph.tensors
    tokens = prod(tensors["tokens"].shape)
    weights = sum(
        tensor.elements
        for tensor in tensors.values()
        if tensor.role == "weight"
        and tensor.init
        and len(tensor.shape) > 1
        and not tensor.name.endswith((".b", "positions.w"))
        and not (tensor.name == "embedding.w" and "logits.w" in tensors)
    )
    _, heads, length, head = tensors["l0.attention.mixed"].shape
    layers = sum(node.op == "attention" for node in graph.nodes)
    one_product = 2 * batch * heads * length * length * head * layers
    products = one_product * 9 / 2
    assert operations(graph, ("einsum", "mm")) == 6 * weights * tokens
    assert operations(graph, ("attention",)) == pytest.approx(products, rel=0.1)
    assert operations(graph) == pytest.approx(6 * weights * tokens + products, rel=elementwise)


def computed(name, **options):
    """Values of all tensors, and gradients by weight, of a tiny model."""
    graph = tiny(name, **options)
    values = one_worker.run(graph, one_worker.draw(graph, seed=1))
    gradients = {weight: values[gradient] for weight, gradient in one_worker.weight_gradients(graph).items()}
    return values, gradients


def flat(x):
    """Merge the first dimensions: weights [.., h, e, d] to [(.. h e), d]."""
    return x.reshape(-1, x.shape[-1])


def rows(x):
    """Merge all dimensions but the first."""
    return x.reshape(len(x), -1)


def gpt2(layers):
    names = {"embedding.w": ("wte.weight", None), "embedding.positions.w": ("wpe.weight", None), **norm("norm", "ln_f")}
    for i in range(layers):
        names |= norm(f"l{i}.attention.norm", f"h.{i}.ln_1") | norm(f"l{i}.mlp.norm", f"h.{i}.ln_2")
        names |= linear(f"l{i}.attention.qkv", f"h.{i}.attn.c_attn", lambda x: flat(x).T)
        names |= linear(f"l{i}.attention.out", f"h.{i}.attn.c_proj", lambda x: rows(x).T)
        names |= linear(f"l{i}.mlp.up", f"h.{i}.mlp.c_fc", None) | linear(f"l{i}.mlp.down", f"h.{i}.mlp.c_proj", None)
    return {ours: (f"transformer.{theirs}", how) for ours, (theirs, how) in names.items()}


def bloom(layers):
    names = {"embedding.w": ("word_embeddings.weight", None), **norm("embedding.norm", "word_embeddings_layernorm")}
    names |= norm("norm", "ln_f")
    for i in range(layers):
        names |= norm(f"l{i}.attention.norm", f"h.{i}.input_layernorm")
        names |= norm(f"l{i}.mlp.norm", f"h.{i}.post_attention_layernorm")
        fused = f"h.{i}.self_attention.query_key_value"
        names |= {f"l{i}.attention.qkv.w": (f"{fused}.weight", lambda x: flat(x.swapaxes(0, 1)))}
        names |= {f"l{i}.attention.qkv.b": (f"{fused}.bias", lambda x: x.swapaxes(0, 1).reshape(-1))}
        names |= linear(f"l{i}.attention.out", f"h.{i}.self_attention.dense", rows)
        names |= linear(f"l{i}.mlp.up", f"h.{i}.mlp.dense_h_to_4h", np.transpose)
        names |= linear(f"l{i}.mlp.down", f"h.{i}.mlp.dense_4h_to_h", np.transpose)
    return {ours: (f"transformer.{theirs}", how) for ours, (theirs, how) in names.items()}


def norm(ours, theirs):
    return {f"{ours}.w": (f"{theirs}.weight", None), f"{ours}.b": (f"{theirs}.bias", None)}


def linear(ours, theirs, how):
    return {f"{ours}.w": (f"{theirs}.weight", how), f"{ours}.b": (f"{theirs}.bias", lambda x: x.reshape(-1))}


def llama_names(layers):
    names = {"embedding.w": ("model.embed_tokens.weight", None), "norm.w": ("model.norm.weight", None)}
    names["logits.w"] = ("lm_head.weight", np.transpose)
    for i in range(layers):
        layer = f"model.layers.{i}"
        names[f"l{i}.attention.norm.w"] = (f"{layer}.input_layernorm.weight", None)
        names |= {f"l{i}.attention.{part}.w": (f"{layer}.self_attn.{part}_proj.weight", flat) for part in "qkv"}
        names[f"l{i}.attention.out.w"] = (f"{layer}.self_attn.o_proj.weight", rows)
        names[f"l{i}.attention.queries.down.w"] = (f"{layer}.self_attn.q_a_proj.weight", None)
        for part, theirs in (("queries", "q_a"), ("keys", "kv_a")):
            names[f"l{i}.attention.{part}.norm.w"] = (f"{layer}.self_attn.{theirs}_layernorm.weight", None)
        for part in ("mlp", "experts"):
            names[f"l{i}.{part}.norm.w"] = (f"{layer}.post_attention_layernorm.weight", None)
        for part in ("gate", "up", "down"):
            names[f"l{i}.mlp.{part}.w"] = (f"{layer}.mlp.{part}_proj.weight", np.transpose)
        names[f"l{i}.experts.router.w"] = (f"{layer}.mlp.gate.weight", np.transpose)
        names[f"l{i}.experts.down.w"] = (f"{layer}.mlp.experts.down_proj", lambda x: x.swapaxes(1, 2))
    return names


class DoubleTorch:
    """PyTorch in which single precision is double: Hugging Face's models compute in single here and there."""

    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@pytest.fixture
def transformers(monkeypatch):
    package = pytest.importorskip("transformers", reason="Hugging Face's models are not installed")
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    models = (f"models.{name}.modeling_{name}" for name in ("llama", "mixtral", "bloom", "deepseek_v3"))
    for part in ("modeling_rope_utils", *models):
        monkeypatch.setattr(importlib.import_module(f"transformers.{part}"), "torch", DoubleTorch())
    return package


def configuration(transformers, name):
    size, how = SIZES[name], {"attn_implementation": "eager", "dtype": torch.float64}
    if name == "gpt":
        config = transformers.GPT2Config(
            vocab_size=11, n_positions=6, n_embd=12, n_layer=2, n_head=3, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
        )
        return transformers.GPT2LMHeadModel._from_config(config, **how), gpt2(2)
    if name == "bloom":
        config = transformers.BloomConfig(vocab_size=11, hidden_size=12, n_layer=2, n_head=3)
        return transformers.BloomForCausalLM._from_config(config, **how), bloom(2)
    rotary = {"rope_type": "default", "rope_theta": size.base}
    if size.stretched:
        rotary |= {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        rotary["original_max_position_embeddings"] = 8192
    common = {
        "vocab_size": size.vocabulary,
        "hidden_size": size.width,
        "intermediate_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.groups,
        "rms_norm_eps": 1e-5,
        "rope_parameters": rotary,
        "tie_word_embeddings": size.tied,
    }
    if name == "mixtral":
        config = transformers.MixtralConfig(**common, num_local_experts=4, num_experts_per_tok=2)
        module = transformers.MixtralForCausalLM._from_config(config, **how, experts_implementation="eager")
        return module, llama_names(size.layers)
    if name == "latent":
        ranks = {"q_lora_rank": 10, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 5}
        config = transformers.DeepseekV3Config(**common, **ranks, rope_interleave=False, first_k_dense_replace=2)
        module = transformers.DeepseekV3ForCausalLM._from_config(config, **how)
        for layer in module.model.layers:  # otherwise 1e-6
            layer.self_attn.q_a_layernorm.variance_epsilon = layer.self_attn.kv_a_layernorm.variance_epsilon = 1e-5
        return module, llama_names(size.layers)
    module = transformers.LlamaForCausalLM._from_config(transformers.LlamaConfig(**common), **how)
    return module, llama_names(size.layers)


@pytest.mark.parametrize("name", sorted({*SIZES} - {"shared"}))
def test_loss_and_gradients_equal_hugging_face(transformers, name):
    """An expert of Mixtral's has places for all tokens here, as there; Bloom's GELU there has 8 digits of a root."""
    tolerance = 1e-9 if name == "bloom" else 1e-10
    values, gradients = computed(name, capacity=2.0)
    module, names = configuration(transformers, name)
    theirs = dict(module.named_parameters())
    translate = lambda arrays: translated(arrays, names)  # noqa: E731
    with torch.no_grad():
        for parameter, array in translate({weight: values[weight] for weight in gradients}).items():
            theirs[parameter].copy_(torch.tensor(np.ascontiguousarray(array)))
    logits = module(input_ids=torch.tensor(values["tokens"]).long(), use_cache=False).logits
    loss = F.cross_entropy(logits.flatten(0, 1), torch.tensor(values["labels"]).long().flatten())
    loss.backward()
    assert one_worker.difference(values["loss"], loss.item()) < tolerance
    ours = translate(gradients)
    assert ours.keys() == theirs.keys()
    for parameter, array in ours.items():
        assert one_worker.difference(array, theirs[parameter].grad, floor=1e-6) < tolerance, parameter


def translated(arrays, names):
    """Arrays by their names here as arrays by their names there."""
    pairs = [(names[ours], array) for ours, array in arrays.items() if ours in names]
    if "l0.attention.turned.w" in arrays:
        heads = re.compile(r".*self_attn\.[qkv]_proj")  # parts of larger matrices there
        plain = {theirs: array if how is None else how(array) for (theirs, how), array in pairs}
        return {name: array for name, array in plain.items() if not heads.match(name)} | latent(arrays)
    result = {theirs: array if how is None else how(array) for (theirs, how), array in pairs}
    for ours in arrays:
        if ours.endswith("experts.gate.w"):
            layer = ours.split(".")[0].removeprefix("l")
            both = [arrays[f"l{layer}.experts.{part}.w"].swapaxes(1, 2) for part in ("gate", "up")]
            result[f"model.layers.{layer}.mlp.experts.gate_up_proj"] = np.concatenate(both, axis=1)
    return result


def latent(arrays):
    """Weights of latent attention, of which some are one matrix there."""
    result = {}
    for i in range(2):
        ours, theirs = f"l{i}.attention", f"model.layers.{i}.self_attn"
        joined = {"q_b_proj": ("q", "turned"), "kv_a_proj_with_mqa": ("keys.down", "shared"), "kv_b_proj": ("k", "v")}
        for name, parts in joined.items():
            both = np.concatenate([arrays[f"{ours}.{part}.w"] for part in parts], axis=-2)
            result[f"{theirs}.{name}.weight"] = both.reshape(-1, both.shape[-1])
    return result


def test_experts_take_what_they_have_places_for():
    """Of 6 tokens with 2 choices of 4 experts each takes 3 at most; what is left out adds nothing."""
    values, _ = computed("mixtral", capacity=1.0)
    choices, slots = values["l0.experts.choices"], values["l0.experts.slots"]
    assert (slots // 3)[slots >= 0].tolist() == choices[slots >= 0].tolist()
    for chosen, own in zip(choices, slots, strict=True):
        wanted = np.bincount(chosen.ravel(), minlength=4)
        assert np.bincount(own[own >= 0] // 3, minlength=4).tolist() == np.minimum(wanted, 3).tolist()
    assert (slots < 0).any()
    assert not values["l0.experts.collect"][slots < 0].any()


def test_slopes_of_a_power_of_two_fall_to_a_256th():
    assert slopes(8) == [2.0**-k for k in range(1, 9)]
    assert min(slopes(112)) == 2.0**-8


def test_llama_2_has_the_frequencies_of_rotary_positions():
    size = llama.SIZES["llama-2-7b"]
    assert llama.frequencies(size) == [1e4 ** (-pair / 64) for pair in range(64)]


@pytest.mark.parametrize("workers", [2, 4])
def test_experts_on_other_workers_take_an_exchange_of_all_with_all(workers):
    """Tokens get places sample by sample, experts are split: all pairs of workers move as much, there and back."""
    graph, ways = tiny("mixtral"), Ways((workers,))
    by_name = {node.name: (node, signature) for node, signature in zip(graph.nodes, of_nodes(graph), strict=True)}
    sent = (("dispatch", "gate"), ("down", "collect"))
    splits = {"dispatch": "b", "gate": "e", "down": "e", "collect": "b"}
    for maker, reader in sent:
        (node, writing), (reading, read) = by_name[f"l0.experts.{maker}"], by_name[f"l0.experts.{reader}"]
        operand = reading.inputs.index(node.outputs[0])
        own = produced(writing, 0, (splits[maker],), ways)
        wanted = needed(read, operand, (splits[reader],), ways)
        moved = {(u, w): elements(intersect(own[u], wanted[w])) for u in range(workers) for w in range(workers)}
        assert set(moved.values()) == {prod(writing.outputs[0]) // workers**2}


def of_nodes(graph):
    signature_of = signatures(graph)
    return [signature_of[node.name] for node in graph.nodes]
