"""U-Net (Ronneberger and others, 2015), with batch norm and borders, which says what every pixel shows.

plan examples/unet.py:make --workers 8 -o unet.json
"""

import torch
import torch.nn.functional as F
from torch import nn


def convolutions(inner, outer):
    """Return two convolutions, each normalized."""
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
        nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    """Halves images `levels` times and doubles them again; what was seen on the way down is seen on the way up."""

    def __init__(self, width, levels, classes):
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.first = convolutions(3, width)
        self.down = nn.ModuleList(convolutions(widths[i], widths[i + 1]) for i in range(levels))
        self.wider = nn.ModuleList(nn.ConvTranspose2d(widths[i + 1], widths[i], 2, 2) for i in range(levels))
        self.up = nn.ModuleList(convolutions(2 * widths[i], widths[i]) for i in range(levels))
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, images):
        """Return logits [n, classes, y, x] of images [n, 3, y, x]."""
        x, seen = self.first(images), []
        for down in self.down:
            seen.append(x)
            x = down(F.max_pool2d(x, 2))
        for wider, up, before in zip(reversed(self.wider), reversed(self.up), reversed(seen), strict=True):
            x = up(torch.cat([before, wider(x)], dim=1))
        return self.last(x)


def training(module, batch, extent, classes):
    """Return the module, example inputs, the loss, its targets and the optimizer."""
    images, labels = torch.randn(batch, 3, extent, extent), torch.randint(0, classes, (batch, extent, extent))
    return module, images, F.cross_entropy, labels, torch.optim.Adam(module.parameters(), lr=1e-3)


def make(batch: int = 32):
    """The paper's widths, on images of 256 pixels."""
    return training(UNet(64, 4, 21), batch, 256, 21)


def small(batch: int = 8):
    """Two levels, in a size that any computer runs."""
    return training(UNet(4, 2, 5), batch, 16, 5)
