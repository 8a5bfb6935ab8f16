"""An LSTM language model's body, and the loop that trains any head on it.

Two LSTM layers, the second as wide as the head's input: h = o·tanh(c) lies in (−1, 1), so that
Box(1) is the domain of a head on it. There is no dropout on h, which would change that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

State = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]] | None


@dataclass(frozen=True)
class Shape:
    """What every body of a study shares."""

    vocabulary: int
    embedding: int = 256
    hidden: int = 512
    dropout: float = 0.4


@dataclass(frozen=True)
class Budget:
    """How a model is trained: AdamW, a short warm-up, then a cosine down to nothing.

    The classes' rows learn at a rate of their own: as |h| < 1, they have to grow long, and the
    fewer the features the longer. With one rate for all, narrow heads stay at word frequencies for
    hundreds of steps.
    """

    steps: int = 1000
    batch: int = 512  # streams read side by side
    length: int = 16  # words of each a step
    rate: float = 1e-3
    row_rate: float = 1.0  # divided by the features
    warm_up: int = 100
    clip: float = 1.0


class Body(nn.Module):
    """Words (length, batch) to hidden states (length, batch, features)."""

    def __init__(self, shape: Shape, features: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.embedding)
        self.lower = nn.LSTM(shape.embedding, shape.hidden)
        self.upper = nn.LSTM(shape.hidden, features)
        self.dropout = nn.Dropout(shape.dropout)
        for layer in (self.lower, self.upper):
            _initialise(layer)

    def forward(self, words: Tensor, state: State = None) -> tuple[Tensor, State]:
        first, second = (None, None) if state is None else state
        x = self.dropout(self.embedding(words))
        x, first = self.lower(x, first)
        x, second = self.upper(self.dropout(x), second)
        return x, (first, second)


def _initialise(layer: nn.LSTM) -> None:
    """Gate by gate, with the forget gate open. As torch draws them, two layers on top of each other
    pass so little on that training starts with hundreds of steps of word frequencies alone."""
    for name, parameter in layer.named_parameters():
        with torch.no_grad():
            for gate in parameter.chunk(4):
                if "weight_ih" in name:
                    nn.init.xavier_uniform_(gate)
                elif "weight_hh" in name:
                    nn.init.orthogonal_(gate)
                else:
                    nn.init.zeros_(gate)
            if "bias_ih" in name:
                nn.init.ones_(parameter.chunk(4)[1])  # torch's order: input, forget, cell, output


Objective = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Hidden states (N, d), the words read and the next words (length, batch) to a loss."""


def train(
    body: Body, head: nn.Module, objective: Objective, stream: Tensor, budget: Budget
) -> list[float]:
    """Train body and head on a stream of words (tokens,); the loss, averaged over each of 50 spans.

    Nothing in the loop waits for the device.
    """
    parameters = [*body.parameters(), *head.parameters()]
    classes, features = body.embedding.num_embeddings, _width(head, body)
    rows = [p for p in head.parameters() if p.shape[:1] == (classes,)]
    others = [p for p in parameters if not any(p is row for row in rows)]
    groups = [
        {"params": others, "lr": budget.rate},
        {"params": rows, "lr": budget.row_rate / features},
    ]
    optimiser = torch.optim.AdamW(
        groups, weight_decay=1e-4, fused=stream.is_cuda, betas=(0.9, 0.99)
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate(step, budget))
    columns = streams(stream, budget.batch)
    state: State = None
    losses = torch.zeros(budget.steps, device=stream.device)
    body.train()
    head.train()
    for step, (words, following, first) in zip(
        range(budget.steps), _forever(columns, budget.length), strict=False
    ):
        state = None if first or state is None else _detached(state)
        hidden, state = body(words, state)
        loss = objective(hidden.flatten(0, 1), words, following)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, budget.clip)
        optimiser.step()
        schedule.step()
        losses[step] = loss.detach()
    spans = np.array_split(losses.double().cpu().numpy(), min(50, budget.steps))
    return [round(float(span.mean()), 4) for span in spans]


def _width(head: nn.Module, body: Body) -> int:
    """How many features a class's row has."""
    classes = body.embedding.num_embeddings
    return max(p.shape[1] for p in head.parameters() if p.ndim == 2 and len(p) == classes)


def hidden_states(body: Body, stream: Tensor, batch: int = 16, length: int = 512) -> Iterator:
    """Pairs (hidden states (N, d), next words (N,)) over a stream, in order within each column."""
    body.eval()
    columns = streams(stream, batch)
    state: State = None
    with torch.no_grad():
        for words, following, _ in _pass(columns, length):
            hidden, state = body(words, state)
            yield hidden.flatten(0, 1), following.flatten()


def streams(stream: Tensor, batch: int) -> Tensor:
    """The text as so many equal columns (tokens // batch, batch); what is left over is dropped."""
    rows = len(stream) // batch
    return stream[: rows * batch].view(batch, rows).t().contiguous()


def _pass(columns: Tensor, length: int) -> Iterator[tuple[Tensor, Tensor, bool]]:
    for start in range(0, len(columns) - 1, length):
        stop = min(start + length, len(columns) - 1)
        yield columns[start:stop], columns[start + 1 : stop + 1], start == 0


def _forever(columns: Tensor, length: int) -> Iterator[tuple[Tensor, Tensor, bool]]:
    while True:
        yield from _pass(columns, length)


def _detached(state: State) -> State:
    assert state is not None
    (h1, c1), (h2, c2) = state
    return (h1.detach(), c1.detach()), (h2.detach(), c2.detach())


def _rate(step: int, budget: Budget) -> float:
    if step < budget.warm_up:
        return (step + 1) / budget.warm_up
    done = (step - budget.warm_up) / max(1, budget.steps - budget.warm_up)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
