"""What a page shows of an audit, wherever the audit is from: a run just done, a file, a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from uncork.auditing.proofs.verdict import Mixture, Verdict
from uncork.auditing.result import Audit
from uncork.core.head import Head
from uncork.core.items import Items
from uncork.core.reading import Reading, words_of
from uncork.core.words import ITEMS, Words
from uncork.loading.odd_rows import OddRows, odd_items, odd_rows
from uncork.report.neighbours import nearest_rows, next_items, row_norms, runners_up
from uncork.report.wording import Asked, answer, checking_commands, on_the_command_line

LARGEST = 8  # of a mixture, the largest shares
MOST_TAKERS = 12  # of all mixtures together
NEAREST = 4
_WORK = 5e10  # multiplications spent on details: a few seconds


@dataclass(frozen=True)
class ShownMixture:
    """The largest parts of a mixture that beats a class: [(class, share), …], and how many there
    are in all where that is known."""

    parts: list[tuple[int, float]]
    size: int | None = None


@dataclass(frozen=True)
class Beside:
    """For some classes, others that stand beside them, each with a number: (n,), (n, k), (n, k)."""

    classes: np.ndarray
    others: np.ndarray
    values: np.ndarray


@dataclass(kw_only=True)
class Summary:
    """What a report says before it comes to single classes."""

    name: str
    answer: str
    facts: dict[str, Any]  # shape, domain, who made it: what the page's text needs
    counts: dict[str, int]
    reading: Reading | None = None
    metric: str = "inner"
    beside: tuple[tuple[str, str], ...] = ()  # further lines: what each is about, and the text

    @property
    def words(self) -> Words:
        """What to call classes and inputs: only an index has another metric."""
        return words_of(self.reading) if self.metric == "inner" else ITEMS


@dataclass(kw_only=True)
class Shown(Summary):
    """The content of a report, with nothing left to compute."""

    ids: np.ndarray  # (n,) the classes that were asked about
    verdicts: np.ndarray  # (n,)
    margins: np.ndarray  # (n,)
    labels: Mapping[int, str] | None  # by class, of every class that may be named
    norms: np.ndarray | None = None  # (n,)
    mixtures: dict[int, ShownMixture] = field(default_factory=dict)
    groups: list[list[int]] = field(default_factory=list)  # equal classes
    reasons: dict[int, str] = field(default_factory=dict)
    nearest: Beside | None = None
    runners_up: Beside | None = None
    odd: OddRows | None = None
    outlook: Any = None  # reach.Outlook
    # The largest shares in the mixtures of all lost classes: (class, sum of shares, how many).
    takers: list[tuple[int, float, int]] = field(default_factory=list)


def shown_audit(
    audit: Audit, odd: OddRows | None = None, outlook: Any = None, asked: Asked | None = None
) -> Shown:
    """An audit with its proofs; odd rows are looked for in its head where none are given."""
    from uncork import __version__

    head = audit.head
    rows = head if audit.metric == "inner" else audit.items
    if odd is None and rows is not None:
        odd = odd_rows(rows) if isinstance(rows, Head) else odd_items(rows)
    if outlook is not None and head is not None:
        outlook.check(head)
    ids = np.arange(audit.classes) if audit.asked is None else np.asarray(audit.asked)
    verdicts = audit.proofs.verdicts[ids]
    domain = on_the_command_line(audit.domain)
    facts = {
        "source": audit.source,
        "fingerprint": audit.fingerprint,
        "classes": audit.classes,
        "features": audit.features,
        "dtype": audit.dtype,
        "bias": audit.has_bias,
        "assumed": audit.domain.in_words(audit.features),
        "domain": audit.domain.spec(),
        "origin": "" if asked is None else asked.origin,
        "check": checking_commands(audit.source, domain, audit.has_bias, asked, audit.metric),
        "approximate": audit.approximate,
        "proven": audit.proven,
        "made": f"uncork {__version__}, {audit.seconds.get('total', 0.0):.1f} s on {audit.device}",
        "some": audit.asked is not None,
    }
    shown = Shown(
        name=base_name(audit.source),
        answer=answer(
            audit.counts, len(ids), audit.asked is not None, audit.approximate, audit.metric
        ),
        metric=audit.metric,
        facts=facts,
        counts=audit.counts,
        ids=ids,
        verdicts=verdicts,
        margins=audit.proofs.margins[ids],
        labels=None if audit.labels is None else dict(enumerate(audit.labels)),
        norms=None if rows is None else row_norms(rows)[ids],
        mixtures=shown_mixtures(audit),
        takers=takers(audit, MOST_TAKERS),
        groups=[[int(i) for i in group] for group in audit.proofs.groups],
        reasons={t: audit.proofs.reasons.get(t, "") for t in audit.undecided.tolist()},
        odd=odd,
        outlook=outlook,
        reading=audit.reading,
    )
    shown.answer = shown.words.say(shown.answer)
    if isinstance(rows, Head):
        add_details(shown, audit, rows)
    elif rows is not None:
        add_next(shown, rows)
    return shown


def base_name(source: str) -> str:
    """The last part of a path, or the whole of what has none."""
    return source.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] or "head"


def as_shown(mixture: Mixture) -> ShownMixture:
    """A mixture as a page shows it."""
    alone = mixture.tilt is None and not mixture.bulk
    return ShownMixture(mixture.top(LARGEST), len(mixture.classes) if alone else None)


def shown_mixtures(audit: Audit) -> dict[int, ShownMixture]:
    """The mixture of every class that has one."""
    seen: dict[int, ShownMixture] = {}  # many classes may share one mixture
    mixtures = {}
    for t in audit.unargmaxable.tolist():
        mixture = audit.mixture(t)
        if mixture is not None:
            if id(mixture) not in seen:
                seen[id(mixture)] = as_shown(mixture)
            mixtures[t] = seen[id(mixture)]
    return mixtures


def takers(audit: Audit, most: int) -> list[tuple[int, float, int]]:
    """Who takes the place of the unargmaxable classes: the classes with the largest shares in all
    of their mixtures, as (class, sum of its shares, in how many), largest first.

    What a mixture spreads over all classes is nobody's share. Equal classes have one mixture, which
    counts for each.
    """
    shares = np.zeros(audit.classes)
    counts = np.zeros(audit.classes, dtype=np.int64)
    for t in audit.unargmaxable.tolist():
        mixture = audit.mixture(t)
        if mixture is not None and len(mixture.classes):
            named = dict(mixture.top(len(mixture.classes)))
            ids = np.fromiter(named, np.int64, len(named))
            shares[ids] += np.fromiter(named.values(), np.float64, len(named))
            counts[ids] += 1
    first = np.argsort(-shares, kind="stable")[:most]
    return [(int(i), float(shares[i]), int(counts[i])) for i in first if shares[i] > 0]


def add_next(shown: Shown, items: Items) -> None:
    """Who comes next at an item's own vector, by the items' metric, of as many as time allows."""
    most = max(16, int(_WORK / (len(items) * items.features)))
    won = shown.ids[shown.verdicts == Verdict.ARGMAXABLE][:most]
    if len(won) and len(items) > 1:
        shown.runners_up = Beside(won, *next_items(items, won, NEAREST))


def add_details(shown: Shown, audit: Audit | None, head: Head) -> None:
    """Nearest rows and, where there is an audit with witnesses, runners-up, of as many classes as a
    few seconds allow, lost ones first."""
    most = max(16, int(_WORK / (head.classes * head.features)))
    first = np.array([Verdict.UNARGMAXABLE, Verdict.UNDECIDED, Verdict.TIED, Verdict.ARGMAXABLE])
    order = np.argsort(np.argsort(first)[shown.verdicts], kind="stable")
    near = np.sort(shown.ids[order[:most]])
    shown.nearest = Beside(near, *nearest_rows(head, near, NEAREST))
    reached = np.isin(shown.verdicts, (Verdict.ARGMAXABLE, Verdict.TIED))
    won = shown.ids[reached][:most]
    if audit is not None and len(won):
        shown.runners_up = Beside(won, *runners_up(audit, head, won, NEAREST))
