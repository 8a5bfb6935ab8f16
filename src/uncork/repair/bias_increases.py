"""How far each class lies below the surface of the others, proven from both sides.

From below by the mixture that shows it, from above by an input at which that much is enough:
`bias_needed` for a user, and what `repair` builds on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.auditing import Audit, Verdict
from uncork.auditing import audit as make_audit
from uncork.auditing.backend import Backend
from uncork.auditing.certify.certifier import Certifier
from uncork.core.class_ids import class_ids
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.progress import Progress, ProgressBar
from uncork.domain import Domain
from uncork.reach.limits import check_sizes
from uncork.reach.searched_head import View
from uncork.repair.surface import Depths, Surface, depths, proven_leads


@dataclass(frozen=True)
class BiasNeeded:
    """For each class, proven: its bias alone has to be raised by `lower` at least; by any more than
    `upper` it is argmaxable, at `inputs`. Zero for classes that are argmaxable already.

    As an array it is `upper`.
    """

    classes: np.ndarray  # (n,)
    lower: np.ndarray  # (n,)
    upper: np.ndarray  # (n,)
    inputs: np.ndarray  # (n, latent)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.upper, dtype=dtype)


def bias_needed(
    head: Head,
    classes: Sequence[int] | np.ndarray,
    *,
    audit: Audit | None = None,
    domain: Domain | None = None,
    jobs: int | None = None,
    progress: bool | Progress = False,
    stop: Callable[[], bool] = bool,
) -> BiasNeeded:
    """The least raise of each class's own bias, the others as they are, that makes it argmaxable.

    An `audit` of the head is made unless given. `stop` is asked between classes: those not solved
    for by then have a `lower` of 0, and an `upper` that is infinite or larger than it need be.
    """
    head = head if domain is None else head.replace(domain=domain)
    asked = class_ids(head.classes, classes)
    check_sizes(head)
    known = audit_of(head, audit, jobs)
    backend = Backend(jobs)
    view = View(head, head.domain, backend)
    verdicts = known.proofs.verdicts
    below = asked[(verdicts[asked] == Verdict.UNARGMAXABLE) | (verdicts[asked] == 0)]
    carriers = np.flatnonzero((verdicts != Verdict.UNARGMAXABLE) & (verdicts != 0))
    shown = bar(progress)
    with shown, np.errstate(all="ignore"):
        shown.stage("repair", len(below))
        surface = Surface(view, carriers)
        found = depths(surface, np.unique(below), backend.jobs, shown, stop)
        lower = certified_depths(head, surface, found, np.arange(len(found.classes)), backend)
        upper = certified_raises(head, found, backend)
    place = {int(t): k for k, t in enumerate(found.classes)}
    result = BiasNeeded(
        asked, np.zeros(len(asked)), np.zeros(len(asked)), np.full((len(asked), view.width), np.nan)
    )
    for k, t in enumerate(asked.tolist()):
        if t in place:
            at = place[t]
            result.lower[k], result.upper[k] = lower[at], upper[at]
            result.inputs[k] = found.inputs[at]
    return result


def certified_depths(
    head: Head, surface: Surface, found: Depths, which: np.ndarray, backend: Backend
) -> np.ndarray:
    """Proven lower bounds on the depth of some of the classes: (n,), 0 where nothing is proven."""
    lower = np.zeros(len(which))
    places, proposals = [], []
    for place, k in enumerate(which.tolist()):
        mixture = found.mixtures[k]
        if mixture is not None and found.raises[k] > surface.close:
            places.append(place)
            proposals.append((int(found.classes[k]), mixture))
    proven = proven_leads(Certifier(head, head.domain, backend), surface, proposals)
    lower[places] = [lead if lead > 0 else 0.0 for _, lead in proven]
    return lower


def certified_raises(head: Head, found: Depths, backend: Backend) -> np.ndarray:
    """Proven upper bounds on the raise that lets each class touch at its input: (n,), infinite
    where there is none. All classes are looked at there, not those of the surface alone."""
    certifier = Certifier(head, head.domain, backend)
    upper = np.full(len(found.classes), np.inf)
    step = backend.inputs
    for start in range(0, len(upper), step):
        part = slice(start, start + step)
        x, drift, inside = certifier.seen(backend.put(found.inputs[part]))
        own, rivals = certifier.products.own_and_rivals(found.classes[part], x, drift, {}, False)
        missing = np.maximum((rivals - own) * (1 + 2.0**-50), 0.0)
        upper[part] = np.where(inside & ~np.isnan(missing), missing, np.inf)
    return upper


def audit_of(
    head: Head,
    known: Audit | None,
    jobs: int | None,
    device: str = "auto",
    shown: Progress | None = None,
) -> Audit:
    """The audit given, if it is of all classes of this head; otherwise a new one."""
    if known is None:
        return make_audit(head, device=device, jobs=jobs, progress=shown or False)
    if known.fingerprint != head.fingerprint or known.domain != head.domain:
        raise UncorkError("the audit is of another head or another domain: make one of this head")
    if known.asked is not None and len(known.asked) < head.classes:
        # Classes that were not asked about may carry the surface that others have to reach.
        raise UncorkError("the audit is of some classes only: make one of all of them")
    return known


def bar(progress: bool | Progress) -> Progress:
    """What `progress=` asks for."""
    if isinstance(progress, Progress):
        return progress
    return ProgressBar() if progress else Progress()
