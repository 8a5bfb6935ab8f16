"""Hidden states that put a class first, by gradient ascent on log P(t) − max log P(others).

Nothing here proves that there is none. What is found is checked in float64, by a margin far beyond
its rounding, inside the domain.
"""

from __future__ import annotations

import copy
import math
import time
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.domain import Ball, Box, Domain, Unbounded
from uncork.nn._torch import torch
from uncork.nn.heads.base import OutputHead

Tensor = torch.Tensor

MARGIN = 1e-6  # in log-probability, float64: rounding is a million times smaller
_ELEMENTS = 1 << 23  # log-probabilities at a time
_TRIED = 4096  # random hidden states in a round before the search
_MOST_TRIED = 8  # rounds, as long as classes are left
_MOST_SCORES = 1 << 32  # made in these rounds together


def search(
    head: OutputHead,
    classes: np.ndarray,
    domain: Domain,
    hidden: Tensor | None,
    steps: int,
    restarts: int,
    seed: int,
    time_limit: float | None = None,
) -> dict[int, np.ndarray]:
    """A hidden state (features,) float64 for each class that one was found for."""
    if not len(classes):
        return {}
    ends = math.inf if time_limit is None else time.monotonic() + time_limit
    exact = copy.deepcopy(head).double().eval().requires_grad_(False)
    found: dict[int, np.ndarray] = {}
    device = exact.weight.device
    generator = torch.Generator().manual_seed(seed)
    asked = set(classes.tolist())
    nearest = _Nearest(exact, classes)
    rounds = max(1, min(_MOST_TRIED, _MOST_SCORES // (_TRIED * head.classes)))
    for number in range(rounds):
        # Among many states some are near; the rounds go on from small to large ones.
        scales = torch.logspace(-1, 1 + number % 3, _TRIED).unsqueeze(1)
        tried = torch.randn(_TRIED, head.features, generator=generator).double() * scales
        if number == 0 and hidden is not None:
            given = hidden.detach().reshape(-1, head.features).cpu().double()
            tried = torch.cat([tried, given])
        for rows in tried.split(256):
            if time.monotonic() > ends:
                return found
            rows = project(rows.to(device), domain)
            _record(exact, rows, nearest.look(rows), domain, asked, found)
        if len(found) == len(asked):
            return found
    for attempt in range(restarts + 1):
        left = np.setdiff1d(classes, list(found))
        size = max(1, _ELEMENTS // head.classes)
        for start in range(0, len(left), size):
            if time.monotonic() > ends:
                return found
            target = torch.from_numpy(left[start : start + size]).to(device)
            # The first ascent begins where the class came nearest.
            first = _first(exact, target, attempt - 1, generator) if attempt else nearest.of(target)
            _ascend(exact, first, target, domain, steps, asked, found)
    return found


class _Nearest:
    """The hidden state of those looked at where each class is least behind the first."""

    def __init__(self, head: OutputHead, classes: np.ndarray) -> None:
        self.head = head
        self.classes = torch.from_numpy(classes).to(head.weight.device)
        self.behind = torch.full((len(classes),), math.inf, dtype=torch.float64)
        self.behind = self.behind.to(head.weight.device)
        self.rows = head.weight.new_zeros(len(classes), head.features)

    @torch.no_grad()
    def look(self, rows: Tensor) -> Tensor:
        """Look at rows (N, features); returns the class that is first at each: (N,)."""
        scores = self.head.log_probabilities(rows)  # (N, C)
        top = scores.max(1)
        behind, at = (top.values[:, None] - scores[:, self.classes]).min(0)
        closer = behind < self.behind
        self.behind[closer], self.rows[closer] = behind[closer], rows[at[closer]]
        return top.indices

    def of(self, target: Tensor) -> Tensor:
        return self.rows[torch.searchsorted(self.classes, target)].clone()


def _ascend(
    head: OutputHead,
    first: Tensor,
    target: Tensor,
    domain: Domain,
    steps: int,
    asked: set[int],
    found: dict[int, np.ndarray],
) -> None:
    rows = project(first, domain).requires_grad_()
    optimiser = torch.optim.Adam([rows], lr=0.1 * float(rows.detach().abs().mean()) + 1e-3)
    for _ in range(steps):
        with torch.enable_grad():
            margins = margin(head.log_probabilities(rows), target)
            optimiser.zero_grad()
            (-margins.sum()).backward()
        _record(head, rows.detach(), target, domain, asked, found)
        if bool((margins > MARGIN).all()):
            return
        optimiser.step()
        with torch.no_grad():
            rows.copy_(project(rows, domain))


def margin(log_probabilities: Tensor, target: Tensor) -> Tensor:
    """log P(target) − max over the others, (N)."""
    own = log_probabilities.gather(1, target.unsqueeze(1))
    others = log_probabilities.scatter(1, target.unsqueeze(1), -torch.inf)
    return own.squeeze(1) - others.amax(1)


def _record(
    head: OutputHead,
    rows: Tensor,
    target: Tensor,
    domain: Domain,
    asked: set[int],
    found: dict[int, np.ndarray],
) -> None:
    """Keep the rows that do put their class first."""
    with torch.no_grad():
        wins = margin(head.log_probabilities(rows), target) > MARGIN
    if not bool(wins.any()):
        return
    values = rows[wins].cpu().numpy()
    inside = domain.contains(values)
    for t, row, held in zip(target[wins].tolist(), values, inside, strict=True):
        if held and t in asked:
            found.setdefault(t, row)


def _first(head: Any, target: Tensor, attempt: int, generator: torch.Generator) -> Tensor:
    """Hidden states whose contexts point along the class's row, all of them or (later attempts)
    one of them, as far as the projections allow."""
    centred = head.weight[target] - head.weight.mean(0)
    wanted = 2 * centred / centred.abs().amax(1, keepdim=True).clamp_min(1e-30)  # (N, e)
    projection = head.projection if hasattr(head, "projection") else head.contexts.projection
    weight = projection.weight.reshape(head.components, head.embedding, -1)
    offset = projection.bias.reshape(head.components, head.embedding)
    if attempt == 0:
        chosen = torch.arange(head.components)
    else:
        chosen = torch.randint(head.components, (1,), generator=generator)
    matrix = weight[chosen].reshape(-1, head.features)  # (k·e, d)
    values = (wanted.unsqueeze(1) - offset[chosen]).reshape(len(target), -1)
    rows = values @ torch.linalg.pinv(matrix).T
    noise = torch.randn(rows.shape, generator=generator, dtype=rows.dtype).to(rows.device)
    return rows + 0.3 * attempt * rows.std().nan_to_num(1.0).clamp_min(1e-3) * noise


def project(rows: Tensor, domain: Domain) -> Tensor:
    """The nearest hidden states of the domain."""
    if isinstance(domain, Unbounded):
        return rows
    if isinstance(domain, Box):
        lower, upper = (torch.tensor(one).to(rows) for one in domain.bounds(rows.shape[-1]))
        return rows.clamp(lower, upper)
    if isinstance(domain, Ball):
        length = rows.norm(dim=-1, keepdim=True).clamp_min(1e-30)
        return rows * (float(domain.outer) * (1 - 1e-9) / length).clamp(max=1.0)
    raise UncorkError(f"a search needs a box, a ball or the unbounded domain, not {domain}")
