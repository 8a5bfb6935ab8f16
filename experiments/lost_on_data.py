"""Lost classes on data: how often they come first, how near the top they get, next to others.

What experiments on recorded scores share. Lost classes cannot come first, which is proven; what
they are compared with says whether that proof or something else keeps them away: argmaxable classes
whose rows are as short, and all argmaxable classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from uncork import Head


def lengths(head: Head) -> np.ndarray:
    """Lengths of the rows, measured from their mean: what all classes share changes no order."""
    rows = np.asarray(head.weight, dtype=np.float64)
    return np.asarray(np.linalg.norm(rows - rows.mean(axis=0), axis=1))


def as_short(head: Head, lost: np.ndarray) -> np.ndarray:
    """As many argmaxable classes as are lost, those with the shortest rows: ids, ascending."""
    others = np.setdiff1d(np.arange(head.classes), lost)
    return np.sort(others[np.argsort(lengths(head)[others], kind="stable")[: len(lost)]])


def best_ranks(logits: np.ndarray) -> np.ndarray:
    """The best rank of every class over all rows (n, C); 1 is the first place."""
    best = np.full(logits.shape[1], logits.shape[1])
    for block in np.array_split(logits, max(1, len(logits) // 500)):
        order = np.argsort(-block, axis=1, kind="stable")
        places = np.empty_like(order)
        np.put_along_axis(places, order, np.arange(1, logits.shape[1] + 1)[None], axis=1)
        best = np.minimum(best, places.min(axis=0))
    return best


def places(
    logits: np.ndarray, head: Head, lost: np.ndarray, more: dict[str, np.ndarray] | None = None
) -> dict[str, Any]:
    """First places, best ranks, logits behind the first and probabilities, by groups of classes.

    logits (n, C)   as the model gave them, on n inputs
    more            further groups: ids by title
    """
    wins = np.bincount(logits.argmax(1), minlength=head.classes)
    largest = logits.max(axis=1, keepdims=True)
    odds = np.exp(logits - largest)
    shares = odds / odds.sum(axis=1, keepdims=True)
    ranks, behind, long = best_ranks(logits), (largest - logits).min(axis=0), lengths(head)
    groups = {
        "lost": lost, "as short": as_short(head, lost), **(more or {}),
        "all others": np.setdiff1d(np.arange(head.classes), lost),
    }  # fmt: skip
    return {
        title: {
            "classes": len(ids),
            "first_once": int((wins[ids] > 0).sum()),
            "first": int(wins[ids].sum()),
            "best_rank": [int(v) for v in np.quantile(ranks[ids], [0, 0.5, 1])],
            "behind": [round(float(v), 2) for v in np.quantile(behind[ids], [0, 0.5, 1])],
            "probability_in_all": float(f"{shares[:, ids].sum(axis=1).mean():.3g}"),
            "highest_probability": float(f"{shares[:, ids].max():.3g}"),
            "length": round(float(np.median(long[ids])), 3),
        }
        for title, ids in groups.items()
        if len(ids)
    }


def print_places(found: dict[str, Any]) -> None:
    """The groups as lines of a table."""
    print(f"{'classes':<14} {'number':>6} {'first once':>10} {'best rank':>16} {'behind':>20} "
          f"{'highest p':>9} {'length':>6}")  # fmt: skip
    for title, one in found.items():
        rank, behind = ("–".join(map(str, one[key])) for key in ("best_rank", "behind"))
        print(f"{title:<14} {one['classes']:>6} {one['first_once']:>10} {rank:>16} {behind:>20} "
              f"{one['highest_probability']:>9} {one['length']:>6}")  # fmt: skip
