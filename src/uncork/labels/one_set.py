"""One label set as a question about a class: what the search for many left open.

Beside the rows −s_i w_i with offsets −s_i c_i stands a class of zeros. It is strictly first at x
exactly where every s_i (w_i·x + c_i) is positive, so the audit of that one class decides the set:
all its proposers take part, exact arithmetic too. What it finds is a proposal here.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from uncork.auditing import Mixture, Verdict, audit
from uncork.auditing.duplicates import equal_classes
from uncork.auditing.search.exact import Limit, decide_exactly
from uncork.core.head import Head
from uncork.domain import Domain


@dataclass(frozen=True)
class OneSet:
    """An input as floats or fractions, or weights of labels; or neither, and why."""

    u: np.ndarray | None = None
    exact: tuple[Fraction, ...] | None = None
    labels: np.ndarray | None = None
    weights: np.ndarray | None = None
    whole: tuple[int, ...] | None = None
    reason: str = ""


def decide_one(
    head: Head,
    offsets: np.ndarray,
    signs: np.ndarray,
    domain: Domain,
    *,
    device: str = "cpu",
    jobs: int | None = None,
    seconds: float | None = None,
) -> OneSet:
    """What the audit finds for one set; `offsets` are b − θ, as floats."""
    labels = np.flatnonzero(signs)
    dead = ~head.take(labels).any(axis=1) & (offsets[labels] == 0)
    if dead.any():  # z_i = θ_i everywhere: neither on nor off
        return OneSet(labels=labels[dead][:1], weights=np.ones(1))
    asked = _signed(head, offsets, signs, domain)
    found = audit(asked, classes=[0], device=device, jobs=jobs, time_limit=seconds)
    if found.verdicts[0] == Verdict.ARGMAXABLE:
        witness = found.proofs.witness(asked, 0)
        if witness is None:
            return OneSet(reason="the audit of the set kept no witness")
        exact = tuple(witness.fractions()) if witness.is_exact else None
        return OneSet(u=witness.x, exact=exact)
    mixture = found.mixture(0)
    if mixture is None:
        return OneSet(reason=found.proofs.reasons.get(0, "nothing that was found is a proof"))
    weights = np.zeros(asked.classes)
    np.add.at(weights, np.asarray(mixture.classes, dtype=np.int64), mixture.weights)
    weights += mixture.bulk / asked.classes
    if mixture.tilt is not None:
        weights += np.exp(asked.weight @ np.asarray(mixture.tilt, dtype=np.float64) - mixture.peak)
    if mixture.integers is not None:
        return _named(labels, mixture)
    used = np.flatnonzero(weights[1:] > 0)
    return OneSet(labels=labels[used], weights=weights[1:][used])


def decide_one_exactly(
    head: Head, offsets: np.ndarray, signs: np.ndarray, domain: Domain, seconds: float
) -> OneSet:
    """As `decide_one`, in exact arithmetic alone: where nothing in floats was a proof."""
    asked = _signed(head, offsets, signs, domain)
    none = np.empty(0, dtype=np.int64)
    repeats = np.concatenate([none, *(group[1:] for group in equal_classes(asked))])
    try:
        found = decide_exactly(asked, domain, 0, none, repeats, seconds)
    except Limit as reached:
        return OneSet(reason=str(reached) or f"exact arithmetic took more than {seconds:g} s")
    if isinstance(found, Mixture):
        return _named(np.flatnonzero(signs), found)
    return OneSet(u=found.x, exact=tuple(found.fractions()))


def _signed(head: Head, offsets: np.ndarray, signs: np.ndarray, domain: Domain) -> Head:
    """The head whose class 0 stands for the set, and whose others for its labels."""
    labels = np.flatnonzero(signs)
    turned = (-signs[labels]).astype(np.float64)
    weight = np.concatenate([np.zeros((1, head.features)), head.take(labels) * turned[:, None]])
    bias = np.append(0.0, offsets[labels] * turned)
    return Head(weight, bias if bias.any() else None, domain=domain)


def _named(labels: np.ndarray, mixture: Mixture) -> OneSet:
    """An exact mixture of classes as weights of labels."""
    classes = np.asarray(mixture.classes, dtype=np.int64)
    kept = [k for k in np.argsort(classes).tolist() if classes[k] > 0]
    whole = mixture.integers or ()
    return OneSet(
        labels=labels[classes[kept] - 1],
        weights=np.asarray(mixture.weights, dtype=np.float64)[kept],
        whole=tuple(whole[k] for k in kept),
    )
