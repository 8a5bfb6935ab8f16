"""What is measured on a trained model: accuracy, zeros, Σp, the empty translation."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from translation import data
from translation.data import BOS, EOS, PAD
from translation.model import Translator
from translation.outputs import Loss, Scores

Tensor = torch.Tensor
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
SUM_EDGES = np.linspace(0, 3, 61)  # of Σp, for a histogram; what lies beyond counts as the last


@dataclass(frozen=True)
class Spread:
    """A quantity over positions: its mean, quantiles, and a histogram if edges were given."""

    mean: float
    quantiles: tuple[float, ...]
    histogram: tuple[int, ...] | None = None

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = {"mean": self.mean, "quantiles": list(self.quantiles)}
        return found if self.histogram is None else found | {"histogram": list(self.histogram)}


def spread(values: Tensor, edges: np.ndarray | None = None) -> Spread:
    array = values.double().cpu().numpy()
    counts = None
    if edges is not None:
        clipped = np.clip(array, edges[0], edges[-1])
        counts = tuple(int(c) for c in np.histogram(clipped, edges)[0])
    return Spread(float(array.mean()), tuple(map(float, np.quantile(array, QUANTILES))), counts)


def on_device(
    model: Translator, part: tuple[np.ndarray, np.ndarray], tokens: int
) -> list[tuple[np.ndarray, Tensor, Tensor]]:
    """A part's batches, sorted by length: (rows, source, target)."""
    device = model.head.weight.device
    order, batches = data.batches(data.lengths(part[0]), data.lengths(part[1]), tokens)
    found = []
    for batch in batches:
        rows = order[batch.rows]
        source = torch.from_numpy(part[0][rows, : batch.source_length].astype(np.int64))
        target = torch.from_numpy(part[1][rows, : batch.target_length].astype(np.int64))
        found.append((rows, source.to(device), target.to(device)))
    return found


@torch.no_grad()
def evaluate(
    model: Translator,
    part: tuple[np.ndarray, np.ndarray],
    loss: Loss,
    probabilities: Callable[[Tensor], Tensor],
    tokens: int = 8192,
) -> dict[str, Any]:
    """On references, each word given those before it: loss, accuracy, support, Σp."""
    losses, right, supports, sums, targets = [], [], [], [], []
    for _, source, target in on_device(model, part, tokens):
        logits, wanted = model(source, target[:, :-1]).float(), target[:, 1:]
        counts = wanted != PAD
        losses.append(loss(logits.flatten(0, 1), wanted.flatten()) * counts.sum())
        p = probabilities(logits)
        right.append((logits.argmax(-1) == wanted)[counts])
        supports.append((p > 0).sum(-1)[counts])
        sums.append(p.sum(-1)[counts])
        targets.append(p.gather(-1, wanted[:, :, None])[:, :, 0][counts] == 0)
    count = sum(len(r) for r in right)
    return {
        "loss": float(torch.stack(losses).sum()) / count,
        "accuracy": float(torch.cat(right).float().mean()),
        "support": spread(torch.cat(supports)),
        "sum": spread(torch.cat(sums), SUM_EDGES),
        "target_impossible": float(torch.cat(targets).float().mean()),
    }


@torch.no_grad()
def score(
    model: Translator, log_scores: Scores, part: tuple[np.ndarray, np.ndarray], tokens: int = 8192
) -> np.ndarray:
    """Each target's log score given its source (N): the sum over its words and the EOS."""
    scores = np.zeros(len(part[0]), np.float64)
    for rows, source, target in on_device(model, part, tokens):
        words, wanted = target[:, :-1], target[:, 1:]
        found = log_scores(model(source, words).float()).gather(-1, wanted[:, :, None])[:, :, 0]
        scores[rows] = found.masked_fill(wanted == PAD, 0).double().sum(1).cpu().numpy()
    return scores


def as_targets(tokens: np.ndarray) -> np.ndarray:
    """Translations as found (no BOS) in the form of a part's targets."""
    return np.concatenate((np.full((len(tokens), 1), BOS, tokens.dtype), tokens), 1)


def empty_targets(count: int) -> np.ndarray:
    return np.tile(np.array([BOS, EOS], np.int16), (count, 1))


def empty_against(
    model: Translator, log_scores: Scores, source: np.ndarray, tokens: np.ndarray
) -> dict[str, Any]:
    """How often the empty translation scores above the one found, and how often it is impossible.

    Both are scored in the same way, word by word, so nothing hangs on what the search kept.
    """
    found = score(model, log_scores, (source, as_targets(tokens)))
    empty = score(model, log_scores, (source, empty_targets(len(source))))
    lengths = (source != PAD).sum(1) - 1
    above = empty > found
    edges = [1, 6, 11, 16, 21, 1000]
    return {
        "share_above": float(above.mean()),
        "share_impossible": float(np.isneginf(empty).mean()),
        "median_empty": _number(np.median(empty)),
        "largest_empty": _number(empty.max()),
        "median_found": _number(np.median(found)),
        "by_source_length": [
            {
                "from": low,
                "below": high,
                "sentences": int(((lengths >= low) & (lengths < high)).sum()),
                "above": int(above[(lengths >= low) & (lengths < high)].sum()),
            }
            for low, high in itertools.pairwise(edges)
        ],
    }


def _number(value: float) -> float | None:
    """JSON has no infinities."""
    return float(value) if np.isfinite(value) else None
