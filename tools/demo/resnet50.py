"""The ResNet-50 of the demo, in PyTorch alone: ``lowerkit compile tools/demo/resnet50.py:model``.

The weights are random and seeded. The batch norms take their statistics from a batch of random images: with those of
the default initialisation, values would grow from block to block and the comparison would say little.
"""

from __future__ import annotations

import torch
from torch import nn

SEED = 20260401
BLOCKS = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Channels inside a block and number of blocks, stage by stage."""
EXPANSION = 4
"""A block gives this many times the channels that it has inside."""


class ConvNorm(nn.Sequential):
    """A convolution and its batch norm."""

    def __init__(self, channels: int, features: int, kernel: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(channels, features, kernel, stride, padding=kernel // 2, bias=False), nn.BatchNorm2d(features)
        )


class Bottleneck(nn.Module):
    """Three convolutions with a shortcut around them; the stride is in the middle one."""

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        features = inner * EXPANSION
        self.reduce = ConvNorm(channels, inner, 1)
        self.convolve = ConvNorm(inner, inner, 3, stride)
        self.expand = ConvNorm(inner, features, 1)
        same = channels == features and stride == 1
        self.shortcut = nn.Identity() if same else ConvNorm(channels, features, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.convolve(torch.relu(self.reduce(x))))
        return torch.relu(self.expand(inner) + self.shortcut(x))


class ResNet50(nn.Module):
    """The network of He et al. (2015) for 1000 classes."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 64, 7, stride=2)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        blocks: list[nn.Module] = []
        channels = 64
        for stage, (inner, count) in enumerate(BLOCKS):
            for number in range(count):
                blocks.append(Bottleneck(channels, inner, stride=2 if stage and not number else 1))
                channels = inner * EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.classify = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.blocks(self.pool(torch.relu(self.stem(x))))
        return self.classify(features.mean((2, 3)))


def model() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Returns the network in eval mode and one random image."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        network = ResNet50()
        settle_batch_norms(network, torch.randn(2, 3, 224, 224))
        image = torch.randn(1, 3, 224, 224)
    return network.requires_grad_(False), (image,)


def settle_batch_norms(network: nn.Module, images: torch.Tensor) -> None:
    """Gives every batch norm the mean and the variance of its values on ``images``; the network ends in eval mode."""
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        network.train()(images)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    network.eval()
