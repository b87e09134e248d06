"""The GPT whose steps are timed, and its training by PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn

Step = Callable[[], torch.Tensor]
VOCABULARY, FEATURES, HEADS, LAYERS, LENGTH = 2048, 512, 8, 4, 128


class Block(nn.Module):
    """A layer of a transformer, of any number of heads as its projections have room for."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(features), nn.LayerNorm(features)
        self.q, self.k, self.v, self.out = (nn.Linear(features, features) for _ in range(4))
        self.up, self.down = nn.Linear(features, 4 * features), nn.Linear(4 * features, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        shape = (*x.shape[:2], -1, x.shape[-1] // HEADS)
        q, k, v = (part(y).view(shape).transpose(1, 2) for part in (self.q, self.k, self.v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        hidden: torch.Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + hidden


class GPT(nn.Module):
    """A language model; its result is [samples, vocabulary, length]."""

    def __init__(self, features: int = FEATURES) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, features), nn.Parameter(torch.randn(LENGTH, features))
        self.blocks = nn.Sequential(*(Block(features) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(features), nn.Linear(features, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions)))
        return logits.transpose(1, 2)


def trained(module: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor) -> Step:
    """Return a step of training by PyTorch."""

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(module(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step


def of_all(value: float, reduction: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> float:
    """Return the sum of the ranks' values, or what else is said of them."""
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total, reduction)
    return float(total)
