"""The search: many label sets at once, by one convex problem that gives either answer.

For the signed rows s_i a_i of a set, with offsets c_i = b_i − θ_i, minimise over u

    ½ Σ max(0, m − s_i (a_i·u + c_i))² + ½ ω² dist(u, D)²        for a small m > 0.

If every s_i (a_i·u + c_i) is positive on the way, u is a witness. If not, the weights
λ_i = max(0, m − s_i (a_i·u + c_i)) at the minimum are a mixture: the gradient vanishes there, so
Σ λ_i s_i a_i points out of D at u, and the sum Σ λ_i s_i (z_i − θ_i) is largest there.

Every Hessian is at most AᵀA + ω²I, whichever set it is of, so its inverse is the one preconditioner
of all sets, a step of one never overshoots, and a step for all of them is two products. Steps are
accelerated (Nesterov, restarted where the direction turns). What is found is only proposed.

Where sides are open (x ≥ 0, say), inputs may be long, and long ones leave the offsets behind. There
a base u₀ with every label off by far is found once, and each set is first tried at u₀ and a step
along its own labels: one product for all sets decides nearly all that are feasible (`_guess`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.auditing.backend import Backend
from uncork.auditing.folded import searched
from uncork.core.head import Head
from uncork.domain import Domain

_STEPS = 120
_REFINED = 60  # steps in float64, of sets whose mixture is nearly one
_NEARLY = 1e-3  # what is left of a gradient where a sum need not vanish
_VANISHED = 1e-11  # and where it has to, for what rounding hides to be absorbed
_MARGIN = 0.03  # m, as a share of how large offsets or logits are
_SIDES = 1.0  # ω, as a share of how large the rows are
_INSIDE = 1 - 1e-6
_AGAIN = 6  # steps until a set whose proposal was refused is proposed once more
_FAR = 12.0  # m where sides are open, as a share of how large offsets are
_LOOKED = 4  # steps between proposals: to certify a few takes nearly as long as to certify many
_FEW = 32  # sets of a chunk that are left to Newton steps (`newton`) without trying further margins
_KEPT = 4096  # sets whose last input is kept for who goes on with them
_BASES = (1.0, 2.0, 8.0)  # how many times the base a guess begins at


@dataclass(frozen=True)
class Proposed:
    """What may prove some sets: inputs as witnesses, or as mixtures with targets m."""

    sets: np.ndarray  # (n,) which of those asked about
    u: np.ndarray  # (n, latent)
    targets: np.ndarray | None = None  # (n,); None: witnesses


@dataclass(frozen=True)
class Asker:
    """Who asks: has the signs of sets (n,) → (n, labels), takes proposals and says which were
    accepted, and knows when it is late."""

    signs_of: Callable[[np.ndarray], np.ndarray]
    settle: Callable[[Proposed, np.ndarray], np.ndarray]
    late: Callable[[], bool] = lambda: False


class LabelSearch:
    """The rows of a head as u sees them, and the preconditioner that all its sets share."""

    def __init__(
        self, head: Head, thresholds: np.ndarray, domain: Domain, backend: Backend
    ) -> None:
        affine = domain.affine(head.features)
        seen = searched(head, affine)
        unit = 1.0 / getattr(seen, "unit", 1.0)
        self.backend, self.base, self.width = backend, affine.base, affine.latent
        self.outline = self.base.outline(self.width)
        rows = np.concatenate([block for _, block in seen.blocks(4096)]) * unit  # (L, latent)
        self.offsets = seen.offsets * unit - thresholds
        self.labels = len(rows)
        size = float(np.sqrt((rows**2).sum() / max(1, self.width)))
        # Where nothing but the direction matters, the domain only says how far to go.
        self.any_length = self.outline.surrounds_zero and not self.offsets.any()
        self.must_vanish = not self.offsets.any() or self.base.is_everything
        bounded = self.outline.has_sides or self.outline.is_round
        self.omega = _SIDES * size if bounded and not self.any_length else 0.0
        gram = rows.T @ rows + self.omega**2 * np.eye(self.width)
        values, vectors = np.linalg.eigh(gram)
        kept = values > max(float(values[-1]), 0.0) * 1e-12
        inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T
        self.lower, self.upper = self.outline.lower, self.outline.upper
        self.radius = self.outline.radius
        self.margin = 1.0 if self.any_length else self._margin(rows)
        # As far from the sides as from the walls: then what rounding moves stays inside.
        lengths = np.sqrt((rows**2).sum(axis=1))
        typical = float(np.median(lengths[lengths > 0])) if (lengths > 0).any() else 1.0
        room = float((self.upper - self.lower).min(initial=np.inf)) / 8
        self.hair = min(self.margin / typical, room, self.radius / 8)
        self.sharp = _Problem(self, rows, inverse, np.float64)
        self.coarse = self.sharp
        if backend.dtype == np.float32:
            self.coarse = _Problem(self, rows, inverse, np.float32)
        self.chunk = max(16, backend.chunk_bytes // (8 * self.labels))
        self.margins = (self.margin,) if self.any_length else (self.margin, self.margin / 30)
        self.ends: dict[int, np.ndarray] = {}  # where the steps of sets that are left ended
        self.base_input: np.ndarray | None = None  # (latent,)
        if self._is_open:
            self.far = _FAR * float(np.median(np.abs(self.offsets[self.offsets != 0])))
            self.margins = (self.far, *self.margins)
            self.base_input = self._all_off(self.far)

    @property
    def _is_open(self) -> bool:
        """Whether the domain has sides on some ways out, and none on others."""
        sides = np.concatenate([np.isfinite(self.lower), np.isfinite(self.upper)])
        flat = self.outline.has_sides and not self.outline.is_round and not self.any_length
        return bool(flat and sides.any() and not sides.all() and self.offsets.any())

    def _margin(self, rows: np.ndarray) -> float:
        """m: small beside what decides."""
        offsets = np.abs(self.offsets[self.offsets != 0])
        half = np.minimum(np.maximum(np.abs(self.lower), np.abs(self.upper)), self.radius)
        far = np.abs(rows) @ np.where(np.isfinite(half), half, 1.0)
        sizes = [float(np.median(v)) for v in (offsets, far[far > 0]) if len(v)]
        return _MARGIN * min(sizes, default=1.0)

    # Inputs

    def out(self, u: Any) -> Any:
        """u less the nearest input of the outline."""
        return u - self.inside(u)

    def inside(self, u: Any) -> Any:
        """The nearest input of the outline, a little inside: (n, latent)."""
        if self.any_length:
            return u
        if self.outline.has_sides:
            put = self.backend.put
            xp = self.backend.xp
            sides = (self.lower + self.hair, self.upper - self.hair)
            low, high = (xp.astype(put(b), u.dtype) for b in sides)
            u = xp.minimum(xp.maximum(u, low), high)
        if self.outline.is_round:
            norm = self.backend.xp.sqrt(self.backend.xp.sum(u * u, axis=1, keepdims=True))
            radius = self.radius - self.hair
            u = u * self.backend.xp.clip(radius / (norm + 1e-30), None, 1.0)
        return u

    def proposed(self, u: np.ndarray) -> np.ndarray:
        """Inputs as a certifier is to see them: within the domain, a hair inside."""
        u = np.asarray(u, dtype=np.float64)
        if self.any_length:
            room = np.minimum(np.minimum(-self.lower, self.upper), self.radius)
            room = np.where(np.isfinite(room), room, 1e3)
            if self.outline.is_round:
                size = np.linalg.norm(u, axis=1, keepdims=True) / self.radius
            else:
                size = np.abs(u / room).max(axis=1, keepdims=True)
            return np.asarray(u * (_INSIDE / np.maximum(size, 1e-300)))
        if self.outline.is_round:
            norm = np.linalg.norm(u, axis=1, keepdims=True)
            u = u * np.minimum(1.0, self.radius * _INSIDE / np.maximum(norm, 1e-300))
        u = np.clip(u, self.lower, self.upper)
        return u if self.outline.exact else self.base.pulled_in(u)

    # Searching

    def propose(self, sets: np.ndarray, asker: Asker) -> Iterator[int]:
        """Propose for these sets, chunk after chunk, and say how many each chunk settled."""
        for start in range(0, len(sets), self.chunk):
            if asker.late():
                return
            part = sets[start : start + self.chunk]
            left = len(part)
            if self.base_input is not None:
                part = self._guess(part, asker)
            for margin in self.margins:
                few = margin != self.margins[0] and len(part) <= _FEW
                if few or not len(part) or asker.late():
                    break
                part = self._descend(part, margin, asker)
            yield left - len(part)

    def _all_off(self, margin: float) -> np.ndarray:
        """An input with every label off by about as much as the margin, if there is one."""
        problem, backend = self.coarse, self.backend
        state = _State(problem, np.full((1, self.labels), -1, dtype=np.int8), margin)
        for _ in range(_STEPS):
            looked = problem.look(state.v, state.signs, margin)
            if float(backend.get(looked.left)[0]) < _NEARLY:
                break
            problem.advance(state, looked)
        return np.asarray(backend.get(self.inside(state.v))[0])

    def _guess(self, sets: np.ndarray, asker: Asker) -> np.ndarray:
        """The sets left after trying the base and a step along the labels that are to be on."""
        problem, backend, settle = self.coarse, self.backend, asker.settle
        signs = asker.signs_of(sets)
        for share in _BASES:
            for whitened in (True, False):
                if not len(sets):
                    return sets
                held = problem.held(signs)
                u = problem.guess(held, share, whitened)
                winning = np.flatnonzero(backend.get(problem.lowest(u, held)) > 0)
                if not len(winning):
                    continue
                inputs = self.proposed(backend.get(u[backend.index(winning)]))
                accepted = settle(Proposed(sets[winning], inputs), signs[winning])
                live = np.ones(len(sets), dtype=bool)
                live[winning[accepted]] = False
                sets, signs = sets[live], signs[live]
        return sets

    def _descend(self, sets: np.ndarray, margin: float, asker: Asker) -> np.ndarray:
        """The sets of a chunk that are left after the steps."""
        problem, backend, settle = self.coarse, self.backend, asker.settle
        signs = asker.signs_of(sets)
        state = _State(problem, signs, margin)
        waits = np.zeros(len(sets), dtype=np.int64)
        for step in range(_STEPS):
            if asker.late() or not len(sets):
                break
            looked = problem.look(state.v, state.signs, margin)
            if step % _LOOKED != _LOOKED - 1:
                problem.advance(state, looked)
                continue
            lowest, nearly = backend.get(looked.lowest), backend.get(looked.nearly)
            if self.base_input is not None:
                clipped = problem.lowest(self.inside(state.v), state.signs)
                lowest = np.maximum(lowest, backend.get(clipped))
            settled = np.zeros(len(sets), dtype=bool)
            winning = np.flatnonzero((lowest > 0) & (waits <= step))
            if len(winning):
                u = self.proposed(backend.get(state.v[backend.index(winning)]))
                u = u.astype(np.float32).astype(np.float64) if _fits(u) else u
                accepted = settle(Proposed(sets[winning], u), signs[winning])
                if not accepted.all():  # float32 moved it out of the domain, or over a wall
                    rest = np.flatnonzero(~accepted)
                    sharp = self.proposed(backend.get(state.v[backend.index(winning[rest])]))
                    accepted[rest] = settle(
                        Proposed(sets[winning[rest]], sharp), signs[winning[rest]]
                    )
                settled[winning[accepted]] = True
                waits[winning[~accepted]] = step + _AGAIN
            losing = np.flatnonzero(nearly & ~(lowest > 0) & (waits <= step))
            if len(losing):
                u = backend.get(state.v[backend.index(losing)]).astype(np.float64)
                targets = np.full(len(losing), margin)
                accepted = settle(Proposed(sets[losing], u, targets), signs[losing])
                if not accepted.all():
                    rest = np.flatnonzero(~accepted)
                    sharp = self._refined(u[rest], signs[losing[rest]], margin)
                    accepted[rest] = settle(
                        Proposed(sets[losing[rest]], sharp, targets[rest]), signs[losing[rest]]
                    )
                settled[losing[accepted]] = True
                waits[losing[~accepted]] = step + 2 * _AGAIN
            problem.advance(state, looked)
            if settled.any():
                live = np.flatnonzero(~settled)
                sets, signs, waits = sets[live], signs[live], waits[live]
                state.keep(backend.index(live))
        if margin == self.margins[0] and len(self.ends) + len(sets) <= _KEPT:
            ends = backend.get(state.v).astype(np.float64)
            self.ends.update(zip(sets.tolist(), ends, strict=True))
        return sets

    def _refined(self, u: np.ndarray, signs: np.ndarray, margin: float) -> np.ndarray:
        """The minimum itself, from an input near it: what must vanish exactly nearly does."""
        problem, backend = self.sharp, self.backend
        state = _State(problem, signs, margin, backend.put(u.astype(np.float64)))
        for _ in range(_REFINED):
            looked = problem.look(state.v, state.signs, margin)
            left = backend.get(looked.left)
            strict = backend.get(looked.bound) < 0
            if ((left < _VANISHED) | (strict & (left < _NEARLY))).all():
                break
            problem.advance(state, looked)
        return backend.get(state.v)


@dataclass
class _Looked:
    """What is seen of inputs: everything that a step and a proposal need."""

    gradient: Any  # (n, latent) downhill
    lowest: Any  # (n,) min s_i z_i
    bound: Any  # (n,) an upper bound on Σ λ_i s_i z_i, but for what is left
    left: Any  # (n,) the gradient's size beside λ's
    nearly: Any  # (n,) whether λ is nearly a mixture


class _State:
    """Inputs of a chunk: where they are, and where the next step is taken from."""

    def __init__(self, problem: _Problem, signs: np.ndarray, margin: float, u: Any = None) -> None:
        self.signs = problem.held(signs)
        self.v = problem.start(self.signs, margin) if u is None else u
        self.u = self.v
        self.t = 1.0

    def keep(self, live: Any) -> None:
        self.signs, self.v, self.u = self.signs[live], self.v[live], self.u[live]


class _Problem:
    """The rows in one precision on the backend."""

    def __init__(
        self, search: LabelSearch, rows: np.ndarray, inverse: np.ndarray, dtype: Any
    ) -> None:
        xp, put = search.backend.xp, search.backend.put
        self.search = search
        self.kind = xp.float32 if dtype == np.float32 else xp.float64
        with np.errstate(over="ignore"):
            self.rows = put(rows.astype(dtype))
            self.inverse = put(inverse.astype(dtype))
            self.offsets = put(search.offsets.astype(dtype))
        # Float64 takes over where float32 sees no more.
        self.small = 1e-6 if search.must_vanish else _NEARLY

    def start(self, signs: Any, margin: float) -> Any:
        """Inputs to begin at: as far along the labels that are on as they need."""
        search, xp = self.search, self.search.backend.xp
        on = xp.astype(signs > 0, self.kind)
        u = search.inside(xp.zeros_like(signs[:, :1]) * self.rows[:1])
        if search.any_length:
            return u
        along = (on @ self.rows) @ self.inverse
        response = along @ self.rows.T
        short = xp.where(on > 0, margin - self.offsets - u @ self.rows.T, xp.zeros_like(response))
        gain = xp.where(on > 0, response, xp.full_like(response, np.inf))
        gain = xp.min(gain, axis=1, keepdims=True)
        far = xp.max(short, axis=1, keepdims=True) / xp.where(gain > 0, gain, xp.ones_like(gain))
        far = xp.where(xp.isfinite(far) & (gain > 0), far, xp.zeros_like(far))
        return search.inside(u + far * along)

    def held(self, signs: np.ndarray) -> Any:
        """Signs as numbers on the backend."""
        backend = self.search.backend
        return backend.xp.astype(backend.put(signs), self.kind)

    def guess(self, signs: Any, share: float, whitened: bool) -> Any:
        """The base, and from there as far along the labels that are on as they need: along the
        sum of their rows or its whitened form, the ways that are open."""
        search, xp = self.search, self.search.backend.xp
        assert search.base_input is not None
        base = xp.astype(search.backend.put(share * search.base_input), self.kind)
        on = xp.astype(signs > 0, self.kind)
        along = on @ self.rows
        if whitened:
            along = along @ self.inverse
        shut = (
            search.backend.put(np.isfinite(search.lower)),
            search.backend.put(np.isfinite(search.upper)),
        )
        none = xp.zeros_like(along)
        along = xp.where((shut[0] & (along < 0)) | (shut[1] & (along > 0)), none, along)
        response = along @ self.rows.T
        gain = xp.min(xp.where(on > 0, response, xp.full_like(response, np.inf)), axis=1)
        short = search.far - self.offsets - self.rows @ base
        short = xp.max(xp.where(on > 0, short, xp.full_like(on, -np.inf)), axis=1)
        far = short / xp.where(gain > 0, gain, xp.ones_like(gain))
        far = xp.where(xp.isfinite(far) & (gain > 0), far, xp.zeros_like(far))
        return search.inside(base + far[:, None] * along)

    def lowest(self, u: Any, signs: Any) -> Any:
        """min s_i z_i of each row: (n,)."""
        xp = self.search.backend.xp
        signed = signs * (u @ self.rows.T + self.offsets)
        return xp.min(xp.where(signs != 0, signed, xp.full_like(signed, np.inf)), axis=1)

    def look(self, v: Any, signs: Any, margin: float) -> _Looked:
        search, xp = self.search, self.search.backend.xp
        signed = signs * (v @ self.rows.T + self.offsets)
        asked = signs != 0
        lowest = xp.min(xp.where(asked, signed, xp.full_like(signed, np.inf)), axis=1)
        weights = xp.where(asked, margin - signed, xp.zeros_like(signed))
        weights = xp.where(weights > 0, weights, xp.zeros_like(weights))
        size = xp.sqrt(xp.sum(weights * weights, axis=1)) + 1e-30
        weights = weights * signs
        pull = weights @ self.rows
        gradient, support = pull, xp.zeros_like(size)
        if search.omega:
            out = search.out(v)
            gradient = pull - search.omega**2 * out
            # r·u for the r that points out of the domain at the nearest input of it.
            support = xp.sum(search.omega**2 * out * (v - out), axis=1)
        bound = support + weights @ self.offsets
        scaled = gradient @ self.inverse
        left = xp.sqrt(xp.clip(xp.sum(scaled * gradient, axis=1), 0.0, None)) / size
        slack = search.any_length | (bound < 0)
        nearly = slack & (left < self.small)
        return _Looked(scaled, lowest, bound, left, nearly)

    def advance(self, state: _State, looked: _Looked) -> None:
        xp = self.search.backend.xp
        reached = state.v + looked.gradient
        moved = reached - state.u
        t = (1 + math.sqrt(1 + 4 * state.t**2)) / 2
        turned = xp.sum(looked.gradient * moved, axis=1, keepdims=True) < 0
        momentum = (state.t - 1) / t
        state.v = reached + xp.where(turned, xp.zeros_like(moved), momentum * moved)
        state.u, state.t = reached, t


def _fits(u: np.ndarray) -> bool:
    """Whether float32 can hold inputs of this size."""
    size = np.abs(u).max(initial=0.0)
    return bool(1e-30 < size < 1e30)
