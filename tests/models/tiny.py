"""Language models of the zoo, made tiny: their training graphs in double precision, by family."""

from dataclasses import replace

from planner.models import llama, sequences
from planner.models.options import Published

GPT = sequences.GptSize(2, 12, 3, vocabulary=11, sequence=6)
LLAMA = llama.LlamaSize(2, 24, 4, 2, 20, 11, 6)
SIZES = {
    "gpt": GPT,
    "bloom": replace(GPT, alibi=True),
    "llama": LLAMA,
    "llama-tied": replace(LLAMA, tied=True, base=5e5, stretched=True),
    "mixtral": replace(LLAMA, layers=1, experts=4),
    "latent": replace(LLAMA, groups=4, head=6, latent=llama.Latent(10, 8, 2, 5)),
    "shared": replace(LLAMA, experts=4, dense=1, dense_hidden=28, shared=10),
}


def tiny(name, capacity=1.25, **options):
    """Training graph of a batch of 4 sequences of 6 tokens; gradients alone unless there is an optimizer."""
    size, how = SIZES[name], Published(**{"batch": 4, "dtype": "float64", **options})
    return sequences.training(size, how) if isinstance(size, sequences.GptSize) else llama.training(size, how, capacity)
