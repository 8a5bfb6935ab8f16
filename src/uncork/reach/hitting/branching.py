"""How few classes must be left out for t to be first: hitting sets of cores, by branch and bound.

Classes whose absence puts t first somewhere hit every core: one of each core is among them. The
fewest that do are as many as are at or above t at its best input. Cores are not listed beforehand.
Take classes that hit all cores known so far and ask for a core without them (`cores`): if there is
one, it is new; if not, there is an input at which they alone are at or above t.

From below: the linear programme that lets classes be chosen in part. Its duals are a fractional
packing of the cores, which proves its value rounded up (`bounds.packing`). Where that is not
enough, a class is branched on: it is at or above t, or it is not. The cases tried are the tree of
the proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from uncork.auditing.proofs.verdict import Mixture
from uncork.reach.bounds.packing import DEEPEST, MOST_NODES, UNIT, Tree
from uncork.reach.hitting.cores import Core, Cores

_CLEAR = 1e-6  # by which a sum of shares must exceed a whole number to be rounded up
_SHY = 1 - 1e-8  # shares are made smaller by so much: sums of floats may exceed one by rounding
_DULL = 3  # cores that change nothing before a class is branched on


class Stopped(Exception):
    """A limit was reached, or a mixture could not be proven."""


@dataclass
class _Case:
    inside: frozenset[int] = frozenset()  # positions of classes at or above t
    outside: frozenset[int] = frozenset()


@dataclass
class _Found:
    """Cores proven so far, by position."""

    members: list[frozenset[int]] = field(default_factory=list)
    mixtures: list[Mixture] = field(default_factory=list)


class Hitting:
    """The cores of one class, and what is proven with them."""

    def __init__(
        self,
        cores: Cores,
        prove: Callable[[Mixture], Mixture | None],
        more: Callable[[int], bool],
        start: np.ndarray,
    ) -> None:
        """`prove` certifies a mixture, or another of its classes; `more` says whether another
        question may be asked after so many solutions; `start` (latent,) is the best input known.
        """
        self.cores, self.prove, self.more = cores, prove, more
        self.found = _Found()
        self.seen: set[frozenset[int]] = set()
        self.input = start  # the best
        self.least = self._above(start)  # at or above t there
        self.tree: Tree | None = None  # the best packing of the root
        self.bound = 0  # what it proves
        self.master = _Master()

    # Cores

    def give(self, mixtures: list[Mixture]) -> None:
        """Mixtures that are proven already."""
        for mixture in mixtures:
            self._keep(mixture)

    def _keep(self, mixture: Mixture) -> frozenset[int]:
        others = self.cores.rivals.others
        members = frozenset(np.searchsorted(others, mixture.classes).tolist())
        if members not in self.seen:
            self.seen.add(members)
            self.found.members.append(members)
            self.found.mixtures.append(mixture)
            self.master.add(members)
        return members

    @property
    def fewest(self) -> int:
        """How many classes are at or above t at the best input."""
        return len(self.least)

    def _above(self, u: np.ndarray) -> frozenset[int]:
        return frozenset(np.flatnonzero(self.cores.rivals.leads(u) >= 0).tolist())

    def _ask(self, left_out: frozenset[int]) -> Core | None:
        """A core without these classes; None where t is first without them, and its input is
        looked at."""
        if not self.more(self.cores.runs):
            raise Stopped
        answer = self.cores.ask(np.array(sorted(left_out), dtype=np.int64))
        if answer is None:
            raise Stopped
        if isinstance(answer, Core):
            return answer
        u = self.cores.rivals.input(answer)
        above = self._above(u)
        if len(above) < self.fewest:
            self.least, self.input = above, u
        return None

    def _core(self, left_out: frozenset[int]) -> frozenset[int] | None:
        """The same, proven and kept."""
        core = self._ask(left_out)
        if core is None:
            return None
        mixture = self.prove(self.cores.rivals.mixture(core))
        if mixture is None:
            raise Stopped
        return self._keep(mixture)

    def proof(self) -> tuple[list[Mixture], Tree] | None:
        """The mixtures and the tree that prove `bound`."""
        if self.tree is None:
            return None
        used, at = np.unique(self.tree.mixtures, return_inverse=True)
        mixtures = [self.found.mixtures[j] for j in used.tolist()]
        return mixtures, replace(self.tree, mixtures=at.astype(np.int64))

    # Inputs

    def descend(self, enough: int, most: int) -> None:
        """Look for an input with `enough` classes at or above t or fewer: leave out the class with
        the largest weight in a core, one after another, `most` of them at most, until t is first;
        then try to do with fewer of those that are left."""
        try:
            if self.fewest <= most:
                self._shrink(enough)
            left_out: frozenset[int] = frozenset()
            while self.fewest > enough and len(left_out) <= most:
                core = self._ask(left_out)
                if core is None:
                    break
                left_out |= {int(core.members[np.argmax(core.weights)])}
            if self.fewest <= most:
                self._shrink(enough)
        except Stopped:
            pass

    def _shrink(self, enough: int) -> None:
        """Those at or above t at the best input, with one after another of them no longer left
        out."""
        tried: set[int] = set()
        while self.fewest > enough and (left := sorted(self.least - tried)):
            tried.add(left[0])
            self._ask(self.least - {left[0]})

    # Bounds

    def run(self, target: int) -> bool | None:
        """Whether `target` classes are at or above t everywhere: True with a tree that proves it,
        False with a direction at which fewer are, None where a limit came first."""
        if self.bound >= target:
            return True
        try:
            return self._branch(target)
        except Stopped:
            return None

    def _branch(self, target: int) -> bool:
        nodes: list[int] = []
        leaves: list[tuple[list[int], list[int]]] = []
        open_ = [_Case()]
        while open_:
            case = open_.pop()
            step = self._case(case, target)
            if step is None:
                return False
            if isinstance(step, int):
                known = len(case.inside) + len(case.outside)
                if known >= DEEPEST or len(nodes) + len(open_) + 3 > MOST_NODES:
                    raise Stopped
                nodes.append(int(self.cores.rivals.others[step]))
                open_ += [
                    _Case(case.inside, case.outside | {step}),
                    _Case(case.inside | {step}, case.outside),
                ]
            else:
                nodes.append(-1 - len(step[0]))
                leaves.append(step)
        self.tree, self.bound = _tree(nodes, leaves), target
        return True

    def _case(self, case: _Case, target: int) -> int | tuple[list[int], list[int]] | None:
        """The class to branch on; or the shares that prove the case; or None where an input with
        fewer than `target` classes at or above t was found."""
        wanted = target - len(case.inside)
        if wanted <= 0:
            return [], []
        dull = 0
        while True:
            value, chosen, shares = self.master.solve(case.inside, case.outside)
            if value > wanted - 1 + _CLEAR:
                return _whole(shares, wanted)
            if not case.inside and not case.outside:
                self._note(value, shares)
            picked = self._hit(case, chosen)
            core = self._core(picked)
            if self.fewest < target:
                return None
            if core is None:
                if len(picked) < target:  # rounding, or the input was moved into the domain
                    raise Stopped
            elif sum(chosen.get(i, 0.0) for i in core) < 1 - _CLEAR:
                continue
            dull += 1
            if core is None or dull > _DULL:
                return self._fractional(case, chosen)

    def _note(self, value: float, shares: list[float]) -> None:
        """Keep the root's packing where it proves more than is known."""
        proven = int(np.ceil(value - _CLEAR))
        if proven > self.bound:
            packed = _whole(shares, proven)
            self.tree, self.bound = _tree([-1 - len(packed[0])], [packed]), proven

    def _hit(self, case: _Case, chosen: dict[int, float]) -> frozenset[int]:
        """Classes that hit every core, those first that the programme chooses."""
        picked = set(case.inside) | {i for i, share in chosen.items() if share > 1 - _CLEAR}
        left = [core - case.outside for core in self.found.members if not core & picked]
        while left:
            scores: dict[int, float] = {}
            for core in left:
                for i in core:
                    scores[i] = scores.get(i, chosen.get(i, 0.0)) + 1.0
            best = max(scores, key=lambda i: (scores[i] * (0.05 + chosen.get(i, 0.0)), -i))
            picked.add(best)
            left = [core for core in left if best not in core]
        return frozenset(picked)

    def _fractional(self, case: _Case, chosen: dict[int, float]) -> int:
        """The class that the programme is least sure about, of those in the most cores."""
        counts: dict[int, int] = {}
        for core in self.found.members:
            if not core & case.inside:
                for i in core - case.outside:
                    counts[i] = counts.get(i, 0) + 1
        return max(counts, key=lambda i: (0.5 - abs(chosen.get(i, 0.0) - 0.5), counts[i], -i))


def _whole(shares: list[float], wanted: int) -> tuple[list[int], list[int]]:
    """Shares as whole numbers of 1/UNIT, no larger than they are."""
    named = [j for j, y in enumerate(shares) if y > 0]
    return named, [int(min(shares[j], float(wanted)) * _SHY * UNIT) for j in named]


def _tree(nodes: list[int], leaves: list[tuple[list[int], list[int]]]) -> Tree:
    return Tree(
        np.array(nodes, dtype=np.int64),
        np.array([j for named, _ in leaves for j in named], dtype=np.int64),
        np.array([y for _, shares in leaves for y in shares], dtype=np.int64),
    )


class _Master:
    """min Σ r_i, r ≥ 0, with Σ_{i ∈ S} r_i ≥ 1 for every core S, in one HiGHS."""

    def __init__(self) -> None:
        import highspy

        self.infinity = highspy.kHighsInf
        self.solver = highspy.Highs()
        self.solver.setOptionValue("output_flag", False)
        self.solver.setOptionValue("threads", 1)
        self.column: dict[int, int] = {}
        self.cores: list[frozenset[int]] = []
        self.inside: frozenset[int] = frozenset()
        self.outside: frozenset[int] = frozenset()

    def add(self, core: frozenset[int]) -> None:
        for i in sorted(core):
            if i not in self.column:
                self.column[i] = len(self.column)
                self.solver.addVar(0.0, 0.0 if i in self.outside else self.infinity)
                self.solver.changeColCost(self.column[i], 1.0)
        at = np.array(sorted(self.column[i] for i in core), dtype=np.int32)
        least = -self.infinity if core & self.inside else 1.0
        self.solver.addRow(least, self.infinity, len(at), at, np.ones(len(at)))
        self.cores.append(core)

    def solve(
        self, inside: frozenset[int], outside: frozenset[int]
    ) -> tuple[float, dict[int, float], list[float]]:
        """The least sum where those inside are chosen for nothing and those outside are not
        chosen; the choice; and the cores' shares. Infinite where a core is all outside."""
        for i in outside ^ self.outside:
            if i in self.column:
                most = 0.0 if i in outside else self.infinity
                self.solver.changeColBounds(self.column[i], 0.0, most)
        moved = inside ^ self.inside
        for j, core in enumerate(self.cores):
            if core & moved:
                least = -self.infinity if core & inside else 1.0
                self.solver.changeRowBounds(j, least, self.infinity)
        self.inside, self.outside = inside, outside
        for j, core in enumerate(self.cores):
            if core <= outside:
                return np.inf, {}, [1e9 * (j == k) for k in range(len(self.cores))]
        if not self.cores:
            return 0.0, {}, []
        self.solver.run()
        if "Optimal" not in str(self.solver.getModelStatus()):
            raise Stopped
        solution = self.solver.getSolution()
        values = solution.col_value
        chosen = {i: values[c] for i, c in self.column.items() if values[c] > 1e-12}
        shares = [max(0.0, y) for y in solution.row_dual]
        value = sum(shares)  # what is proven, whatever the solver says of its objective
        return value, chosen, shares
