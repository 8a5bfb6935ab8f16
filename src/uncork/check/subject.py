"""The subject of all checks: a head, its audit, what users gave beside it, and what else some
checks ask of it, made when the first of them does."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from uncork.auditing import Audit
from uncork.auditing import audit as make_audit
from uncork.auditing.backend import choose_backend
from uncork.auditing.low_precision import is_quick, leads_in_own_type, low_precision
from uncork.check.baseline import Baseline
from uncork.check.lists import Frequency
from uncork.core.head import Head
from uncork.core.progress import Progress
from uncork.loading import Found
from uncork.loading.odd_rows import OddRows, odd_rows

_AFFORDED = 1e12  # multiplications


@dataclass(frozen=True)
class Given:
    """What a user gave beside the model."""

    baseline: Baseline | None = None
    frequency: Frequency | None = None
    must_not: tuple[int, ...] | None = None  # classes that must never be said
    labels_refused: str = ""  # why the labels that were given could not be used


@dataclass(frozen=True)
class Computing:
    """Where to compute, and for how long at most."""

    device: str = "auto"
    jobs: int | None = None
    time_limit: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"device": self.device, "jobs": self.jobs}


@dataclass(eq=False)
class Subject:
    """What checks look at."""

    found: Found
    audit: Audit  # of all classes of the head
    given: Given = field(default_factory=Given)
    computing: Computing = field(default_factory=Computing)
    progress: Progress = field(default_factory=Progress)

    @property
    def head(self) -> Head:
        return self.found.head

    @cached_property
    def odd(self) -> OddRows:
        """Rows that are zero, equal, within rounding."""
        return odd_rows(self.head, self.found.vocabulary)

    @cached_property
    def aside(self) -> np.ndarray:
        """Rows that stand for no ordinary word: (C,) of bool."""
        mask = np.zeros(self.head.classes, dtype=bool)
        vocabulary = self.found.vocabulary
        for ids in (vocabulary.special, vocabulary.unused, vocabulary.padding):
            mask[list(ids)] = True
        return mask

    @cached_property
    def can_be_first(self) -> np.ndarray:
        """Classes proven to come first somewhere, alone or in a tie: (C,) of bool."""
        mask = np.zeros(self.head.classes, dtype=bool)
        mask[self.audit.argmaxable] = mask[self.audit.tied] = True
        return mask

    @cached_property
    def written(self) -> tuple[str, ...] | None:
        """Every label as its file spells it; None where there are none."""
        return self.found.vocabulary.tokens or self.head.labels

    def affordable(self, most: int) -> int:
        """Of how many classes the highest probability can be asked for in seconds: each takes a few
        Hessians of C·d² multiplications."""
        return min(most, int(_AFFORDED / (self.head.classes * self.head.features**2)))

    def highest_probability(self, classes: np.ndarray) -> Any:
        """Proven bounds on the highest probability of each class (`reach.HighestProbability`)."""
        from uncork.reach import highest_probability

        return highest_probability(
            self.head, classes, audit=self.audit, progress=self.progress, **self.computing.as_dict()
        )

    @cached_property
    def real(self) -> Audit | None:
        """The audit on the inputs that the source shows to arrive; None where it shows nothing, or
        where the audit was of these inputs to begin with."""
        shown = self.found.shown_domain
        if shown is None or shown.domain == self.audit.domain:
            return None
        return make_audit(
            self.head, domain=shown.domain, progress=self.progress,
            time_limit=self.computing.time_limit, **self.computing.as_dict(),
        )  # fmt: skip

    @cached_property
    def low_precision(self) -> dict[str, Any] | None:
        """How witnesses fare in the head's own type; None where that type is wider than float32, or
        where it would take minutes."""
        if self.audit.low_precision is not None:
            return self.audit.low_precision
        if not is_quick(self.head):
            return None
        backend = choose_backend(**self.computing.as_dict())
        return low_precision(self.head, self.audit.proofs, backend, self.audit.domain)

    def wins_at(self, classes: np.ndarray, latent: np.ndarray) -> np.ndarray:
        """Whether each class wins at its input u (n, latent), in the head's own type: (n,)."""
        inputs = self.audit.domain.affine(self.head.features).image(latent)
        backend = choose_backend("cpu", self.computing.jobs)
        return leads_in_own_type(self.head, classes, inputs, backend) > 0
