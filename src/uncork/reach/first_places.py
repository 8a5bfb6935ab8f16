"""Which classes are ever among the first k: for every class of an audit, and several k.

A class that can be first is among the first k for every k. For the others an input is sought at
which few are above: the class's own whitened row, moved away from those that are, all classes at
once; the count there is proven. Those that it leaves beyond some k are asked about one by one
(`rank`), up to a limit; the rest stay open, and are counted as that. Notes say why.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uncork.auditing.backend import Backend, choose_backend
from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.duplicates import equal_classes
from uncork.auditing.result import Audit
from uncork.auditing.run import check_time_limit
from uncork.auditing.search.space import Space
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.progress import Progress, progress_bar
from uncork.domain import Domain
from uncork.reach.bounds.rank import ranks_at
from uncork.reach.outlooks import Outlook
from uncork.reach.rank import BestRank, Interrupted, best_rank

_STEPS = 12
_BYTES = 64 << 20
_NOW = 1e-6  # seconds: what is left of a limit that has passed
MOST_ASKED = 500  # classes asked about one by one


@dataclass(frozen=True)
class FirstPlaces:
    """Bounds on the best rank of the classes that cannot be first."""

    places: tuple[int, ...]
    first: int  # classes that can be first, alone or with their equals
    classes: np.ndarray  # (n,) those that cannot
    lower: np.ndarray  # (n,)
    upper: np.ndarray  # (n,)
    notes: tuple[str, ...] = ()  # why some stay open, where a limit or Ctrl-C is the reason
    interrupted: bool = False

    def never(self, k: int) -> np.ndarray:
        """The classes proven never to be among the first k."""
        return self.classes[self.lower > k]

    def ever(self, k: int) -> int:
        """How many classes are proven to be among the first k somewhere."""
        return self.first + int((self.upper <= k).sum())

    def open(self, k: int) -> int:
        return int(((self.lower <= k) & (self.upper > k)).sum())

    def outlook(self, head: Head, domain: Domain, near: Outlook | None = None) -> Outlook:
        """The bounds as a report takes them, with what is known besides of the same classes."""
        if near is None:
            near = Outlook(self.classes, fingerprint=head.fingerprint, domain=str(domain))
        return near.with_ranks(self.lower, self.upper)

    def as_dict(self) -> dict[str, object]:
        return {
            str(k): {"never": self.never(k).tolist(), "ever": self.ever(k), "open": self.open(k)}
            for k in self.places
        }


def first_places(
    head: Head,
    audit: Audit,
    places: Sequence[int],
    *,
    jobs: int | None = None,
    time_limit: float | None = None,
    progress: bool | Progress = False,
    most_asked: int = MOST_ASKED,
) -> FirstPlaces:
    """Say of every class that an audit decided whether it is ever among the first k. Ctrl-C ends
    the work, as does the time limit (seconds), and the bounds until then are what is returned."""
    check_time_limit(time_limit)
    until = None if time_limit is None else time.monotonic() + time_limit
    if not places or min(places) < 1:
        raise UncorkError("places are counted from one: give one or more of them")
    lost = audit.unargmaxable
    wanted = tuple(sorted(set(places)))
    first = len(audit.argmaxable) + len(audit.tied)
    lower = np.full(len(lost), 2, dtype=np.int64)
    upper = np.full(len(lost), head.classes, dtype=np.int64)
    if not len(lost):
        return FirstPlaces(wanted, first, lost, lower, upper)
    notes: list[str] = []
    interrupted = False
    with progress_bar(progress) as bar, np.errstate(all="ignore"):
        try:
            notes += _bound(head, audit, wanted, (lower, upper), jobs, until, most_asked, bar)
        except KeyboardInterrupt:
            interrupted = True
            notes.append("interrupted: these are the bounds until then")
    return FirstPlaces(wanted, first, lost, lower, upper, tuple(notes), interrupted)


def _bound(
    head: Head,
    audit: Audit,
    wanted: tuple[int, ...],
    bounds: tuple[np.ndarray, np.ndarray],
    jobs: int | None,
    until: float | None,
    most_asked: int,
    bar: Progress,
) -> list[str]:
    """Bring the bounds of the lost classes together, in place, as far as what is asked needs it;
    returns why they may still differ."""
    lost, (lower, upper) = audit.unargmaxable, bounds
    backend = Backend(choose_backend("cpu", jobs).jobs, np.float64)
    groups = equal_classes(head)
    equals = {int(i): g for g in groups for i in g.tolist()}
    certifier = Certifier(head, audit.domain, backend)
    inputs = _inputs(Space(head, audit.domain, backend, groups), lost, bar)
    upper[:] = np.minimum(upper, ranks_at(certifier, lost, inputs, equals))
    left = np.flatnonzero(upper > wanted[0])
    if wanted[0] == 1:  # settled by the audit
        left = np.flatnonzero(upper > wanted[min(1, len(wanted) - 1)])
    left = left[np.argsort(-upper[left], kind="stable")]
    notes = []
    if len(left) > most_asked:
        notes.append(
            f"{len(left) - most_asked:,} were only screened: at most {most_asked:,} are asked "
            "about one by one"
        )
    left = left[:most_asked]
    if not len(left):
        return notes

    def take(found: BestRank) -> None:
        lower[left] = np.maximum(lower[left], found.lower)
        upper[left] = np.minimum(upper[left], found.upper)

    try:
        found = best_rank(
            head, lost[left], domain=audit.domain, top=wanted, hints=inputs[left], audit=audit,
            jobs=jobs, time_limit=None if until is None else max(until - time.monotonic(), _NOW),
            progress=bar,
        )  # fmt: skip
    except Interrupted as stopped:
        take(stopped.found)
        raise
    take(found)
    return notes + list(found.notes)


def _inputs(space: Space, classes: np.ndarray, bar: Progress) -> np.ndarray:
    """An input for each class with few others above it: (n, latent)."""
    points = space.precise(np.arange(space.head.classes))
    inner = len(space.to_input)
    found = np.zeros((len(classes), space.features))
    step = max(1, _BYTES // (16 * len(points)))
    bar.stage("screening ranks", len(classes))
    for start in range(0, len(classes), step):
        own = points[classes[start : start + step]]
        y = own[:, :inner]
        best = np.full(len(own), len(points) + 1)
        for turn in range(_STEPS):
            y = y / np.maximum(np.linalg.norm(y, axis=1, keepdims=True), 1e-300)
            x = space.with_fixed(space.enter(y @ space.to_input, 1.0))
            seen = space.directions(x)
            lead = seen @ points.T - (seen * own).sum(axis=1, keepdims=True)
            count = (lead >= 0).sum(axis=1)
            better = count < best
            best[better] = count[better]
            found[start : start + step][better] = x[better]
            # Away from the mean of what is above, less and less.
            above = (lead >= 0).astype(np.float64)
            away = above @ points[:, :inner] - count[:, None] * own[:, :inner]
            away /= np.maximum(np.linalg.norm(away, axis=1, keepdims=True), 1e-300)
            y = y - 0.5 / (1 + turn / 2) * away
        bar.advance(len(own))
    return np.asarray(space.proposed(found), dtype=np.float64)
