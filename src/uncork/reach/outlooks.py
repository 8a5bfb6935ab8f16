"""How near unargmaxable classes come to being first: bounds on probability and rank for a report.

The proofs themselves are a file of `reach.certificates`; here are only the numbers, small enough to
go into a page, with the fingerprint of the head that they are about.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from uncork.auditing.result import Audit
from uncork.core.class_ids import class_ids
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.progress import Progress, progress_bar
from uncork.core.whole_file import whole_file
from uncork.reach.probability import HighestProbability, highest_probability
from uncork.reach.rank import BestRank, best_rank

_KIND = "uncork outlook"
_VERSION = 1
_LARGEST = 1 << 30  # bytes of a file that is read at all
_LIMITED = 128  # classes asked about between looks at the clock
_NUMBERS = (
    "classes", "probability_lower", "probability_upper", "best_rank_lower", "best_rank_upper",
    "bias_needed",
)  # fmt: skip
_WHOLE = ("classes", "best_rank_lower", "best_rank_upper")


@dataclass(frozen=True, eq=False)
class Outlook:
    """For each class, proven: bounds on its highest probability and on its best rank.

    `bias_needed`, where it is known, is how much its bias would have to grow for the class to be
    first somewhere. Probabilities or ranks are None where they were not asked for.
    """

    classes: np.ndarray  # (n,) int64
    probability_lower: np.ndarray | None = None  # (n,) float64
    probability_upper: np.ndarray | None = None  # (n,)
    best_rank_lower: np.ndarray | None = None  # (n,) int64
    best_rank_upper: np.ndarray | None = None  # (n,)
    bias_needed: np.ndarray | None = None  # (n,) float64
    fingerprint: str = ""  # of the head
    domain: str = ""

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            values = getattr(self, name)
            if values is not None:
                kind = np.int64 if name in _WHOLE else np.float64
                object.__setattr__(self, name, np.asarray(values, dtype=kind))
        places = {int(t): k for k, t in enumerate(self.classes.tolist())}
        object.__setattr__(self, "_places", places)

    def __len__(self) -> int:
        return len(self.classes)

    def of(self, t: int) -> dict[str, float | int] | None:
        """What is known of class t: `probability_lower` and so on; None if t is not among them."""
        places: dict[int, int] = self._places  # type: ignore[attr-defined]
        k = places.get(int(t))
        if k is None:
            return None
        known: dict[str, float | int] = {}
        for name in _NUMBERS[1:]:
            values = getattr(self, name)
            if values is not None:
                known[name] = values[k].item()
        return known

    def summary(self) -> str:
        """One line for a terminal."""
        parts = []
        low, high = self.probability_lower, self.probability_upper
        if low is not None and high is not None:
            parts.append(
                f"highest probability {low.min():.3g} to {high.max():.3g}, "
                f"median {np.median(low):.3g}"
            )
        if self.best_rank_lower is not None and self.best_rank_upper is not None:
            never = int(self.best_rank_lower.min()) - 1
            parts.append(
                f"none is ever in the top {never:,}, and the best rank seen is "
                f"{int(self.best_rank_upper.min()):,}"
            )
        return f"how near they come: {'; '.join(parts)}"

    @property
    def ranks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Classes and the bounds on their best ranks, where there are any."""
        if self.best_rank_lower is None or self.best_rank_upper is None:
            return None
        return self.classes, self.best_rank_lower, self.best_rank_upper

    def with_ranks(self, lower: np.ndarray, upper: np.ndarray) -> Outlook:
        """With further proven bounds on the ranks of the same classes: of two, the closer one."""
        if self.best_rank_lower is not None and self.best_rank_upper is not None:
            lower = np.maximum(lower, self.best_rank_lower)
            upper = np.minimum(upper, self.best_rank_upper)
        return replace(self, best_rank_lower=lower, best_rank_upper=upper)

    def check(self, head: Head) -> None:
        """Raise if this is about other weights than the head's."""
        if self.fingerprint != head.fingerprint:
            raise UncorkError(
                f"the outlook is for other weights: {self.fingerprint[:19]}…, not "
                f"{head.fingerprint[:19]}…"
            )
        if len(self.classes) and int(self.classes.max()) >= head.classes:
            raise UncorkError(
                f"the outlook names class {int(self.classes.max())}: the head has "
                f"{head.classes} classes"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON, whole or not at all."""
        plain: dict[str, Any] = {"kind": _KIND, "version": _VERSION}
        for field in fields(self):
            value = getattr(self, field.name)
            plain[field.name] = _plain(value) if isinstance(value, np.ndarray) else value
        text = json.dumps(plain, allow_nan=False) + "\n"
        with whole_file(path) as target:
            target.write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str], head: Head | None = None) -> Outlook:
        """Read it back; with a head, only if it is about that head's weights."""
        source = Path(path)
        try:
            if source.stat().st_size > _LARGEST:
                raise UncorkError("too large to be an outlook")
            found = _read(json.loads(source.read_text(encoding="utf-8")))
            if head is not None:
                found.check(head)
        except UncorkError as error:
            raise UncorkError(f"{source}: {error}") from None
        except OSError as error:
            raise UncorkError(f"{source}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            why = " ".join(str(error).split())
            raise UncorkError(f"{source}: not an outlook, or a damaged one ({why})") from None
        return found

    @classmethod
    def of_bounds(
        cls, head: Head, probability: HighestProbability, rank: BestRank | None = None
    ) -> Outlook:
        """What `highest_probability` and `best_rank` found for the same classes of the head."""
        return cls(
            probability.classes, probability.lower, probability.upper,
            None if rank is None else rank.lower, None if rank is None else rank.upper,
            fingerprint=head.fingerprint, domain=str(head.domain),
        )  # fmt: skip


def outlook(
    head: Head,
    audit: Audit | None,
    classes: Sequence[int] | np.ndarray | None = None,
    *,
    rank: bool = True,
    device: str = "auto",
    jobs: int | None = None,
    progress: bool | Progress | None = None,
    time_limit: float | None = None,
) -> Outlook:
    """Bounds on the highest probability, and on the best rank unless told not to, of each class.

    Without `classes`, of those that the audit proved unargmaxable. After `time_limit` seconds no
    further classes are begun, and the result names only those that were.
    """
    if time_limit is not None and not time_limit > 0:
        raise UncorkError(f"time_limit must be a positive number of seconds, not {time_limit}")
    if classes is None:
        if audit is None:
            raise UncorkError("give an audit, or the classes to ask about")
        asked = audit.unargmaxable
    else:
        asked = class_ids(head.classes, classes) if len(classes) else np.empty(0, np.int64)
    domain = head.domain if audit is None else audit.domain
    head = head if domain == head.domain else head.replace(domain=domain)
    bar = progress_bar(progress)
    until = None if time_limit is None else time.monotonic() + time_limit
    size = max(len(asked), 1) if until is None else _LIMITED
    parts: list[Outlook] = []
    for start in range(0, len(asked), size):
        some = asked[start : start + size]
        found = highest_probability(head, some, audit=audit, device=device, jobs=jobs, progress=bar)
        ranks = None
        if rank:
            ranks = best_rank(head, some, audit=audit, hints=found.inputs, jobs=jobs, progress=bar)
        parts.append(Outlook.of_bounds(head, found, ranks))
        if until is not None and time.monotonic() > until:
            break
    return _joined(parts, head, rank)


def _joined(parts: list[Outlook], head: Head, rank: bool) -> Outlook:
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) if parts else np.empty(0)
        for name in (_NUMBERS[:5] if rank else _NUMBERS[:3])
    }
    return Outlook(**columns, fingerprint=head.fingerprint, domain=str(head.domain))


def _read(plain: Any) -> Outlook:
    if not isinstance(plain, dict) or plain.get("kind") != _KIND:
        raise UncorkError("not an outlook: uncork reach … --outlook FILE writes one")
    if plain.get("version") != _VERSION:
        raise UncorkError(f"version {plain.get('version')!r} is not known to this uncork")
    columns: dict[str, Any] = {}
    count = len(plain["classes"]) if isinstance(plain.get("classes"), list) else -1
    for name in _NUMBERS:
        values = plain.get(name)
        if values is None and name != "classes":
            continue
        whole = name in _WHOLE
        if not isinstance(values, list) or len(values) != count:
            raise UncorkError(f"{name} is damaged")
        if name == "bias_needed":
            values = [0.0 if value is None else value for value in values]
        if not all(_is_number(value, whole) for value in values):
            raise UncorkError(f"{name} is damaged")
        columns[name] = np.array(values, dtype=np.int64 if whole else np.float64)
        if name == "bias_needed":
            columns[name][[value is None for value in plain[name]]] = np.nan
    text: dict[str, Any] = {name: plain.get(name) for name in ("fingerprint", "domain")}
    if not all(isinstance(value, str) for value in text.values()):
        raise UncorkError("fingerprint or domain is damaged")
    found = Outlook(**columns, **text)
    if len(np.unique(found.classes)) != count or (found.classes < 0).any():
        raise UncorkError("classes is damaged")
    _check_pair(found, "probability", 0, 1)
    _check_pair(found, "best_rank", 1, 2**62)
    if found.probability_lower is None and found.best_rank_lower is None:
        raise UncorkError("neither probabilities nor ranks are in it")
    return found


def _check_pair(found: Outlook, name: str, least: int, most: int) -> None:
    """Raise unless both bounds are there and in order, or neither is."""
    low, high = getattr(found, f"{name}_lower"), getattr(found, f"{name}_upper")
    if (low is None) != (high is None):
        raise UncorkError(f"{name}_lower or {name}_upper is missing")
    if low is not None and not ((low >= least) & (low <= high) & (high <= most)).all():
        raise UncorkError(f"{name}_lower or {name}_upper is damaged")


def _plain(values: np.ndarray) -> list[Any]:
    """JSON has neither infinity nor NaN: null in their place."""
    return [value if np.isfinite(value) else None for value in values.tolist()]


def _is_number(value: Any, whole: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        return False
    return bool(abs(value) < 2**62 and np.isfinite(float(value)))
