"""Questions about sets: can these items be before all others? Many at once, each certified.

Every question has a working set of the others: those that were highest at the queries looked at so
far. A query that separates the working set is looked at with all items by one product, and the
highest offenders join. Weights that balance on the working set are a proof for all items. What
floats leave open is asked again in exact arithmetic.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from uncork.auditing.search.exact import Limit, alternative
from uncork.retrieval.certify import Mixtures, Seen, SetCertifier
from uncork.retrieval.separate import Answer, Separation, whole_mixtures

_ROUNDS = 60
_CHUNK = 256  # questions looked at by one product
_TABLE_BYTES = 48 << 20  # rows of questions solved at a time
_EXACT_NUMBERS = 20_000  # in the rows that exact arithmetic is given
_EXACT_SECONDS = 20.0
_EXACT_ROUNDS = 60
_HEIGHTS = (1.0, 30.0, 1e3, 1e5)  # tried in turn where the domain has sides

Watch = Callable[[int, np.ndarray, Seen], None]


@dataclass(frozen=True)
class Question:
    """Can these items be before all others but those that are free to be anywhere?"""

    items: np.ndarray
    free: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))


@dataclass
class Decision:
    """`possible` with a query, impossible with two mixtures, or None and why."""

    possible: bool | None = None
    u: np.ndarray | None = None
    exact: tuple[Fraction, ...] | None = None
    margin: float = math.nan
    proof: Mixtures | None = None
    reason: str = "nothing that was found is a proof"


@dataclass
class _State:
    question: Question
    working: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    u: np.ndarray | None = None
    decision: Decision = field(default_factory=Decision)
    done: bool = False


class Questions:
    """Decides questions about the items of one certifier."""

    def __init__(self, certifier: SetCertifier) -> None:
        self.certifier = certifier
        with np.errstate(all="ignore"):  # what overflows is not proposed
            self.separation = Separation(certifier)
        self.added = int(min(certifier.scored.count, max(48, 2 * self.separation.columns)))

    def ask(
        self,
        questions: Sequence[Question],
        late: Callable[[], bool] = lambda: False,
        tick: Callable[[int], None] = lambda count: None,
        watch: Watch | None = None,
        found: list[Decision] | None = None,
    ) -> list[Decision]:
        """A decision for each question. `watch` sees the bounds at every query looked at. `found`
        is the list they are put on: after Ctrl-C it holds those made until then."""
        found = [] if found is None else found
        with np.errstate(all="ignore"):
            for start in range(0, len(questions), _CHUNK):
                part = [_State(q) for q in questions[start : start + _CHUNK]]
                if late():
                    for state in part:
                        state.decision.reason = "the time limit was reached"
                else:
                    try:
                        self._chunk(part, start, late, watch)
                    except KeyboardInterrupt:
                        found += [state.decision for state in part]
                        raise
                found += [state.decision for state in part]
                tick(len(part))
        return found

    def _chunk(
        self, part: list[_State], first: int, late: Callable[[], bool], watch: Watch | None
    ) -> None:
        guesses = self.separation.query(self.separation.guess([s.question.items for s in part]))
        for state, u in zip(part, guesses, strict=True):
            state.u = u
        for _ in range(_ROUNDS):
            live = [k for k, s in enumerate(part) if not s.done]
            if not live:
                return
            if late():
                for k in live:
                    part[k].decision.reason = "the time limit was reached"
                return
            stalled = self._look(part, live, first, watch)
            stalled += self._solve([part[k] for k in live if not part[k].done])
            for state in stalled:
                self._alone(state, late)
        for state in part:
            if not state.done:
                self._alone(state, late)

    def _look(
        self, part: list[_State], live: list[int], first: int, watch: Watch | None
    ) -> list[_State]:
        """Price the queries of these questions; those that a look did not further."""
        asked = [k for k in live if part[k].u is not None]
        states = [part[k] for k in asked]
        if not states:
            return []
        most = self.added + max(len(s.question.free) for s in states)
        u = np.array([s.u for s in states])
        seen = self.certifier.look(u, [s.question.items for s in states], most)
        stalled = []
        for k, state, found in zip(asked, states, seen, strict=True):
            if found is None:
                stalled.append(state)
                continue
            if watch is not None:
                watch(first + k, _given(state.u), found)
            found = _without(found, state.question.free)
            if not found.margin > 0 and len(found.heights) and _close(found):
                exact = self.certifier.settled(_given(state.u), state.question.items, found)
                found = exact if exact.margin > 0 else found
            if found.margin > 0:
                state.decision = Decision(True, state.u, margin=found.margin)
                state.done = True
                continue
            new = np.setdiff1d(found.rivals[: self.added], state.working)
            above = found.rivals[found.heights >= found.low.min()]
            if not len(np.setdiff1d(above, state.working)) and len(state.working):
                stalled.append(state)
            state.working = np.concatenate([state.working, new])
        return stalled

    def _solve(self, states: list[_State]) -> list[_State]:
        """Separate the working sets, or prove that they cannot be; those where neither held."""
        stalled: list[_State] = []
        columns = self.separation.columns
        states = sorted(states, key=lambda s: len(s.working) + len(s.question.items))
        batch: list[_State] = []
        for state in [*states, None]:
            longest = 0 if state is None else len(state.working) + len(state.question.items)
            full = (len(batch) + 1) * (longest + 2 * columns) * columns * 24 > _TABLE_BYTES
            if batch and (state is None or full):
                stalled += self._batch(batch)
                batch = []
            if state is not None:
                batch.append(state)
        return stalled

    def _batch(self, states: list[_State]) -> list[_State]:
        rows = []
        for state in states:
            own = self.separation.rows(state.question.items)
            rows.append(np.concatenate([own, -self.separation.rows(state.working)]))
        heights = (1.0,) if self.separation.free else _HEIGHTS
        for height in heights:
            left = []
            for k, answer in enumerate(self.separation.solve(rows, height)):
                state = states[k]
                if answer.u is not None:
                    state.u = answer.u
                elif not self._proven(state, _mixtures(state, answer)):
                    left.append(k)
            states, rows = [states[k] for k in left], [rows[k] for k in left]
            if not states:
                break
        return states

    def _proven(self, state: _State, proof: Mixtures | None) -> bool:
        if proof is None:
            return False
        lead = self.certifier.mixtures(proof)
        if not lead >= 0:
            return False
        state.decision = Decision(False, margin=lead, proof=proof)
        state.done = True
        return True

    # One question, where floats were not enough

    def _alone(self, state: _State, late: Callable[[], bool]) -> None:
        """Twins first, then exact arithmetic; what neither settles stays undecided."""
        if state.done:
            return
        state.done = True
        if self._twins(state):
            return
        scored, outline = (
            self.certifier.scored,
            self.certifier.base.outline(self.certifier.latent.width),
        )
        if not scored.is_exact:
            state.decision.reason = (
                "by cosine rows have lengths that are not fractions, and what is left cannot be "
                "told apart within rounding"
            )
            return
        if not (outline.is_box or outline.has_total or self.separation.free):
            state.decision.reason = "in a ball exact arithmetic cannot say"
            return
        width = self.certifier.latent.width
        if (len(state.working) + len(state.question.items)) * width > _EXACT_NUMBERS * 4:
            state.decision.reason = "too large for exact arithmetic"
            return
        deadline = time.monotonic() + _EXACT_SECONDS
        try:
            self._exactly(state, deadline, late)
        except Limit:
            state.decision.reason = f"exact arithmetic took more than {_EXACT_SECONDS:g} s"

    def _twins(self, state: _State) -> bool:
        """A relevant item and another that are one and the same to every query."""
        scored = self.certifier.scored
        for i in state.question.items.tolist():
            near = np.abs(
                scored.take(state.working).values - scored.take(np.array([i])).values
            ).max(axis=1, initial=0.0)
            for j in state.working[near <= 1e-9].tolist():
                proof = Mixtures(np.array([i]), (1,), np.array([j]), (1,))
                if self._proven(state, proof):
                    return True
        return False

    def _exactly(self, state: _State, deadline: float, late: Callable[[], bool]) -> None:
        certifier, question = self.certifier, state.question
        latent, width = certifier.latent, certifier.latent.width
        sides = [
            [*row[:-1], Fraction(0), row[-1]]
            for row in ([] if self.separation.free else
                        certifier.base.outline(width).sides_exactly())
        ]  # fmt: skip
        outline = certifier.base.outline(width)
        if outline.has_total:
            sides.append([*[Fraction(1)] * width, Fraction(0), -Fraction(outline.total)])
        height = [Fraction(0)] * (width + 1) + [Fraction(-1)]
        working = state.working

        def row(i: int, sign: int) -> list[Fraction]:
            """−r for an item: what `alternative` wants below zero."""
            full = certifier.scored.exactly(i)
            seen, shift = latent.back_exactly(full[:-1])
            return [-sign * v for v in [*seen, Fraction(-1), full[-1] + shift]]

        for _ in range(_EXACT_ROUNDS):
            ids = [*question.items.tolist(), *working.tolist()]
            signs = [1] * len(question.items) + [-1] * len(working)
            strict = [row(i, s) for i, s in zip(ids, signs, strict=True)]
            kind, values = alternative([*strict, height], sides, deadline)
            if kind == "mixture":
                self._proven(state, _exact_mixtures(question.items, working, values[: len(ids)]))
                return
            u = [v / values[-1] for v in values[:width]]
            if self.separation.free:
                u = self._short(u)
            seen, above = certifier.look_exactly(u, question.items, question.free)
            if seen is None or late():
                return
            if not len(above):
                floats = np.array([float(v) for v in u])
                state.decision = Decision(True, floats, tuple(u), margin=0.0)
                return
            working = np.concatenate([working, above[:16]])
        state.working = working

    def _short(self, u: list[Fraction]) -> list[Fraction]:
        """The same direction, inside a domain that surrounds zero."""
        outline = self.certifier.base.outline(len(u))
        size = sum((abs(v) for v in u), Fraction(1))
        bounds = np.concatenate([-outline.lower, outline.upper, [outline.radius]])
        room = float(bounds.min()) if np.isfinite(bounds).any() else 1.0
        return [v * Fraction(min(room, 1.0)) / size for v in u]


def _mixtures(state: _State, answer: Answer) -> Mixtures | None:
    assert answer.weights is not None
    items, working = state.question.items, state.working
    left, right = np.split(answer.weights, [len(items)])
    return whole_mixtures(items, left, working, right)


def _given(u: np.ndarray | None) -> np.ndarray:
    assert u is not None
    return u


def _without(seen: Seen, free: np.ndarray) -> Seen:
    if not len(free):
        return seen
    kept = ~np.isin(seen.rivals, free)
    return Seen(seen.low, seen.high, seen.rivals[kept], seen.heights[kept], seen.all_seen)


def _close(seen: Seen) -> bool:
    """Whether rounding may be all that hides a margin."""
    room = float((seen.high - seen.low).max())
    return bool(seen.high.min() + room > seen.heights[0] - room)


def _exact_mixtures(
    items: np.ndarray, working: np.ndarray, weights: Sequence[Fraction]
) -> Mixtures | None:
    scale = math.lcm(*(w.denominator for w in weights))
    whole = [int(w * scale) for w in weights]
    shared = math.gcd(*whole) or 1
    sides = []
    for ids, part in ((items, whole[: len(items)]), (working, whole[len(items) :])):
        kept = [(int(i), w // shared) for i, w in zip(ids, part, strict=True) if w > 0]
        if not kept:
            return None
        sides.append((np.array([i for i, _ in kept]), tuple(w for _, w in kept)))
    return Mixtures(*sides[0], *sides[1])
