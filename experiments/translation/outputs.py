"""The four outputs compared: each a loss to train with and scores to decode with.

A dictionary a name. `τ` matters to α-ReLU only; the others ignore it. The existing software (the
entmax package) stands beside ours for timing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import uncork.nn.functional as F
from translation.data import PAD
from uncork.core.errors import UncorkError

Tensor = torch.Tensor
Loss = Callable[[Tensor, Tensor], Tensor]  # logits (N, V) float32, targets (N) -> ()
Scores = Callable[[Tensor], Tensor]  # logits (..., V) -> log scores
Best = Callable[[Tensor, int], tuple[Tensor, Tensor]]  # logits (N, V), k -> scores, units (N, k)

OUTPUTS = ("softmax", "sparsemax", "entmax", "alpha_relu")
TITLES = {
    "softmax": "softmax",
    "sparsemax": "sparsemax",
    "entmax": "1.5-entmax",
    "alpha_relu": "1.5-ReLU",
}
PEERS = ("entmax package: sparsemax", "entmax package: 1.5-entmax")


def loss_function(output: str, tau: float = 0.0) -> Loss:
    """The loss of one output, padding left out."""
    losses: dict[str, Loss] = {
        "softmax": lambda z, y: torch.nn.functional.cross_entropy(z, y, ignore_index=PAD),
        "sparsemax": lambda z, y: F.sparsemax_loss(z, y, ignore_index=PAD),
        "entmax": lambda z, y: F.entmax_loss(z, y, alpha=1.5, ignore_index=PAD),
        "alpha_relu": lambda z, y: F.alpha_relu_loss(z, y, alpha=1.5, tau=tau, ignore_index=PAD),
    }
    return _chosen(losses, output)


def peer_loss_function(peer: str, k: int | None = None) -> Loss:
    """The entmax package's losses. `k`: how many logits it sorts first, None for all."""
    try:
        import entmax  # type: ignore[import-untyped]
    except ImportError as error:
        raise UncorkError("timing the existing software needs `pip install entmax`") from error
    kinds = {PEERS[0]: entmax.SparsemaxLoss, PEERS[1]: entmax.Entmax15Loss}
    return _chosen(kinds, peer)(k=k, ignore_index=PAD)


def probabilities(output: str, tau: float = 0.0) -> Callable[[Tensor], Tensor]:
    """p as the output defines it; α-ReLU's is not normalised."""
    transforms: dict[str, Callable[[Tensor], Tensor]] = {
        "softmax": lambda z: torch.softmax(z, -1),
        "sparsemax": lambda z: F.sparsemax(z),
        "entmax": lambda z: F.entmax(z, 1.5),
        "alpha_relu": lambda z: F.alpha_relu(z, 1.5, tau),
    }
    return _chosen(transforms, output)


def log_scores(output: str, tau: float = 0.0) -> Scores:
    """What a beam adds up: log p, and for α-ReLU log(p/Σp)."""
    scores: dict[str, Scores] = {
        "softmax": lambda z: torch.log_softmax(z, -1),
        "sparsemax": lambda z: F.log_sparsemax(z),
        "entmax": lambda z: F.log_entmax(z, 1.5),
        "alpha_relu": lambda z: F.alpha_relu_log_scores(z, 1.5, tau),
    }
    return _chosen(scores, output)


def best_scores(output: str, tau: float = 0.0) -> Best:
    """The k largest of the same and their units: all that a step of beam search looks at."""
    best: dict[str, Best] = {
        "softmax": lambda z, k: torch.log_softmax(z, -1).topk(k),
        "sparsemax": lambda z, k: F.log_entmax_topk(z, k, 2.0),
        "entmax": lambda z, k: F.log_entmax_topk(z, k, 1.5),
        "alpha_relu": lambda z, k: F.log_alpha_relu_topk(z, k, 1.5, tau),
    }
    return _chosen(best, output)


def raw_log_scores(output: str, tau: float = 0.0) -> Scores:
    """log p without α-ReLU's normalisation, to see what it changes."""
    p = probabilities(output, tau)
    return lambda z: p(z).log()


def peer_best_scores(peer: str) -> Best:
    """The k largest log p by the entmax package."""
    import entmax

    kinds = {PEERS[0]: entmax.sparsemax, PEERS[1]: entmax.entmax15}
    transform = _chosen(kinds, peer)
    return lambda z, k: transform(z, dim=-1).log().topk(k)


def _chosen(table: dict[str, Any], name: str) -> Any:
    if name not in table:
        raise UncorkError(f"no output {name!r}; there are {', '.join(table)}")
    return table[name]
