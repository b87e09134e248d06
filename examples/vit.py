"""A vision transformer (Dosovitskiy and others, 2020).

plan examples/vit.py:make --workers 8 -o vit.json
"""

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    """Attention of all patches to all, and two fully connected layers."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x):
        """Return x [n, patches, width], changed."""
        n, patches, width = x.shape
        parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (part.view(n, patches, self.heads, -1).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, patches, width)
        x = x + self.out(seen)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class VisionTransformer(nn.Module):
    """Classifies images by a token that sees all patches."""

    def __init__(self, extent, patch, width, heads, layers, classes):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + (extent // patch) ** 2, width))
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images):
        """Return logits [n, classes] of images [n, 3, y, x]."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])


def training(module, batch, extent, classes):
    """Return the module, example inputs, the loss, its targets and the optimizer."""
    images, labels = torch.randn(batch, 3, extent, extent), torch.randint(0, classes, (batch,))
    return module, images, F.cross_entropy, labels, torch.optim.AdamW(module.parameters(), lr=1e-3)


def make(batch: int = 256):
    """ViT-B/16 for ImageNet."""
    return training(VisionTransformer(224, 16, 768, 12, 12, 1000), batch, 224, 1000)


def small(batch: int = 8):
    """The same in a size that any computer runs."""
    return training(VisionTransformer(16, 4, 16, 4, 2, 8), batch, 16, 8)
