"""Models that take any length, as users write them in torch."""

import itertools

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, POSITIONS = 100, 16, 64


class Layer(nn.Module):
    """Self-attention with an additive mask, then a feed-forward layer, each with a residual and a norm after it."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.join = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        shape = (x.shape[0], x.shape[1], 2, WIDTH // 2)
        query, key, value = (layer(x).view(shape).transpose(1, 2) for layer in (self.query, self.key, self.value))
        weights = (query @ key.transpose(2, 3) / (WIDTH // 2) ** 0.5 + hidden).softmax(-1)
        x = self.norm1(x + self.join((weights @ value).transpose(1, 2).flatten(2)))
        out: Tensor = self.norm2(x + self.narrow(nn.functional.gelu(self.wide(x))))
        return out


class Encoder(nn.Module):
    """An encoder in the style of Hugging Face's BERT: a table of positions, token types, and a pooled first token."""

    position_ids: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.types = nn.Embedding(2, WIDTH)
        self.register_buffer("position_ids", torch.arange(POSITIONS)[None], persistent=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList([Layer()])  # torch's exporter takes 5 s for each
        self.pooler = nn.Linear(WIDTH, WIDTH)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        positions = self.position_ids[:, : input_ids.shape[1]]
        x = self.norm(self.words(input_ids) + self.positions(positions) + self.types(token_type_ids))
        mask = attention_mask[:, None, None, :].to(x.dtype)
        hidden = (1.0 - mask) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, hidden)
        return x, torch.tanh(self.pooler(x[:, 0]))


class Words(nn.Module):
    """The sum of the vectors of the words that are not 0, and each of these vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        each = self.words(tokens) * (tokens != 0)[..., None]
        return each, each.sum(1)


def words() -> tuple[nn.Module, dict[str, Tensor]]:
    """A factory whose module takes any length; token 0 is padding to it, so it needs no mask."""
    return made(Words()), {"tokens": torch.randint(1, VOCABULARY, (2, 12))}


class Reader(nn.Module):
    """A CNN over pictures [batch, 1, 32, width], with a step for each two columns."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        channels = [1, *[4] * layers]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, 3, padding=1) for before, after in itertools.pairwise(channels)
        )
        self.steps, self.pool = nn.Linear(4, 7), nn.MaxPool2d(2)

    def forward(self, image: Tensor) -> Tensor:
        for layer in self.convolutions:
            image = layer(image).relu()
        out: Tensor = self.steps(self.pool(image).mean(2).transpose(1, 2))
        return out


class Recurrent(nn.Module):
    """An LSTM over [batch, length, 5]; answers for each step, or for the last."""

    def __init__(self, *, bidirectional: bool = False, last: bool = False) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(5, 6, batch_first=True, bidirectional=bidirectional), last

    def forward(self, frames: Tensor) -> Tensor:
        steps, (hidden, _) = self.lstm(frames)
        out: Tensor = hidden[-1] if self.last else steps
        return out


class Wave(nn.Module):
    """Strided convolutions over samples, as speech models begin; with a norm over the length as wav2vec 2.0 has."""

    def __init__(self, *, norm: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(1, 8, 10, stride=5), nn.Conv1d(8, 6, 3, stride=2)
        self.norm = nn.GroupNorm(8, 8) if norm else nn.Identity()

    def forward(self, wave: Tensor) -> Tensor:
        out: Tensor = self.second(nn.functional.gelu(self.norm(self.first(wave[:, None])))).transpose(1, 2)
        return out


def made(module: nn.Module) -> nn.Module:
    """The module ready to use, with weights drawn from a seed."""
    generator = torch.Generator().manual_seed(7)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return module.eval()
