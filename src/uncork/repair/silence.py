"""Silence: rows that must never be first (padding, reserved tokens) made unable to be, proven.

A class t stays below the others wherever its plane z_t lies below their surface. How far it has to
sink for that is a linear programme that `reach.surface` solves for classes that have to rise,

    δ_t  =  min over u of  max_i z_i(u) − z_t(u),   i over the classes that may be said,

and here δ_t is below zero where t stands above. With b_t lowered by slack − δ_t a mixture of the
others beats t by the slack at every input of the domain. The slack is what the model's own type may
round away at the input where t comes nearest (`margin`). Mixtures are of classes that may be said
alone: two silenced ones do not keep each other down. No other class loses anything, because every
logit that was lowered was a rival.

On an infinite domain a row that points further than all others in some direction wins far out,
whatever its bias. What is found for it there is refused by the proof, and only a mask silences it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uncork.auditing.backend import Backend
from uncork.core.class_ids import class_ids
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.progress import Progress, progress_bar
from uncork.reach.limits import check_sizes
from uncork.reach.searched_head import SearchedHead
from uncork.reach.surface import Surface, depths
from uncork.repair.margin import allowance, check_margin
from uncork.repair.proven import bias_type


@dataclass(frozen=True)
class Silence:
    """A new bias, and what it does to each class that was to be silenced."""

    weight: np.ndarray  # (C, d), as it was
    bias: np.ndarray  # (C,) float64, exact in the type that is stored
    classes: np.ndarray  # (n,) those to be silenced
    lowered: np.ndarray  # (n,) by how much, 0 for those that lie below the others anyway
    nearest: np.ndarray  # (n, d): where each comes nearest to being first

    def head(self, like: Head) -> Head:
        """The changed head, with labels and domain of the one it came from."""
        return like.replace(bias=self.bias.astype(bias_type(like)))


def silenced(
    head: Head,
    classes: Sequence[int] | np.ndarray,
    *,
    margin: float | None = None,
    jobs: int | None = None,
    progress: bool | Progress = False,
) -> Silence:
    """Biases, lowered for the classes named, with which none of these is ever first.

    margin  by how much they are to stay behind, in logits; None: by what the head's own type may
            round away

    What comes back is a proposal: `uncork.audit` of the changed head proves it.
    """
    check_margin(margin)
    check_sizes(head)
    silent = np.unique(class_ids(head.classes, classes))
    if len(silent) == head.classes:
        raise UncorkError("every class is to be silenced: one has to be first")
    backend = Backend(jobs)
    searched = SearchedHead(head, head.domain, backend)
    others = np.setdiff1d(np.arange(head.classes), silent)
    with progress_bar(progress) as bar, np.errstate(all="ignore"):
        bar.stage("silencing", len(silent))
        surface = Surface(searched, others)
        found = depths(surface, silent, backend.jobs, bar, above=True)
    if not np.isfinite(found.depth).all():
        raise UncorkError("no bias was found that silences these classes: write a mask")
    nearest = head.domain.affine(head.features).image(found.inputs)
    slack = allowance(head, head.offsets, silent, nearest, margin)
    lowered = np.maximum(slack - found.depth, 0.0)
    bias = head.offsets.copy()
    bias[silent] = _stored_below(bias[silent] - lowered, bias_type(head), lowered > 0)
    return Silence(head.weight, bias, silent, head.offsets[silent] - bias[silent], nearest)


def _stored_below(wanted: np.ndarray, kind: np.dtype, changed: np.ndarray) -> np.ndarray:
    """The largest value of the stored type that is no more than what is wanted: (n,)."""
    stored = wanted.astype(kind)
    above = changed & (stored.astype(np.float64) > wanted)
    stored[above] = np.nextafter(stored[above], np.array(-np.inf, dtype=kind))
    result = stored.astype(np.float64)
    if not np.isfinite(result).all():
        raise UncorkError(
            f"the biases that silence these classes do not fit into {kind}: give a smaller "
            "--domain, or write a mask (-o FILE.json)"
        )
    return np.where(changed, result, wanted)
