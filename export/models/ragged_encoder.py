"""A small transformer encoder with weights from a seed: tokens to one pooled vector per text.

Pre-norm blocks (Xiong et al., ICML 2020) with sinusoidal positions (Vaswani et al., NeurIPS 2017, section 3.5), so a
text may have any length. In a ragged batch only attention needs padding.
"""

import torch
from torch import Tensor, nn

from export.graph.recipe import Recipe
from export.models.ragged import Packing

VOCABULARY = 8192
PAD = 0
# Not -inf, because the softmax of a text without tokens would be NaN.
NEVER = -1e9


class Block(nn.Module):
    """Self-attention over a text's own tokens, then a feed-forward layer, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.join = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, hidden: Tensor, packing: Packing | None) -> Tensor:
        """(N, L, width), or (tokens, width) with a packing.

        `hidden` (N, 1, 1, L) is 0 for tokens that attention may read, `NEVER` for others.
        """
        joined = self.query_key_value(self.norm1(x))
        if packing is None:
            attended = self._attend(joined, hidden)
        else:
            attended = packing.pack(self._attend(packing.pad(joined)[:, 0], hidden)[:, None])
        x = x + self.join(attended)
        out: Tensor = x + self.narrow(nn.functional.gelu(self.wide(self.norm2(x))))
        return out

    def _attend(self, joined: Tensor, hidden: Tensor) -> Tensor:
        width = joined.shape[-1] // 3
        heads = (self.heads, width // self.heads)
        parts = torch.split(joined, width, dim=-1)
        query, key, value = (part.reshape(*part.shape[:2], *heads).transpose(1, 2) for part in parts)
        scores = query @ key.transpose(2, 3) * (width // self.heads) ** -0.5 + hidden
        attended: Tensor = scores.softmax(-1) @ value
        return attended.transpose(1, 2).flatten(2)


class Encoder(nn.Module):
    """Tokens (N, L) int32 to the mean vector of each text's own tokens, (N, width).

    With a packing, the tokens of all texts are one flat tensor. Tokens equal to `PAD` are ignored, so a client may pad.
    A text without tokens gets zeros.
    """

    frequencies: Tensor

    def __init__(self, width: int, blocks: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("frequencies", 10_000.0 ** -(torch.arange(0, width, 2) / width), persistent=False)

    def forward(self, tokens: Tensor, packing: Packing | None = None) -> Tensor:
        """The mean of the last block's normed states over each text's own tokens."""
        own = (tokens != PAD).to(torch.float32)
        positions = torch.arange(tokens.shape[1]) if packing is None else packing.positions()
        angles = positions[:, None] * self.frequencies
        x = self.embedding(tokens) + torch.cat([angles.sin(), angles.cos()], dim=1)
        padded_own = own if packing is None else packing.pad(own)[:, 0]
        hidden = torch.where(padded_own > 0, 0.0, NEVER)[:, None, None, :]
        for block in self.blocks:
            x = block(x, hidden, packing)
        x = self.norm(x) * own[..., None]
        total = x.sum(1) if packing is None else packing.pad(x)[:, 0].sum(1)
        return total / padded_own.sum(1, keepdim=True).clamp(min=1)


def build(seed: int, width: int = 32, blocks: int = 24, heads: int = 2) -> Encoder:
    """The encoder in eval mode with random weights drawn from `seed`.

    Deep and narrow, so that an execution costs mostly the start of some 800 operators, as for a larger encoder on a
    GPU. That cost is the same for 1 text or 32.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Encoder(width, blocks, heads).eval()


def padded() -> tuple[Encoder, dict[str, Tensor]]:
    """The shipped encoder without the ragged wrapper, and tokens for `export.add`: its graph takes [batch, length]."""
    return build(Recipe(model="ragged_encoder").seed), {"tokens": torch.ones(2, 16, dtype=torch.int32)}
