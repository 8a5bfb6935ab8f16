"""Cores: sets of classes of which one is at or above t everywhere, other than those left out.

    max r   s.t.   a_i·y + r ≤ 0  for the classes not left out,   g·y ≤ 0 for the sides

in whitened coordinates, a_i the unit row of class i as t sees it. If r > 0, the direction y puts t
above every class that is not left out. If not, the duals are a mixture, and its classes a core.
Being a corner, they are as few as they can be: without any one of them nothing is left of it.

One HiGHS serves all questions about t. Another question changes right-hand sides alone, so it
begins where the last one ended; rows are added as directions violate them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from uncork.auditing.proofs.verdict import Mixture
from uncork.auditing.search.space import Space

_ROUNDS = 100
_ADDED = 64
_ALL = 400  # classes that are rows from the beginning
_LIKELY = 4  # widths, where that is more
_POSITIVE = 1e-9
_LEAST = 1e-12


@dataclass(frozen=True)
class Core:
    """Positions among the others, ascending, and the weights that make a mixture of them."""

    members: np.ndarray  # (n,) int
    weights: np.ndarray  # (n,)


class Rivals:
    """The other classes as class t sees them, in whitened coordinates."""

    def __init__(self, space: Space, points: np.ndarray, t: int, equals: np.ndarray) -> None:
        self.space, self.t = space, t
        away = points - points[t]
        lengths = np.linalg.norm(away, axis=1)
        self.others = np.setdiff1d(np.arange(len(points)), equals)
        # A class that looks the same from every input ties everywhere: its row is zero, and it is a
        # core by itself.
        lengths[lengths == 0] = 1.0
        self.lengths = lengths[self.others]
        self.unit = away[self.others] / self.lengths[:, None]  # (n, width)
        self.sides = space.sides()
        self.height = np.zeros((int(space.lifted), space.width))
        self.height[:, -1:] = -1.0

    def mixture(self, core: Core) -> Mixture:
        shares = core.weights / self.lengths[core.members]
        return Mixture(self.others[core.members].astype(np.int32), shares / shares.sum())

    def leads(self, u: np.ndarray) -> np.ndarray:
        """How far each class is above t at an input (latent,), as floats see it: (n,)."""
        x = u if self.space.origin is None else u - self.space.origin
        leads: np.ndarray = self.unit @ self.space.directions(x[None])[0]
        return leads

    def input(self, y: np.ndarray) -> np.ndarray:
        """The input of the domain nearest to what a direction stands for: (width,) → (latent,)."""
        space = self.space
        x = space.sharp_inputs(y[None])
        x = x if space.lifted else space.backend.get(space.enter(x))
        x = np.asarray(space.backend.get(space.clip(space.with_fixed(x))), dtype=np.float64)
        return np.asarray(space.proposed(x), dtype=np.float64)[0]


class Cores:
    """Questions about one class: is there a core without these classes?"""

    def __init__(self, rivals: Rivals, likely: np.ndarray) -> None:
        """`likely`: positions of all classes, those first that are likely to matter."""
        import highspy

        self.rivals, self.infinity = rivals, highspy.kHighsInf
        self.width = rivals.unit.shape[1]
        self.solver = solver = highspy.Highs()
        for name, value in (
            ("output_flag", False), ("threads", 1), ("primal_feasibility_tolerance", 1e-10),
            ("dual_feasibility_tolerance", 1e-10),
        ):  # fmt: skip
            solver.setOptionValue(name, value)
        for _ in range(self.width):
            solver.addVar(-1.0, 1.0)
        solver.addVar(-self.infinity, 1.0)
        solver.changeColCost(self.width, -1.0)
        self.ids: list[int] = []  # the class of each row, −1 for the domain's
        self.row = np.full(len(rivals.others), -1, dtype=np.int64)
        self.out = np.zeros(len(rivals.others), dtype=bool)  # left out of the last question
        self.runs = 0
        for row in rivals.height:
            self._add(row, -1, 1.0)
        self.sides_left = [*range(len(rivals.sides))]
        self._add_classes(likely[: max(_ALL, _LIKELY * self.width)])

    def _add(self, row: np.ndarray, owner: int, radius: float) -> None:
        columns = np.arange(self.width + 1, dtype=np.int32)
        self.solver.addRow(-self.infinity, 0.0, self.width + 1, columns, np.append(row, radius))
        self.ids.append(owner)

    def _add_classes(self, which: np.ndarray) -> None:
        for i in which.tolist():
            if self.row[i] < 0:
                self.row[i] = len(self.ids)
                self._add(self.rivals.unit[i], i, 1.0)

    def ask(self, left_out: np.ndarray) -> Core | np.ndarray | None:
        """A core without the classes at these positions, or a direction (width,) that puts t above
        all others; None where neither was found."""
        out = np.zeros(len(self.out), dtype=bool)
        out[left_out] = True
        for i in np.flatnonzero((out != self.out) & (self.row >= 0)).tolist():
            right = self.infinity if out[i] else 0.0
            self.solver.changeRowBounds(int(self.row[i]), -self.infinity, right)
        self.out = out
        for _ in range(_ROUNDS):
            self.runs += 1
            self.solver.run()
            if "Optimal" not in str(self.solver.getModelStatus()):
                return None
            solution = self.solver.getSolution()
            values = np.array(solution.col_value)
            y, r = values[:-1], float(values[-1])
            if not r > _POSITIVE:
                return self._core(np.abs(np.array(solution.row_dual)))
            lead = self.rivals.unit @ y
            lead[out | (self.row >= 0)] = -np.inf
            count = min(_ADDED, len(lead))
            worst = np.argpartition(-lead, count - 1)[:count]
            worst = worst[lead[worst] >= 0]
            if len(worst):
                self._add_classes(worst)
            elif not self._cut(y):
                return y
        return None

    def _cut(self, y: np.ndarray) -> bool:
        """Add the sides of the domain that a direction is beyond; whether there were any."""
        space, sides = self.rivals.space, self.rivals.sides
        beyond = [k for k in self.sides_left if float(sides[k] @ y) > 1e-12]
        for k in beyond[:_ADDED]:
            self._add(sides[k], -1, 0.0)
            self.sides_left.remove(k)
        if beyond or not space.lifted:
            return bool(beyond)
        x = space.sharp_inputs(y[None])[0]
        cut = None if bool(space.domain.contains(x)) else space.cut(x)
        if cut is None or not float(cut @ y) > 1e-12:
            return False
        self._add(cut, -1, 0.0)
        return True

    def _core(self, duals: np.ndarray) -> Core | None:
        ids = np.array(self.ids)
        at = np.flatnonzero((ids >= 0) & (duals > _LEAST))
        if not len(at):
            return None
        at = at[np.argsort(ids[at])]
        return Core(ids[at], duals[at])
