"""Lost: ordinary classes that can never be first, all of them, by script, and by frequency."""

from __future__ import annotations

from collections import Counter

import numpy as np

from uncork.check.protocol import MOST, Check, Concerned, Condition, Finding, not_applicable
from uncork.check.protocol import Severity as How
from uncork.check.subject import Subject
from uncork.core.text import visible
from uncork.loading.vocabulary.scripts import MIXED, NONE, scripts_of
from uncork.loading.vocabulary.token_text import bare

_SCRIPTS = 4  # that a sentence names
_PARTS = 3  # of a mixture


def ordinary(subject: Subject) -> np.ndarray:
    """Rows that stand for an ordinary word, and may be said: (C,) of bool."""
    mask = ~subject.aside
    mask[list(subject.given.must_not or ())] = False
    return mask


def _lost(subject: Subject, condition: Condition) -> list[int]:
    ids = subject.audit.unargmaxable
    return condition.left(subject.head, ids[ordinary(subject)[ids]].tolist())


def _concerned(subject: Subject, ids: list[int]) -> tuple[Concerned, ...]:
    return tuple(Concerned(t, _beaten_by(subject, t)) for t in ids)


def _beaten_by(subject: Subject, t: int) -> str:
    parts = [
        f"{visible(part['label'], 20)} {part['weight']:.0%}"
        for part in subject.audit.stolen_by(t, _PARTS)
    ]
    return f"beaten everywhere by the mixture {', '.join(parts)}" if parts else ""


def find_lost(subject: Subject, condition: Condition) -> Finding:
    ids = _lost(subject, condition)
    among = int(ordinary(subject).sum())
    if not ids:
        return Finding(f"none of the {among:,} ordinary classes is proven unargmaxable")
    text = f"{len(ids):,} of {among:,} ordinary classes can never be first"
    if subject.head.labels is not None:
        counts = Counter(_script(subject.head.label(t)) for t in ids).most_common()
        named = [f"{number:,} {script}" for script, number in counts[:_SCRIPTS]]
        text += f" ({', '.join(named)}{', …' if len(counts) > _SCRIPTS else ''})"
    return Finding(text, _concerned(subject, ids))


def _script(label: str) -> str:
    found = scripts_of(label)
    name = next(iter(found)) if len(found) == 1 else (MIXED if found else NONE)
    return {MIXED: "of several scripts", NONE: "without letters"}.get(name, name)


def find_lost_scripts(subject: Subject, condition: Condition) -> Finding:
    head = subject.head
    if head.labels is None:
        return not_applicable("there are no labels")
    scripts: dict[str, list[int]] = {}
    for t in np.flatnonzero(ordinary(subject)).tolist():
        letters = scripts_of(head.label(t))
        if len(letters) == 1:
            scripts.setdefault(next(iter(letters)), []).append(t)
    large = {name: ids for name, ids in scripts.items() if len(ids) >= condition["least"]}
    if not large:
        return not_applicable(f"no script has {condition['least']:g} classes or more")
    lost = set(_lost(subject, condition))
    shares = {name: sum(t in lost for t in ids) / len(ids) for name, ids in large.items()}
    broken = sorted(
        (name for name in large if shares[name] > condition["share"]), key=lambda n: -shares[n]
    )
    if not broken:
        worst = max(shares, key=lambda name: shares[name])
        return Finding(f"{worst} loses most of its classes: {shares[worst]:.1%}", broken=False)
    said = ", ".join(
        f"{name} {sum(t in lost for t in large[name]):,} of {len(large[name]):,}"
        for name in broken[:_SCRIPTS]
    )
    ids = [t for name in broken for t in large[name] if t in lost]
    return Finding(
        f"more than {condition['share']:.0%} of a script is lost: {said}",
        _concerned(subject, ids),
        broken=True,
    )


def find_lost_frequent(subject: Subject, condition: Condition) -> Finding:
    listed, head = subject.given.frequency, subject.head
    if listed is None:
        return not_applicable("no list of frequencies is given (--frequency)")
    if head.labels is None:
        return not_applicable("there are no labels to look up")
    ranks: dict[int, int] = {}
    share = 0.0
    for t in _lost(subject, condition):
        label = head.label(t)
        label = label if label in listed.rank else bare(label).strip()
        rank = listed.rank.get(label)
        if rank is not None:
            share += listed.share.get(label, 0.0)
            if rank <= condition["top"]:
                ranks[t] = rank
    ids = sorted(ranks, key=lambda t: ranks[t])
    top = f"the {condition['top']:,.0f} most frequent entries of the list"
    text = f"{len(ids):,} of {top} are lost" if ids else f"none of {top} is lost"
    if listed.share:
        text += f"; all lost ones together are {share:.3%} of what was counted"
    return Finding(text, tuple(Concerned(t, f"number {ranks[t]:,} by frequency") for t in ids))


_REPAIR = (
    "Repair the head (uncork repair), fine-tune it with a layer that keeps every class argmaxable, "
    "or take the classes out of the vocabulary."
)
LOST = Check(
    "lost", "Every ordinary class can be first for some input.", _REPAIR, find_lost, How.FAIL
)
LOST_SCRIPTS = Check(
    "lost-scripts",
    "No script loses more than a small share of its classes.",
    _REPAIR,
    find_lost_scripts,
    How.FAIL,
    {"share": 0.05, "least": 10},
)
LOST_FREQUENT = Check(
    "lost-frequent",
    "No lost class is among the most frequent ones.",
    _REPAIR,
    find_lost_frequent,
    How.FAIL,
    {MOST: 0, "top": 3000},
)
