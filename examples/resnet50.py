"""ResNet-50 (He and others, 2015), with the stride in the middle convolution, as torchvision has it.

plan examples/resnet50.py:make --workers 8 -o resnet.json
"""

import torch
import torch.nn.functional as F
from torch import nn

EXPANSION = 4


class Bottleneck(nn.Module):
    """Three convolutions, added to what goes in."""

    def __init__(self, inner, width, stride):
        super().__init__()
        outer = width * EXPANSION
        self.conv1, self.bn1 = nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outer, 1, bias=False), nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inner != outer:
            self.downsample = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        """Return images [n, outer, y, x] of images [n, inner, y, x]."""
        short = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + short)


class ResNet(nn.Module):
    """Four stages of bottlenecks; `blocks` says how many each has."""

    def __init__(self, blocks, width, classes):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, 2, 1)
        stages, inner = [], width
        for stage, count in enumerate(blocks):
            own = width << stage
            for number in range(count):
                stages.append(Bottleneck(inner, own, 2 if stage and not number else 1))
                inner = own * EXPANSION
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(inner, classes)

    def forward(self, images):
        """Return logits [n, classes] of images [n, 3, y, x]."""
        x = self.stages(self.pool(F.relu(self.bn1(self.conv1(images)))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def training(module, batch, extent, classes):
    """Return the module, example inputs, the loss, its targets and the optimizer."""
    images, labels = torch.randn(batch, 3, extent, extent), torch.randint(0, classes, (batch,))
    return module, images, F.cross_entropy, labels, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def make(batch: int = 256):
    """ResNet-50 for ImageNet."""
    return training(ResNet((3, 4, 6, 3), 64, 1000), batch, 224, 1000)


def small(batch: int = 8):
    """Two stages, in a size that any computer runs."""
    return training(ResNet((1, 1), 8, 8), batch, 32, 8)
