"""Maximising log P(t | u) for many classes at once: damped Newton steps on the plain set of u.

For class t, with β one over the temperature, minimise over the set

    f(u) = log Σ_i exp(β(z_i − z_t)) = −log P(t | u),

which is convex. Values and gradients take in every class, in float64. The Hessian is only a guide:
it takes in the classes that hold nearly all of p, in search precision, and serves for as many steps
as it does well; Levenberg's damping pays for what it misses. Sides of a box
that the gradient presses against are held (projected Newton); in a ball the damped quadratic
model is minimised over the ball itself. When to stop is told by the duality gap

    max over v in the set of  ∇f(u)·(u − v)  ≥  f(u) − min f.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from uncork.reach.searched_head import View

_STEPS = 120
_SHARES = (0.0, 0.05, 0.2, 0.6, 2.0, 20.0, 200.0)  # of the first guess Σ⁻¹(w_t − μ): starts
_MISSED = 1e-3  # of p that a Hessian leaves out, to begin with
_SLOW = 0.5  # a step that leaves more of the gap than this makes the next Hessian take in more
_STALE = 0.1  # a Hessian is made anew once a step no longer shrinks the gap to this share
_CERTAIN = 5e-8  # below this f, P is one for all purposes
_GIVEN_UP = 1e9  # damping at which no step helps
_NOISE = 1e-13  # values are known to about this
_SECULAR = 12  # Newton steps on the ball's multiplier


def maximise(
    view: View,
    classes: np.ndarray,
    beta: float = 1.0,
    gap: float = 2e-7,
    starts: np.ndarray | None = None,
    whitened: np.ndarray | None = None,
    stop: Callable[[], bool] = bool,
    lean: float = 0.0,
) -> np.ndarray:
    """u (n, m) near the maximum of P(t | u), one for each class.

    Stops at a duality gap of `gap` in log P, or where P is one to within 5e-8. `starts` (k, n, m)
    are further places to begin at: witnesses, say. NaN rows are ignored. With a `lean` ε the value
    is (1−ε) f(u) + ε β(z̄ − z_t), z̄ the mean of all logits: at its minimum p and the mean row
    balance.
    """
    return Batch(view, classes, beta, gap, starts, whitened, lean).run(stop)


class Batch:
    """The steps of many classes. A subclass says what else than −log P is minimised."""

    def __init__(
        self,
        view: View,
        classes: np.ndarray,
        beta: float,
        gap: float,
        starts: np.ndarray | None,
        whitened: np.ndarray | None,
        lean: float,
        shares: bool = True,
    ) -> None:
        self.view, self.backend, self.xp = view, view.backend, view.backend.xp
        self.classes, self.beta, self.gap, self.lean = classes, beta, gap, lean
        put = self.backend.put
        self.lower, self.upper = put(view.lower), put(view.upper)
        self.result = np.empty((len(classes), view.width))
        self.where = np.arange(len(classes))  # the place of each live class in the result
        self.own = view.rows[self.backend.index(classes)]
        self._begin(starts, view.whitened() if whitened is None else whitened, shares)
        self.damping = self.xp.full_like(self.value, 1e-2)
        self.hessian: Any = None

    def _begin(self, starts: np.ndarray | None, whitened: np.ndarray, shares: bool) -> None:
        view, put = self.view, self.backend.put
        guess = self.backend.get(self.own) @ whitened / self.beta
        with np.errstate(invalid="ignore"):
            guess = np.where(np.isfinite(guess), guess, 0.0)  # rows too small to be whitened
            middle = view.inside(np.zeros_like(guess))
            tries = [view.inside(middle + share * guess) for share in _SHARES if shares]
            for start in () if starts is None else starts:
                known = np.isfinite(start).all(axis=1, keepdims=True)
                tries.append(view.inside(np.where(known, start, middle)))
        self.u = put(tries[0])
        self._evaluate(self.u, None)
        for u in tries[1:]:
            self._evaluate(put(u), None)

    def _evaluate(self, u: Any, least: Any) -> Any:
        """Values at u; where they are below `least` (or the present ones), u, p and value are taken
        over. Returns where: a bool for each class."""
        xp, index = self.xp, self.backend.index
        z = self.view.logits(u) * self.beta
        own = z[index(np.arange(len(self.classes))), index(self.classes)]
        value, p = self._weigh(z, own)
        if self.lean:
            value = (1 - self.lean) * value - self.lean * self.beta * xp.sum(u * self.own, axis=1)
        if not hasattr(self, "value"):
            better = value == value
            self.value, self.p, self.u = value, p, u
        else:
            better = value < (self.value if least is None else least)
            if least is None:  # no farther out than need be: there rounding counts for more
                better = better & (self.value > _CERTAIN)
            keep = better[:, None]
            self.p = xp.where(keep, p, self.p)
            self.u = xp.where(keep, u, self.u)
            self.value = xp.where(better, value, self.value)
        return better

    def _weigh(self, z: Any, own: Any) -> tuple[Any, Any]:
        """The value for each row of logits, and the share p of each class in its gradient."""
        xp = self.xp
        top = xp.max(z, axis=1)
        p = xp.exp(z - top[:, None])
        mass = xp.sum(p, axis=1)
        p /= mass[:, None]
        return top - own + xp.log(mass), p

    def run(self, stop: Callable[[], bool] = bool) -> np.ndarray:
        xp, get = self.xp, self.backend.get
        self.stale = np.ones(len(self.classes), dtype=bool)
        self.missed = np.full(len(self.classes), _MISSED)
        last = np.full(len(self.classes), np.inf)
        for _ in range(_STEPS):
            self.centre = self.p @ self.view.rows  # Σ p_i w_i
            self.gradient = self.beta * ((1 - self.lean) * self.centre - self.own)
            gaps, damping = get(self._gap()), get(self.damping)
            done = (
                (gaps <= self.gap)
                | ((get(self.value) <= _CERTAIN) & (not self.lean))
                | (damping > _GIVEN_UP)
            )
            # A step refused is tried again with more damping before it is blamed on the Hessian.
            poor = (gaps > _STALE * last) & (gaps != last)
            # Where a fresh Hessian did little, what it left out of p is what bends the value.
            self.missed = np.where(poor & (gaps > _SLOW * last), 0.03 * self.missed, self.missed)
            self.stale |= poor
            last = gaps[~done]
            self._retire(done)
            if not len(self.classes) or stop():
                break
            self._update_hessian()
            step = self._step()
            predicted = -xp.sum(step * self.gradient, axis=1)
            wanted = 1e-4 * predicted - _NOISE * (1 + xp.abs(self.value))
            better = self._evaluate(self.u + step, self.value - wanted)
            self.damping = xp.where(
                better, xp.maximum(self.damping * 0.1, xp.full_like(self.damping, 1e-10)),
                self.damping * 8.0,
            )  # fmt: skip
        self._retire(np.ones(len(self.classes), dtype=bool))
        return self.result

    def _gap(self) -> Any:
        """max over v in the set of ∇f·(u − v): (n,). Along an infinite side, as if it were not much
        farther off than u."""
        xp, g = self.xp, self.gradient
        if np.isfinite(self.view.radius):
            norm = xp.sqrt(xp.sum(g * g, axis=1))
            return xp.sum(g * self.u, axis=1) + self.view.radius * norm
        far = 100 + 2 * xp.abs(self.u)
        room_low = xp.minimum(self.u - self.lower, far)
        room_high = xp.minimum(self.upper - self.u, far)
        return xp.sum(xp.where(g > 0, g * room_low, -g * room_high), axis=1)

    def _retire(self, done: np.ndarray) -> None:
        if not done.any():
            return
        self.result[self.where[done]] = self.backend.get(self.u)[done]
        kept = np.flatnonzero(~done)
        at = self.backend.index(kept)
        self.where, self.classes = self.where[kept], self.classes[kept]
        for name in ("u", "p", "value", "own", "damping", "centre", "gradient"):
            setattr(self, name, getattr(self, name)[at])
        self.stale, self.missed = self.stale[kept], self.missed[kept]
        if self.hessian is not None:
            self.hessian = self.hessian[at]

    def _update_hessian(self) -> None:
        """β² Cov_p(w) of the classes of largest p, where the one at hand no longer serves."""
        xp, backend, view = self.xp, self.backend, self.view
        if self.hessian is None:
            shape = (len(self.classes), view.width, view.width)
            self.hessian = backend.put(np.zeros(shape))
        for row in np.flatnonzero(self.stale).tolist():
            rows, part, weights = self._bend(row)
            away = (rows[part] - xp.astype(self.centre[row], rows.dtype)) * xp.astype(
                xp.sqrt(weights[part]), rows.dtype
            )[:, None]
            self.hessian[row] = xp.astype(self.beta**2 * (away.T @ away), weights.dtype)
        self.stale[:] = False

    def _bend(self, row: int) -> tuple[Any, Any, Any]:
        """What one class's Hessian sums over: rows, which of them (C,), and their weights (C,)."""
        xp, p = self.xp, self.p[row]
        falling = xp.flip(xp.sort(p), axis=0)
        count = int(xp.sum(xp.astype(xp.cumulative_sum(falling) < 1 - self.missed[row], xp.int64)))
        return self.view.coarse, p >= falling[min(count, len(p) - 1)], p

    def _straight(self) -> Any:
        """Added to the diagonal of the model where it may have no curvature at all: (n, m)."""
        return 0.0

    def _step(self) -> Any:
        """The minimum of the damped model over the free features, moved into the set."""
        xp = self.xp
        g, u = self.gradient, self.u
        diagonal = np.arange(self.view.width)
        model = self.hessian + 0.0
        size = self.hessian[:, diagonal, diagonal]
        straight = self._straight()
        size = size + 1e-3 * xp.mean(size, axis=1, keepdims=True) + 1e-30 + straight
        model[:, diagonal, diagonal] += self.damping[:, None] * size + straight
        if np.isfinite(self.view.radius):
            return self._in_ball(model) - u
        held = ((u <= self.lower) & (g > 0)) | ((u >= self.upper) & (g < 0))
        held = held | (self.lower == self.upper)
        free = xp.astype(~held, u.dtype)
        model = model * free[:, :, None] * free[:, None, :]
        model[:, diagonal, diagonal] += xp.where(held, xp.ones_like(g), xp.zeros_like(g))
        step = -self.backend.solve(model, g * free)
        step = xp.where(xp.isfinite(step), step, xp.zeros_like(step))
        return xp.minimum(xp.maximum(u + step, self.lower), self.upper) - u

    def _in_ball(self, model: Any) -> Any:
        """y with ‖y‖ ≤ R that minimises g·(y − u) + ½ (y − u)ᵀM(y − u): (M + ν)y = M u − g."""
        xp, radius = self.xp, self.view.radius
        right = (model @ self.u[:, :, None])[:, :, 0] - self.gradient
        y = self.backend.solve(model, right)
        norm = xp.sqrt(xp.sum(y * y, axis=1))
        outside = ~(norm <= radius)
        nu = xp.where(outside, 1e-12 * xp.ones_like(norm), xp.zeros_like(norm))
        if bool(xp.any(outside)):
            diagonal = np.arange(self.view.width)
            for _ in range(_SECULAR):
                shifted = model + 0.0
                shifted[:, diagonal, diagonal] += nu[:, None]
                y = self.backend.solve(shifted, right)
                norm = xp.sqrt(xp.sum(y * y, axis=1))
                bent = self.backend.solve(shifted, y)
                # Newton on 1/‖y‖ = 1/R, which is nearly a straight line in ν.
                slope = xp.sum(y * bent, axis=1)
                change = (norm - radius) / radius * norm * norm / xp.where(slope > 0, slope, 1.0)
                nu = xp.where(outside, xp.maximum(nu + change, 0.0 * nu), nu)
                if bool(xp.all(~outside | (xp.abs(norm - radius) < 1e-10 * radius))):
                    break
        norm = xp.sqrt(xp.sum(y * y, axis=1))
        shrink = radius / xp.maximum(norm, 1e-300 * xp.ones_like(norm))
        y = y * xp.minimum(xp.ones_like(norm), shrink)[:, None]
        return xp.where(xp.isfinite(y), y, self.u)
