"""Factories of torch modules, as `python -m export.add added_modules:function` takes them."""

from typing import Any

import torch
from torch import Tensor, nn


class Pooled(nn.Module):
    """Embeds tokens of a table of 30 rows and scales their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 8)
        self.scores = nn.Linear(8, 3)

    def forward(self, tokens: Tensor, scale: Tensor) -> Tensor:
        mean: Tensor = self.scores(self.table(tokens).mean(1)) * scale
        return mean


class Fixed(nn.Module):
    """Its Python code names one row, so that no trace of it has a dynamic batch."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.scores(x.reshape(1, 8))
        return scores


class Encoder(nn.Module):
    """A learned token before the others, and attention over all of them, time first inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(1, 1, 8))
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)

    def forward(self, x: Tensor) -> Tensor:
        encoded: Tensor = self.encoder(torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1))[:, 0]
        return encoded


def pooled() -> tuple[nn.Module, dict[str, Tensor], list[str]]:
    torch.manual_seed(0)
    return Pooled(), {"tokens": torch.randint(0, 30, (2, 5)), "scale": torch.rand(2, 1)}, ["scores"]


def fixed() -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    return Fixed(), (torch.randn(1, 2, 4),)


def nothing() -> None:
    return None


def unknown_input() -> tuple[nn.Module, dict[str, Tensor]]:
    return Fixed(), {"y": torch.randn(1, 2, 4)}


def broken() -> Any:
    raise RuntimeError("no weights here")


def does_not_run() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Fixed(), (torch.randn(1, 3),)
