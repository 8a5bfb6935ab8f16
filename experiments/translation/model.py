"""A Transformer encoder and decoder with normalisation first, and an output layer of its own.

Read from `Translator` up. The output layer is never tied to the embeddings: it is the head that is
audited, with Xavier weights after a layer norm, as the rule for τ assumes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import nn

from translation.data import PAD
from uncork.core.errors import UncorkError

Tensor = torch.Tensor


@dataclass(frozen=True)
class ModelConfig:
    source_units: int
    target_units: int
    width: int = 256
    layers: int = 3  # of the encoder, and of the decoder
    heads: int = 4
    inner: int = 1024
    dropout: float = 0.1
    longest: int = 128
    tied: bool = False  # one embedding for both languages; needs joint units

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise UncorkError(f"a width of {self.width} cannot be shared by {self.heads} heads")


class Attention(nn.Module):
    """Spelled out, and without biases: sentences are short, so a step is many short kernels, and
    the fused attentions plan anew for every shape of a batch."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def split(self, x: Tensor) -> Tensor:
        """(N, T, D) to (N, heads, T, D / heads)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.key_value(x).chunk(2, -1)
        return self.split(keys), self.split(values)

    def forward(
        self,
        x: Tensor,
        keys_values: tuple[Tensor, Tensor],
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        keys, values = keys_values
        scores = self.split(self.query(x)) @ keys.transpose(-1, -2) / math.sqrt(keys.shape[-1])
        if causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return self.out((scores.softmax(-1) @ values).transpose(1, 2).flatten(2))


class FeedForward(nn.Sequential):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__(
            nn.Linear(config.width, config.inner, bias=False),
            nn.ReLU(),
            nn.Linear(config.inner, config.width, bias=False),
        )


class EncoderLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = Attention(config.width, config.heads)
        self.forward_ = FeedForward(config)
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(2))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.norms[0](x)
        x = x + self.dropout(self.attention(y, self.attention.keys_values(y), mask))
        return x + self.dropout(self.forward_(self.norms[1](x)))


class DecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = Attention(config.width, config.heads)
        self.source_attention = Attention(config.width, config.heads)
        self.forward_ = FeedForward(config)
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(3))
        self.dropout = nn.Dropout(config.dropout)

    def look_at(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """The source's keys and values, the same for every position."""
        return self.source_attention.keys_values(memory)

    def forward(
        self,
        x: Tensor,
        source: tuple[Tensor, Tensor],
        source_mask: Tensor,
        past: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """With `past`, x is one new position and sees all before it; without, x is everything."""
        y = self.norms[0](x)
        keys_values = self.attention.keys_values(y)
        if past is not None:
            keys_values = (
                torch.cat((past[0], keys_values[0]), 2),
                torch.cat((past[1], keys_values[1]), 2),
            )
        x = x + self.dropout(self.attention(y, keys_values, causal=past is None))
        y = self.norms[1](x)
        x = x + self.dropout(self.source_attention(y, source, source_mask))
        return x + self.dropout(self.forward_(self.norms[2](x))), keys_values


@dataclass
class DecoderState:
    """What decoding position by position remembers, for N rows."""

    source: list[tuple[Tensor, Tensor]]  # a layer: keys and values of the source
    source_mask: Tensor  # (N, 1, 1, S)
    past: list[tuple[Tensor, Tensor] | None]  # a layer: keys and values so far
    length: int = field(default=0)

    def select(self, rows: Tensor) -> None:
        """Keep these rows' past. They must be of the same sentences: the source stays."""
        self.past = [
            None if p is None else (p[0].index_select(0, rows), p[1].index_select(0, rows))
            for p in self.past
        ]


class Translator(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = nn.Embedding(config.source_units, config.width, padding_idx=PAD)
        self.target_embedding = nn.Embedding(config.target_units, config.width, padding_idx=PAD)
        if config.tied:
            self.target_embedding = self.source_embedding
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.encoder_norm = nn.LayerNorm(config.width)
        self.decoder_norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.target_units)
        self.dropout = nn.Dropout(config.dropout)
        self.positions: Tensor
        self.register_buffer("positions", _sinusoids(config.longest, config.width), False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=config.width**-0.5)

    @property
    def decoder_layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.decoder if isinstance(layer, DecoderLayer)]

    def embed(self, embedding: nn.Embedding, tokens: Tensor, start: int = 0) -> Tensor:
        x = embedding(tokens) * math.sqrt(self.config.width)
        return self.dropout(x + self.positions[start : start + tokens.shape[1]])

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """source (N, S): what the decoder looks at (N, S, D), and where (N, 1, 1, S)."""
        mask = (source != PAD)[:, None, None, :]
        x = self.embed(self.source_embedding, source)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.encoder_norm(x), mask

    def hidden(self, source: Tensor, target: Tensor) -> Tensor:
        """What arrives at the head (N, T, D) when the words before are given (N, T)."""
        memory, mask = self.encode(source)
        x = self.embed(self.target_embedding, target)
        for layer in self.decoder_layers:
            x, _ = layer(x, layer.look_at(memory), mask)
        return self.decoder_norm(x)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits (N, T, V) of the word that follows each prefix of the target."""
        return self.head(self.hidden(source, target))

    def begin(self, source: Tensor, copies: int = 1) -> DecoderState:
        """The state before the first word, each sentence `copies` times in a row."""
        memory, mask = self.encode(source)
        keys_values = [layer.look_at(memory) for layer in self.decoder_layers]
        return DecoderState(
            [
                (k.repeat_interleave(copies, 0), v.repeat_interleave(copies, 0))
                for k, v in keys_values
            ],
            mask.repeat_interleave(copies, 0),
            [None] * len(self.decoder),
        )

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Logits (N, V) after one more word a row (N); the state moves on."""
        x = self.embed(self.target_embedding, tokens[:, None], state.length)
        for index, layer in enumerate(self.decoder_layers):
            x, state.past[index] = layer(
                x, state.source[index], state.source_mask, state.past[index]
            )
        state.length += 1
        return self.head(self.decoder_norm(x[:, 0]))


def _sinusoids(length: int, width: int) -> Tensor:
    """(length, width): Vaswani et al. 2017, Sec. 3.5."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angles = torch.arange(length)[:, None] * rates
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)[:, :width]
