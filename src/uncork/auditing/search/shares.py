"""Deciding classes where inputs are mixtures of given points: a linear programme in their shares.

    max r   s.t.   (w_i − w_t)·x + b_i − b_t + n_i r ≤ 0 for the classes considered,
                   x = M u + c,   u ≥ 0,   Σ u ≤ 1            (n_i = ‖w_i − w_t‖)

All classes are priced at the solution and the worst offenders added. A positive r proposes the
input, and the duals of one that is not the mixture. For other domains this proposes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from uncork.auditing.proofs.verdict import Mixture
from uncork.auditing.search.proposer import Mixtures, Proposal, Proposer, Search, Witnesses
from uncork.auditing.search.space import Space
from uncork.core.head import Head
from uncork.domain.affine import Affine

_ROUNDS = 60
_ADDED = 24
_BLOCK = 8192


def propose(space: Space, classes: np.ndarray, search: Search) -> Iterator[Proposal]:
    view = search.domain.affine(search.head.features)
    if not view.base.outline(view.latent).has_total:
        return
    programme = _Programme(search.head, view)
    for t in classes.tolist():
        if search.late():
            return
        u, mixture = programme.decide(t)
        if u is not None:
            yield Witnesses(np.array([t]), view.base.pulled_in(u)[None])
        elif mixture is not None:
            yield Mixtures([(t, mixture)])


PROPOSER = Proposer("shares", "decide", propose)


class _Programme:
    def __init__(self, head: Head, view: Affine) -> None:
        self.head, self.view = head, view
        self.matrix, self.offset = view.parts()  # (d, latent), (d,)

    def decide(self, t: int) -> tuple[np.ndarray | None, Mixture | None]:
        """u that should win, or a mixture that should beat t; or neither."""
        from scipy.optimize import linprog

        head, latent = self.head, self.view.latent
        own = head.rows(t, t + 1)[0]
        working = self._above(t, np.full(latent, 1 / (latent + 1)), np.array([t]))
        if not len(working):
            return np.full(latent, 1 / (latent + 1)), None
        for _ in range(_ROUNDS):
            away = head.take(working) - own
            lengths = np.maximum(np.linalg.norm(away, axis=1), 1e-300)
            constants = away @ self.offset + head.offsets[working] - head.offsets[t]
            rows = np.column_stack([away @ self.matrix, lengths])
            whole = np.append(np.ones(latent), 0.0)
            solved = linprog(
                np.append(np.zeros(latent), -1.0), A_ub=np.vstack([rows, whole]),
                b_ub=np.append(-constants, 1.0), bounds=[(0, None)] * latent + [(None, None)],
                method="highs",
            )  # fmt: skip
            if solved.status != 0:
                return None, None
            if not solved.x[-1] > 1e-11:
                duals = np.maximum(-solved.ineqlin.marginals[:-1], 0.0)
                return None, _mixture(working, duals)
            above = self._above(t, solved.x[:-1], np.append(working, t))
            if not len(above):
                return np.asarray(solved.x[:-1]), None
            working = np.concatenate([working, above])
        return None, None

    def _above(self, t: int, u: np.ndarray, known: np.ndarray) -> np.ndarray:
        """The classes not known yet that are furthest above t at u."""
        x = self.matrix @ u + self.offset
        parts = [block @ x for _, block in self.head.blocks(_BLOCK)]
        z = np.concatenate(parts) + self.head.offsets
        lead = z - z[t]
        lead[known] = -np.inf
        best = np.argpartition(-lead, min(_ADDED, len(lead) - 1))[:_ADDED]
        return np.asarray(best[lead[best] >= 0])


def _mixture(classes: np.ndarray, duals: np.ndarray) -> Mixture | None:
    used = np.flatnonzero(duals > 1e-12 * duals.max(initial=0.0))
    if not len(used):
        return None
    used = used[np.argsort(classes[used])]
    return Mixture(classes[used].astype(np.int32), duals[used] / duals[used].sum())
