"""Fragile classes: first in real numbers, but not in the model's own type, or only at inputs that
never arrive."""

from __future__ import annotations

import numpy as np

from uncork.check import words
from uncork.check.protocol import Check, Concerned, Condition, Finding, not_applicable
from uncork.check.subject import Subject

_ASKED = 256  # classes for which a better witness is looked for


def find_precision(subject: Subject, condition: Condition) -> Finding:
    """Witnesses of an audit lead by anything at all: one that loses in the model's own type is
    replaced by where the class is most probable, and only what loses there too is fragile."""
    counted = subject.low_precision
    if counted is None:
        wide = subject.head.dtype not in ("float32", "float16", "bfloat16")
        return not_applicable(
            f"weights are stored as {subject.head.dtype}, and which type logits are computed in is "
            "not known"
            if wide
            else "to try every witness of a head of this size takes minutes (audit --low-precision)"
        )
    weak = np.array(sorted([*counted["tying"], *counted["losing"]]), dtype=np.int64)
    weak = np.array(condition.left(subject.head, weak.tolist()), dtype=np.int64)
    tried = weak[: subject.affordable(_ASKED)]
    skipped = len(weak) - len(tried)
    if len(tried):
        inputs = subject.highest_probability(tried).inputs
        weak = np.setdiff1d(weak, tried[subject.wins_at(tried, inputs)])
    dtype = counted["dtype"]
    if not len(weak):
        return Finding(f"every argmaxable class has a witness that wins in {dtype} too")
    return Finding(
        f"{words.classes(len(weak))} won at no input that was tried when logits are computed in "
        f"{dtype}" + (f"; of {skipped:,} only the audit's witness was" if skipped else ""),
        tuple(
            Concerned(t, f"leads by {subject.audit.margin(t):.3g} in real numbers")
            for t in weak.tolist()
        ),
    )


def find_real_domain(subject: Subject, condition: Condition) -> Finding:
    head, shown, real = subject.head, subject.found.shown_domain, subject.real
    if shown is None:
        return not_applicable("the source does not show what precedes the head")
    if real is None:
        return not_applicable("the audit was of the inputs that really arrive to begin with")
    lost = real.unargmaxable
    ids = condition.left(head, lost[subject.can_be_first[lost] & ~subject.aside[lost]].tolist())
    assumed = f" (assumed: {shown.assumed})" if shown.assumed else ""
    left = f"; {len(real.undecided):,} undecided there" if len(real.undecided) else ""
    if not ids:
        return Finding(
            f"what is first in {subject.audit.domain} is first at inputs that arrive too"
            f"{assumed}{left}",
            broken=bool(len(real.undecided)),
        )
    return Finding(
        f"{words.classes(len(ids))} can be first in {subject.audit.domain}, but not at inputs that "
        f"arrive: {shown.why}{assumed}{left}",
        tuple(Concerned(t, "never first at inputs that arrive") for t in ids),
    )


PRECISION = Check(
    "precision",
    "Every argmaxable class wins somewhere in the model's own type.",
    "Move rows apart (uncork repair --how row), or keep the head in a wider type.",
    find_precision,
)
REAL_DOMAIN = Check(
    "real-domain",
    "Every argmaxable class is first at an input that can arrive.",
    "Audit with --domain auto, and treat these classes as lost.",
    find_real_domain,
)
