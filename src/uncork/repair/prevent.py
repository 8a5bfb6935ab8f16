"""Heads on which every distinct class is argmaxable by construction (Appendix D of the paper).

For a positive definite M the classes' own rows are witnesses, x = M w_t:

    norm   rows of equal length, wᵀMw = r², and no bias:  w_i·M w_t < r² unless w_i = w_t
    bias   b_i = −½ w_iᵀM w_i:   z_t − z_i = ½ (w_t − w_i)ᵀM(w_t − w_i) > 0 at x = M w_t

With a bias the same holds around any input x₀: b_i = −½ w_iᵀM w_i − w_i·x₀ with x = x₀ + M w_t. So
M can be scaled down until the witnesses lie in the domain, and scale and centre can be chosen to
change a bias that is already there as little as possible (`least`). Where inputs are an image
x = F u + x₀, as after a LayerNorm, M = c F Fᵀ keeps the witnesses in it: u = c Fᵀw_t.

That is theory. Rounded to the type that a file stores, rows are no longer of equal length and
biases no longer −½ wᵀMw, so what is claimed of a result is what `uncork.audit` proves of it. Equal
rows tie, whatever is done. Rows that nearly equal one another (untrained tokens often do) need a
bias that tells them apart: floats are finest around 0, so the bowl −½ (w − a)ᵀM(w − a) can have its
`apex` a where such rows crowd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.domain import Domain
from uncork.reach.limits import check_sizes

HOW = ("norm", "bias")
METRICS = ("identity", "covariance")
_BLOCK = 8192
_HALVINGS = 60
_SMALLEST_SHARE = 1e-3  # of the largest scale that fits: the least a fitted one may be
_SMALLER = "choose a smaller scale, or scale the weights down first"
_INSIDE = 0.999  # witnesses stay this far inside the domain, so that rounding keeps them in


@dataclass(frozen=True)
class Prevention:
    """A new weight and bias, and how they were made."""

    weight: np.ndarray  # (C, d) in the head's own type
    bias: np.ndarray | None  # (C,) float64
    how: str
    metric: np.ndarray | None  # (d, d), scaled; None is the identity times `scale`
    scale: float  # c in M = c·M₀, or the common length of the rows
    centre: np.ndarray  # (d,): x₀
    notes: tuple[str, ...] = ()
    fold: np.ndarray | None = None  # F (d, latent) where inputs are an image x = F u + x₀
    apex: np.ndarray | float = 0.0  # a, (d,) or 0

    def witness(self, rows: np.ndarray) -> np.ndarray:
        """The inputs that theory gives for these rows of the new weight: (n, d), or u (n, latent)
        where inputs are an image."""
        if self.how == "norm":
            return rows if self.metric is None else rows @ self.metric
        rows = rows - self.apex
        if self.fold is not None:
            return self.scale * (rows @ self.fold)
        return self.centre + (self.scale * rows if self.metric is None else rows @ self.metric)


def prevent(
    head: Head,
    how: str,
    *,
    metric: str | np.ndarray = "identity",
    scale: float | None = None,
    least: bool = False,
    moving: bool = True,
    apex: np.ndarray | None = None,
) -> Prevention:
    """A head like this one on which every distinct row is argmaxable, up to rounding.

    how     "norm": rows scaled to one length, the bias dropped. "bias": the bias replaced.
    metric  M up to its scale: "identity" (the paper's), "covariance" (the inverse covariance of
            the rows), or a positive definite matrix (d, d)
    scale   for "norm" the common length of the rows (default: their mean, which moves them
            least); for "bias" the factor c of M (default 1, or less where the witnesses would
            leave the domain)
    least   for "bias": c and x₀ by least squares, so that the present bias changes least
    moving  with `least`: whether x₀ is chosen too, or only c
    apex    for "bias": a, where the bias is largest and most finely rounded; 0 unless given
    """
    if how not in HOW:
        raise UncorkError(f"how {how!r} is not known: expected {' or '.join(HOW)}")
    if scale is not None and not (scale > 0 and np.isfinite(scale)):
        raise UncorkError(f"scale {scale}: expected a positive number")
    check_sizes(head, biases=least)  # otherwise the present bias is not looked at
    matrix = _metric(head, metric)
    if how == "norm":
        if least:
            raise UncorkError("a least change is chosen for the bias: it goes with how='bias'")
        return _equal_norms(head, matrix, scale)
    if least and scale is not None:
        raise UncorkError("either a scale is given or the least change is asked for, not both")
    view = head.domain.affine(head.features)
    if not view.steps:
        return _bias(head, matrix, scale, least, moving, None, head.domain, apex)
    if matrix is not None:
        raise UncorkError(
            f"domain {head.domain} brings its own metric: leave the metric at identity"
        )
    fold, offset = view.parts()
    return _bias(head, fold @ fold.T, scale, least, False, (fold, offset), view.base, apex)


def row_norms(head: Head) -> np.ndarray:
    """Euclidean norms of the rows: (C,)."""
    return np.concatenate([np.linalg.norm(block, axis=1) for _, block in head.blocks(_BLOCK)])


def _equal_norms(head: Head, matrix: np.ndarray | None, scale: float | None) -> Prevention:
    lengths = np.sqrt(_squares(head, matrix))
    if not (lengths > 0).all():
        zero = np.flatnonzero(lengths == 0)
        raise UncorkError(
            f"class {zero[0]} is a row of zeros ({len(zero)} such rows), which has no direction to "
            "keep: prevent with the bias instead"
        )
    length = float(lengths.mean()) if scale is None else scale
    dtype = head.weight.dtype if head.weight.dtype.kind not in "iub" else np.dtype(np.float64)
    weight = np.empty(head.weight.shape, dtype)
    for start, block in head.blocks(_BLOCK):
        with np.errstate(all="ignore"):  # what does not fit is refused
            factors = length / lengths[start : start + len(block)]
            rows = (block * factors[:, None]).astype(dtype)
        if not np.isfinite(rows).all():
            raise UncorkError(f"rows of length {length:g} do not fit into {dtype}: {_SMALLER}")
        if not rows.any(axis=1).all():
            raise UncorkError(
                f"rows of length {length:g} are rounded to 0 in {dtype}: choose a larger scale"
            )
        weight[start : start + len(block)] = rows
    notes: list[str] = []
    if head.bias is not None and (head.offsets != head.offsets[0]).any():
        notes.append("the bias is dropped: equal norms do it only without one")
    if not _surrounds_zero(head.domain, head.features):
        notes.append(
            f"inputs of domain {head.domain} do not surround 0, which equal norms count on: "
            "prevent with the bias instead if classes stay lost"
        )
    return Prevention(weight, None, "norm", matrix, length, np.zeros(head.features), tuple(notes))


def _bias(
    head: Head,
    matrix: np.ndarray | None,
    scale: float | None,
    least: bool,
    moving: bool,
    image: tuple[np.ndarray, np.ndarray] | None,
    plain: Domain,
    apex: np.ndarray | None,
) -> Prevention:
    a = np.zeros(head.features) if apex is None else np.asarray(apex, dtype=np.float64)
    squares = _squares(head, matrix, a)
    notes: list[str] = []
    wanted = 1.0 if scale is None else scale
    if least:
        wanted, wished = _least_squares(head, squares, moving=moving)
    if image is None:
        centre = _inside(plain, head.features)
        if least and moving:
            centre = _towards(plain, centre, wished)
        fits = _fitting(head, matrix, centre, plain, a)
    else:
        fold, centre = image
        fits = _fitting(head, fold, np.zeros(fold.shape[1]), plain, a)
    if least:
        wanted = max(wanted, _SMALLEST_SHARE * min(fits, 1.0))
    if fits == 0.0:
        notes.append(
            f"the witnesses M w are outside domain {head.domain} at every scale: the audit decides"
        )
    elif wanted > fits and scale is not None:
        notes.append(
            f"at scale {scale:g} witnesses leave domain {head.domain}: up to {fits:.3g} they stay "
            "inside"
        )
    elif wanted > fits:
        wanted = fits
    with np.errstate(all="ignore"):  # what does not fit is refused
        bias = -0.5 * wanted * squares
        for start, block in head.blocks(_BLOCK):
            bias[start : start + len(block)] -= (block - a) @ centre  # a·x₀ is a constant, and free
    if not np.isfinite(bias).all():
        raise UncorkError(f"the bias at scale {wanted:g} does not fit into float64: {_SMALLER}")
    if least and apex is None:
        bias -= (bias - head.offsets).mean()  # a constant is free; at an apex it would cost digits
    return Prevention(
        head.weight, bias, "bias", None if matrix is None else wanted * matrix, float(wanted),
        centre, tuple(notes), None if image is None else image[0], a,
    )  # fmt: skip


def _metric(head: Head, metric: str | np.ndarray) -> np.ndarray | None:
    """M up to its scale, symmetric; None for the identity."""
    if isinstance(metric, str):
        if metric == "identity":
            return None
        if metric != "covariance":
            raise UncorkError(
                f"metric {metric!r} is not known: expected {' or '.join(METRICS)}, or a matrix"
            )
        covariance = _covariance(head)
        values, vectors = np.linalg.eigh(covariance)
        # Directions without variance are no directions of the rows: any finite weight will do.
        floor = max(values[-1], np.finfo(np.float64).tiny) * 1e-12
        return np.asarray((vectors / np.maximum(values, floor)) @ vectors.T)
    matrix = np.asarray(metric, dtype=np.float64)
    if matrix.shape != (head.features, head.features) or not np.isfinite(matrix).all():
        raise UncorkError(
            f"the metric has shape {matrix.shape}: expected finite numbers of shape "
            f"({head.features}, {head.features})"
        )
    if not np.allclose(matrix, matrix.T, rtol=1e-6, atol=0):
        raise UncorkError("the metric is not symmetric")
    matrix = (matrix + matrix.T) / 2
    if np.linalg.eigvalsh(matrix)[0] <= 0:
        raise UncorkError("the metric is not positive definite")
    return matrix


def _covariance(head: Head) -> np.ndarray:
    total, square = np.zeros(head.features), np.zeros((head.features, head.features))
    for _, block in head.blocks(_BLOCK):
        total += block.sum(axis=0)
    mean = total / head.classes
    for _, block in head.blocks(_BLOCK):
        square += (block - mean).T @ (block - mean)
    return square / head.classes


def _squares(head: Head, matrix: np.ndarray | None, apex: np.ndarray | float = 0.0) -> np.ndarray:
    """(w − a)ᵀM(w − a) for every row: (C,)."""
    parts = []
    for _, block in head.blocks(_BLOCK):
        away = block - apex
        parts.append(np.einsum("ij,ij->i", away, away if matrix is None else away @ matrix))
    return np.concatenate(parts)


def _least_squares(head: Head, squares: np.ndarray, *, moving: bool) -> tuple[float, np.ndarray]:
    """c and x₀ for which −½ c wᵀMw − w·x₀ is nearest to the present bias, up to a constant.

    Unless x₀ is `moving` it is 0.
    """
    width = 2 + (head.features if moving else 0)
    gram, right = np.zeros((width, width)), np.zeros(width)
    for start, block in head.blocks(_BLOCK):
        stop = start + len(block)
        columns = [-0.5 * squares[start:stop, None], np.ones((len(block), 1))]
        both = np.hstack([*columns, -block] if moving else columns)
        gram += both.T @ both
        right += both.T @ head.offsets[start:stop]
    solution = np.linalg.lstsq(gram, right, rcond=1e-12)[0]
    if solution[0] <= 0:  # the best fit is no bowl: the flattest that is one, c → 0
        solution[1:] = np.linalg.lstsq(gram[1:, 1:], right[1:], rcond=1e-12)[0]
        solution[0] = 0.0
    return float(solution[0]), solution[2:] if moving else np.zeros(head.features)


def _towards(domain: Domain, centre: np.ndarray, wished: np.ndarray) -> np.ndarray:
    """As far from `centre` towards `wished` as the domain allows, with room for the witnesses."""
    if domain.contains(wished[None])[0]:
        return wished
    share = _largest(lambda s: bool(domain.contains((centre + s * (wished - centre))[None])[0]))
    return centre + 0.9 * share * (wished - centre)


def _surrounds_zero(domain: Domain, features: int) -> bool:
    corners = np.array([np.full(features, side) for side in (-1e-9, 1e-9)])
    return bool(domain.contains(corners).all())


def _inside(domain: Domain, features: int) -> np.ndarray:
    """A point well inside the domain: 0 where it is one."""
    outline = domain.outline(features)
    if _surrounds_zero(domain, features) or not outline.is_box:
        return np.zeros(features)
    lower, upper = outline.lower, outline.upper
    middle = np.where(
        np.isinf(upper), np.where(np.isinf(lower), 0.0, lower + 1.0),
        np.where(np.isinf(lower), upper - 1.0, (lower + upper) / 2),
    )  # fmt: skip
    return np.where((lower < 0) & (upper > 0), 0.0, middle)


def _fitting(
    head: Head, matrix: np.ndarray | None, centre: np.ndarray, domain: Domain, apex: np.ndarray
) -> float:
    """The largest c at which centre + c·(w − a) M is in the domain for every row; 0 if none is.

    `matrix` is M, or F where the witnesses are u of an image.
    """
    if domain.is_everything:
        return np.inf
    outline = domain.outline(len(centre))
    if outline.is_box:
        lower, upper = outline.lower, outline.upper
        fits = np.inf
        for _, block in head.blocks(_BLOCK):
            steps = block - apex if matrix is None else (block - apex) @ matrix
            with np.errstate(all="ignore"):
                room = np.where(steps > 0, upper - centre, lower - centre) / steps
            fits = min(fits, float(np.min(room[steps != 0], initial=np.inf)))
        return max(0.0, fits * _INSIDE)

    def inside(factor: float) -> bool:
        return all(
            domain.contains(
                centre
                + factor / _INSIDE * (block - apex if matrix is None else (block - apex) @ matrix)
            ).all()
            for _, block in head.blocks(_BLOCK)
        )

    return _largest(inside)


def _largest(inside: Callable[[float], bool]) -> float:
    """The first of 1, ½, ¼, … that is inside; 0 where none is."""
    factor = 1.0
    for _ in range(_HALVINGS):
        if inside(factor):
            return factor
        factor /= 2
    return 0.0
