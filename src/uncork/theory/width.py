"""Hidden width from outputs: how many features a model's head has, told from its logits alone.

Logits of n contexts have the rank of the head's input space, however large the vocabulary: the
singular values drop to rounding level after it. What the drop counts depends on what precedes the
head, and outputs alone cannot tell everything apart; see `Width.readings`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.progress import Progress
from uncork.theory.outputs import Kind, Outputs
from uncork.theory.spectrum import ROUNDOFF, spectrum

Norm = Literal["layernorm", "other"]

CLEAR, WEAK = 30.0, 3.0  # how many times σ must fall for a gap to be clear, or a gap at all
_FLAT = 10.0  # behind a gap lies rounding: nothing of it exceeds its median by more than this
_USABLE = 0.9  # gaps are looked for in this share of the spectrum: the last values fall anyway
_WHOLE = 2e-3  # a cap this near a whole number is that number
_HASHED = 1 << 22  # values looked at in one go for repetitions
_SEARCHED = 1200  # contexts and classes that the search for a cap looks at


@dataclass(frozen=True)
class Gap:
    """Where singular values fall to rounding level: after `rank` of them, by `ratio`."""

    rank: int
    ratio: float

    @property
    def clear(self) -> bool:
        return self.ratio >= CLEAR


@dataclass(frozen=True)
class Width:
    """An estimate of the hidden width; `width` is None where the outputs do not tell.

    `readings` are the widths that explain the outputs equally well, each with what it supposes. A
    LayerNorm keeps its output in d − 1 dimensions beside a fixed offset, so that d features behind
    a LayerNorm and d − 1 behind an RMSNorm with a bias are the same set of functions.
    Unless told which, the even number is taken: widths are.
    """

    width: int | None
    why: str
    readings: tuple[tuple[int, str], ...] = ()
    gap: Gap | None = None  # the less clear one of two
    ranks: tuple[int, int] | None = None  # with each class's mean over contexts, and without it
    confidence: Literal["clear", "weak", "none"] = "none"
    softcap: float | None = None  # the cap that was undone
    shape: tuple[int, int] = (0, 0)
    values: np.ndarray = field(default_factory=lambda: np.zeros(0), repr=False, compare=False)


def find_gap(values: np.ndarray, usable: int | None = None, noise: float = 0.0) -> Gap | None:
    """The largest fall of a spectrum behind which there is nothing but a flat floor.

    A fall that begins at or below `noise`, where rounding ends, is not looked at: what falls there
    is rounding itself, in rows or columns that repeat one another's.
    """
    values = np.asarray(values, dtype=np.float64)
    end = len(values) if usable is None else min(usable, len(values))
    end = int(_USABLE * end)
    if end < 3 or values[0] == 0:
        return None
    tiny = np.finfo(np.float64).tiny
    kept = np.maximum(values[:end], tiny)
    ratios = kept[:-1] / kept[1:]
    for i in np.argsort(-ratios):
        if ratios[i] < WEAK:
            return None
        if kept[i] <= noise:
            continue
        floor = kept[i + 1 :]
        if floor[0] <= _FLAT * float(np.median(floor)):
            return Gap(int(i) + 1, float(ratios[i]))
    return None


def hidden_width(
    values: Any,
    kind: Kind = "logits",
    *,
    norm: Norm | None = None,
    softcap: float | Literal["find"] | None = None,
    progress: Progress | None = None,
) -> Width:
    """Estimate the width from logits or log-probabilities (contexts, classes) of a black box.

    It takes a few more contexts than the width, all different; repeated contexts and classes are
    left out. A width is called clear only where halves of the data tell the same. `norm` says what
    precedes the head if that is known. `softcap` undoes z = c·tanh(y/c) (Gemma: 30), which makes
    the rank full; "find" looks for c, and so does None where logits show no clear gap without it.
    Log-probabilities of a capped head cannot be uncapped: their shift is unknown.
    """
    array = np.asarray(values)
    if norm not in (None, "layernorm", "other"):
        raise UncorkError(f"norm is {norm!r}: expected 'layernorm' or 'other' (or nothing)")
    if softcap is not None and kind != "logits":
        raise UncorkError(
            "a cap can be undone on logits only: log-probabilities are shifted by row"
        )
    if softcap == "find":
        cap = find_softcap(array)
        if cap is None:
            return Width(None, "no cap makes the spectrum fall", shape=_shape(array))
    else:
        cap = softcap
    found = _estimate(array, kind, norm, cap, progress)
    if found.confidence != "clear" and softcap is None and kind == "logits" and _enough(array):
        cap = find_softcap(array)
        if cap is not None:
            capped = _estimate(array, kind, norm, cap, progress)
            return capped if capped.confidence == "clear" else found
    return found


def _shape(array: np.ndarray) -> tuple[int, int]:
    return (int(array.shape[0]), int(array.shape[1])) if array.ndim == 2 else (0, 0)


def _enough(array: np.ndarray) -> bool:
    return array.ndim == 2 and min(array.shape) >= 8


def _estimate(
    array: np.ndarray, kind: Kind, norm: Norm | None, cap: float | None, progress: Progress | None
) -> Width:
    shape = _shape(array)
    if cap is not None:
        array = uncapped(array, cap)
    outputs = Outputs(array, kind, "classes", progress=progress)  # all must be finite numbers
    distinct = _distinct(array)
    if min(distinct.shape) < 2:
        return Width(None, "all contexts or all classes are alike", softcap=cap, shape=shape)
    if distinct.shape != shape:
        # Log-probabilities of some classes sum to less than 1: they differ by shifts, as logits do.
        outputs = Outputs(distinct, "logits", "classes", progress=progress)
    contexts, classes = outputs.shape
    plain, centred, shown = _gaps(outputs, progress)
    if plain is None or centred is None:
        why = (
            f"no gap in {len(shown):,} singular values: the width exceeds what {contexts:,} "
            f"contexts and {classes:,} classes can show, or the values are too coarse, or no one "
            "linear map makes them"
        )
        return Width(None, why, softcap=cap, shape=shape, values=shown)
    weaker = min(plain, centred, key=lambda gap: gap.ratio)
    ranks = (plain.rank, centred.rank)
    readings = _readings(*ranks)
    if not readings:
        why = (
            f"the ranks {plain.rank} and {centred.rank}, with and without each class's mean over "
            "contexts, do not belong together"
        )
        return Width(None, why, (), weaker, ranks, "none", cap, shape, shown)
    chosen = [r for r in readings if norm is None or (norm == "layernorm") == ("Layer" in r[1])]
    if norm is None:
        chosen.sort(key=lambda reading: reading[0] % 2)
    width, supposed = chosen[0]
    others = "; ".join(f"{w} if {text}" for w, text in readings if w != width)
    how = "as told" if norm is not None else "the even one of two"
    why = f"{supposed} ({how}; {others})"
    confidence: Literal["clear", "weak"] = "weak"
    if weaker.clear:
        against = _against(distinct, ranks)
        confidence = "weak" if against else "clear"
        why += f". {against}" if against else ""
    return Width(width, why, tuple(readings), weaker, ranks, confidence, cap, shape, shown)


def _gaps(outputs: Outputs, progress: Progress | None) -> tuple[Gap | None, Gap | None, np.ndarray]:
    """Gaps with each class's mean over contexts and without it, and the spectrum with it."""
    usable = min(outputs.shape) - 1  # a mean was taken away on either side
    # The largest singular value of errors that are independent, half a unit in the last place or
    # less, and so about 0.4 of one in the mean; `outputs.noise` is a bound for any errors.
    _, factor = ROUNDOFF[outputs.dtype]
    noise = 0.5 / factor * outputs.total_noise * sum(n**-0.5 for n in outputs.shape)
    with_means = spectrum(outputs.centred("classes"), progress=progress).values
    without = spectrum(outputs.centred("both"), progress=progress).values
    return (
        find_gap(with_means, usable, noise),
        find_gap(without, usable, noise),
        with_means,
    )


def _against(distinct: np.ndarray, ranks: tuple[int, int]) -> str:
    """Why halves of the data do not bear these ranks out; "" where they do."""
    contexts, classes = distinct.shape
    least = int(ranks[0] / _USABLE) + 3  # that a half needs of either to show the gap
    halves = []
    if contexts // 2 >= least:
        halves += [distinct[::2], distinct[1::2]]
    if classes // 2 >= least:
        halves += [distinct[:, ::2], distinct[:, 1::2]]
    if not halves:
        return "There are too few contexts and classes to ask halves of them too"
    for half in halves:
        few = _distinct(half)
        if min(few.shape) < 2:
            return "A half of the data is all alike"
        plain, centred, _ = _gaps(Outputs(few, "logits", "classes"), None)
        found = (plain and plain.rank, centred and centred.rank)
        if found != ranks:
            said = " and ".join("none" if rank is None else f"{rank:,}" for rank in found)
            return f"A half of the data gives other ranks ({said})"
    return ""


def _distinct(array: np.ndarray) -> np.ndarray:
    """The array without rows and columns that repeat others, value by value."""
    rows = _first_of_each(array)
    array = array if len(rows) == len(array) else array[rows]
    columns = _first_of_each(array.T)
    return array if len(columns) == array.shape[1] else array[:, columns]


def _first_of_each(rows: np.ndarray) -> np.ndarray:
    """The first of every set of equal rows, in order, told apart by two random sums of their bits;
    a row lost to chance, one in 10³⁰ pairs, is one context less."""
    rng = np.random.default_rng(0)
    keys = np.zeros((len(rows), 2), dtype=np.uint64)
    step = max(1, _HASHED // max(1, len(rows)))
    for start in range(0, rows.shape[1], step):
        block = np.ascontiguousarray(rows[:, start : start + step], dtype=np.float64) + 0.0
        bits = block.view(np.uint64)
        bits ^= bits >> np.uint64(29)
        factors = rng.integers(0, 2**64, size=(bits.shape[1], 2), dtype=np.uint64) | np.uint64(1)
        keys += bits @ factors
    _, first = np.unique(keys, axis=0, return_index=True)
    return np.sort(first)


def _readings(plain: int, centred: int) -> list[tuple[int, str]]:
    """Widths that give these ranks of the logits, with each class's mean and without it."""
    if plain == centred:  # no offset: the span holds its own mean
        return [
            (plain, "an RMSNorm or none precedes a head without bias"),
            (plain + 1, "a LayerNorm without offset precedes a head without bias"),
        ]
    if plain == centred + 1:
        return [
            (plain, "a LayerNorm precedes the head, and it or the head adds an offset"),
            (centred, "an RMSNorm or none precedes a head with bias"),
        ]
    return []


def uncapped(array: np.ndarray, cap: float) -> np.ndarray:
    """y of z = c·tanh(y/c), in the type of z, whose roundoff it keeps."""
    if cap == math.inf:
        raise UncorkError("a cap of inf is none: leave it out")
    largest = float(np.abs(array).max())
    if not cap > largest:
        raise UncorkError(f"a cap of {cap:g} was never there: a logit has size {largest:g}")
    wide = np.asarray(array, dtype=np.float64)
    undone = cap * np.arctanh(wide / cap)
    return undone.astype(array.dtype) if array.dtype.itemsize < 8 else undone


def find_softcap(logits: Any) -> float | None:
    """The c of z = c·tanh(y/c) that leaves the fewest directions, or None if none stands out.

    At the right c all singular values but the width's fall to rounding level, so that the sum of
    their logarithms has a sharp minimum: a scan for it, and golden sections in the best interval.
    """
    array = np.asarray(logits, dtype=np.float64)
    rng = np.random.default_rng(0)
    few = array[np.sort(rng.permutation(len(array))[:_SEARCHED])]
    few = few[:, np.sort(rng.permutation(array.shape[1])[:_SEARCHED])]
    largest = float(np.abs(array).max())
    if largest == 0 or not np.isfinite(largest):
        return None

    def score(log_cap: float) -> float:
        cap = math.exp(log_cap)
        y = cap * np.arctanh(few / cap)
        y -= y.mean(axis=1, keepdims=True)
        values = np.linalg.svd(y, compute_uv=False)[: int(_USABLE * (min(y.shape) - 1))]
        return float(np.log(np.maximum(values / values[0], 1e-300)).mean())

    grid = np.log(largest) + np.linspace(1e-3, math.log(1000.0), 60)
    scores = [score(x) for x in grid]
    best = int(np.argmin(scores))
    low, high = grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)]
    golden = (math.sqrt(5) - 1) / 2
    a, b = high - golden * (high - low), low + golden * (high - low)
    at_a, at_b = score(a), score(b)
    for _ in range(40):
        if at_a < at_b:
            high, b, at_b = b, a, at_a
            a = high - golden * (high - low)
            at_a = score(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + golden * (high - low)
            at_b = score(b)
    found = math.exp((low + high) / 2)
    stands_out = min(at_a, at_b) < float(np.median(scores)) - 1.0
    if not stands_out:
        return None
    return float(round(found)) if abs(found - round(found)) <= _WHOLE * found else found
