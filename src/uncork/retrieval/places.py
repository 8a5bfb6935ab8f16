"""How many relevant items can be among the first k? Bounds for one query at a time.

From below, a query vector at which so many are. From above, conflicts: relevant items P and j pairs
of mixtures, whose others are disjoint, prove that j items that are not relevant are at or above the
lowest of P, so that all of P among the first k leaves room for k − j relevant items at most. With m
conflicts whose P are disjoint, each with j ≥ k − (r − m) pairs, at most r − m of r relevant items
are ever among the first k: were it one more, some P would lie whole among them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from uncork.retrieval.certify import Mixtures, SetCertifier
from uncork.retrieval.questions import Decision, Question, Questions
from uncork.retrieval.separate import whole_mixtures

_MOST_ASKED = 24  # questions for one query
_VARIANTS = 2  # choices of which relevant items to give up

_TOGETHER = 256  # conversations at a time

Conflict = list[Mixtures]
Conversation = Generator[Question, Decision, None]


@dataclass
class Places:
    """Proven: lower ≤ the most relevant items among the first k ≤ upper."""

    lower: int
    upper: int
    u: np.ndarray | None = None  # where `lower` of them are
    exact: tuple[Fraction, ...] | None = None  # the same, where floats cannot hold it
    conflicts: list[Conflict] = field(default_factory=list)


def upper_bound(certifier: SetCertifier, relevant: np.ndarray, k: int, found: Places) -> int:
    """The bound from above that the conflicts prove."""
    count = len(relevant)
    trivial = min(count, k)
    if not found.conflicts:
        return trivial
    named = [np.unique(np.concatenate([p.relevant for p in c])) for c in found.conflicts if c]
    if len(named) != len(found.conflicts):
        return trivial
    together = np.concatenate(named)
    if len(np.unique(together)) != len(together):
        return trivial
    bound = count - len(named)
    proven = [certifier.conflict(relevant, c) for c in found.conflicts]
    return min(trivial, bound) if min(proven) >= max(1, k - bound) else trivial


class PlaceSearch:
    """Bounds for sets that cannot all be on top, many at once: each is a conversation that asks one
    question after another, and the questions of all are decided together."""

    def __init__(self, questions: Questions, k: int, late: Callable[[], bool]) -> None:
        self.questions, self.k, self.late = questions, k, late
        self.alone: dict[int, Places] = {}  # what is known of single items

    def bound(
        self,
        sets: Sequence[tuple[np.ndarray, Places, Mixtures | None]],
        tick: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Better bounds for each set, from those so far and a proof that it cannot be on top."""
        many = [ids for ids, _, _ in sets if len(ids) > 1]
        items = np.unique(np.concatenate([np.empty(0, np.int64), *many])).tolist()
        for start in range(0, len(items), _TOGETHER):
            part = items[start : start + _TOGETHER]
            self.alone |= {i: Places(0, 1) for i in part}
            self._converse([_Bounding(self, np.array([i]), self.alone[i]).of_one() for i in part])
        for start in range(0, len(sets), _TOGETHER):
            some = sets[start : start + _TOGETHER]
            self._converse([_Bounding(self, ids, found).run(first) for ids, found, first in some])
            tick(len(some))

    def _converse(self, conversations: list[Conversation]) -> None:
        """Hand every conversation the answers to its questions, until all have ended."""
        waiting: list[tuple[Conversation, Question]] = []
        for one in conversations:
            with contextlib.suppress(StopIteration):
                waiting.append((one, next(one)))
        while waiting and not self.late():
            answers = self.questions.ask([question for _, question in waiting], self.late)
            still = []
            for (one, _), answer in zip(waiting, answers, strict=True):
                with contextlib.suppress(StopIteration):
                    still.append((one, one.send(answer)))
            waiting = still


class _Bounding:
    """The conversation about one set."""

    def __init__(self, search: PlaceSearch, relevant: np.ndarray, found: Places) -> None:
        self.search, self.questions, self.k = search, search.questions, search.k
        self.certifier = search.questions.certifier
        self.relevant, self.found = relevant, found
        self.asked = 0

    def run(self, first: Mixtures | None) -> Conversation:
        if len(self.relevant) > 1:
            self._from_singles([self.search.alone[i] for i in self.relevant.tolist()])
        if first is not None and not self.found.conflicts:
            yield from self._from_above(first)
        yield from self._from_below()

    def of_one(self) -> Conversation:
        """Whether one item alone is ever among the first k."""
        decision = yield from self._ask(self.relevant, np.empty(0, dtype=np.int64))
        if decision is not None and decision.proof is not None and not self.found.lower:
            yield from self.run(decision.proof)

    def _ask(
        self, items: np.ndarray, free: np.ndarray
    ) -> Generator[Question, Decision, Decision | None]:
        if self.asked >= _MOST_ASKED:
            return None
        self.asked += 1
        decision = yield Question(items, free)
        if decision.possible and decision.u is not None:
            self._consider(decision)
        return decision

    def _from_singles(self, alone: list[Places]) -> None:
        """Items that are never among the first k, and queries at which the others are."""
        for place in alone:
            if place.lower and place.u is not None and self.found.lower < self.found.upper:
                self._consider(Decision(True, place.u, place.exact))
        lost = [
            place.conflicts[0] for place in alone
            if place.conflicts
            and not any(np.isin(p.others, self.relevant).any() for p in place.conflicts[0])
        ]  # fmt: skip
        bound = len(alone) - len(lost)
        if bound < self.found.upper:
            self.found.upper, self.found.conflicts = bound, lost

    def _consider(self, decision: Decision) -> None:
        if decision.exact is not None:
            seen, _ = self.certifier.look_exactly(decision.exact, self.relevant)
        else:
            assert decision.u is not None
            seen = self.certifier.look(decision.u[None], [self.relevant], self.k + 1)[0]
        if seen is not None and seen.among_first(self.k) > self.found.lower:
            self.found.lower = seen.among_first(self.k)
            self.found.u, self.found.exact = decision.u, decision.exact

    def _from_above(self, first: Mixtures) -> Conversation:
        count, k = len(self.relevant), self.k
        groups: list[Conflict] = []
        while self.found.upper > self.found.lower and len(groups) < count:
            bound = count - len(groups) - 1
            need = max(1, k - bound)
            enough = True
            for group in groups:
                enough = enough and (yield from self._extended(group, need))
            used = np.concatenate([np.empty(0, np.int64), *(_named(g) for g in groups)])
            rest = np.setdiff1d(self.relevant, used)
            if not enough or not len(rest):
                break
            if groups:
                decision = yield from self._ask(rest, np.setdiff1d(self.relevant, rest))
                if decision is None or decision.proof is None:
                    break
                first = decision.proof
            group = [self._fewer(first)]
            if not (yield from self._extended(group, need)):
                break
            groups.append(group)
            if min(count, k) > bound:
                # Together: a conversation may be cut off at any question.
                self.found.upper, self.found.conflicts = bound, [list(g) for g in groups]

    def _extended(self, group: Conflict, need: int) -> Generator[Question, Decision, bool]:
        """More pairs of mixtures for the same relevant items, with others not used yet."""
        items = _named(group)
        apart = np.setdiff1d(self.relevant, items)
        while len(group) < need:
            used = np.concatenate([p.others for p in group])
            decision = yield from self._ask(items, np.concatenate([apart, used]))
            if decision is None or decision.proof is None:
                return False
            group.append(self._fewer(decision.proof))
        return True

    def _fewer(self, proof: Mixtures) -> Mixtures:
        """The same with as few others as balance: the rest are free for further pairs."""
        from scipy.optimize import linprog

        separation = self.questions.separation
        if self.k < 2 or not separation.everything or len(proof.others) <= 2:
            return proof
        rows = separation.rows(proof.relevant)
        others = separation.rows(proof.others)
        balance = np.concatenate([rows, -others]).T
        one = np.append(np.ones(len(rows)), np.zeros(len(others)))
        if not separation.free:  # the last column may leave room below zero
            balance = balance[:-1]
            height = np.append(rows[:, -1], -others[:, -1])
            cost = height
        else:
            cost = np.append(np.zeros(len(rows)), np.ones(len(others)))
        solved = linprog(
            cost, A_eq=np.vstack([balance, one]), b_eq=np.append(np.zeros(len(balance)), 1.0),
            bounds=(0, None), method="highs-ds",
        )  # fmt: skip
        if solved.status != 0:
            return proof
        weights = np.where(solved.x > 1e-12, solved.x, 0.0)
        left, right = np.split(weights, [len(rows)])
        fewer = whole_mixtures(proof.relevant, left, proof.others, right)
        if fewer is None or not self.certifier.mixtures(fewer) >= 0:
            return proof
        return fewer

    def _from_below(self) -> Conversation:
        """Queries at which more relevant items are among the first k, some of them given up and
        some of the others let past."""
        count, k, found = len(self.relevant), self.k, self.found
        heavy = _heaviest_first(found.conflicts)
        for size in range(found.upper, found.lower, -1):
            rest = np.setdiff1d(self.relevant, heavy)
            for turn in range(_VARIANTS if count > size else 1):
                order = np.concatenate([np.roll(heavy, -turn), rest])
                given_up = order[: count - size]
                items = np.setdiff1d(self.relevant, given_up)
                if (yield from self._let_past(items, given_up, k - size)) or found.lower >= size:
                    return

    def _let_past(
        self, items: np.ndarray, given_up: np.ndarray, room: int
    ) -> Generator[Question, Decision, bool]:
        """Whether there is no more to ask."""
        past = np.empty(0, dtype=np.int64)
        while True:
            decision = yield from self._ask(items, np.concatenate([given_up, past]))
            if decision is None:
                return True
            if decision.proof is None or len(past) >= room:
                return False
            weights = np.array([float(w) for w in decision.proof.other_weights])
            order = decision.proof.others[np.argsort(-weights, kind="stable")]
            step = max(1, (room - len(past)) // 3)
            past = np.concatenate([past, order[: min(step, room - len(past))]])


def _named(group: Conflict) -> np.ndarray:
    return np.unique(np.concatenate([p.relevant for p in group]))


def _heaviest_first(conflicts: list[Conflict]) -> np.ndarray:
    """Of each conflict the relevant item that weighs most, then the next, and so on."""
    columns: list[list[int]] = []
    for conflict in conflicts:
        total: dict[int, int] = {}
        for proof in conflict:
            for i, w in zip(proof.relevant.tolist(), proof.relevant_weights, strict=True):
                total[i] = total.get(i, 0) + w
        columns.append(sorted(total, key=lambda i: -total[i]))
    longest = max((len(c) for c in columns), default=0)
    flat = [c[j] for j in range(longest) for c in columns if j < len(c)]
    return np.array(flat, dtype=np.int64)
