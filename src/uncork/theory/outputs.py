"""Log-probabilities of a model as a matrix, contexts × classes: as given, or from a head and the
hidden states that arrive at it, which gives the same spectrum without making the matrix."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.progress import Progress
from uncork.theory.spectrum import ROUNDOFF, Spectrum, triangular

Centre = Literal["none", "classes", "both"]
Kind = Literal["logits", "log-probabilities"]

_BLOCK_BYTES = 128 << 20
_HELD_BYTES = 1 << 30  # of a mapped file's columns, read in one go
_HELD_ROWS = 512
_SUMS_TO_ONE = 0.05  # how far a row of log-probabilities may be from log 1, after rounding


class Outputs:
    """Values (contexts, classes) of a file, as log-probabilities or with their means taken away.

    `centre="none"` gives log-probabilities; `"classes"` takes each context's mean over classes
    away, and with it the shift that a softmax cannot see; `"both"` also takes each class's mean
    over contexts away, and with it the bias.
    """

    def __init__(
        self,
        values: np.ndarray,
        kind: Kind,
        centre: Centre = "none",
        *,
        name: str = "outputs",
        progress: Progress | None = None,
    ) -> None:
        if values.ndim != 2 or min(values.shape) < 2:
            raise UncorkError(
                f"{name} has shape {values.shape}: expected contexts × classes, two of each"
            )
        self.values, self.kind, self.name = values, kind, name
        self.contexts, self.classes = values.shape
        self.dtype = _stored_type(values)
        self._held: tuple[int, np.ndarray] = 0, np.zeros((0, 0))
        self._scan(Progress() if progress is None else progress)
        self.centred(centre)

    def _scan(self, progress: Progress) -> None:
        """One pass: normalisers, means, norms; and every value must be finite."""
        self.normaliser = np.empty(self.contexts)
        self.row_mean = np.empty(self.contexts)
        column_sum, column_square = np.zeros(self.classes), np.zeros(self.classes)
        widest = 0.0
        step = max(1, _BLOCK_BYTES // (8 * self.classes))
        progress.stage("read", self.contexts)
        for start in range(0, self.contexts, step):
            block = np.asarray(self.values[start : start + step], dtype=np.float64)
            here = slice(start, start + len(block))
            if not np.isfinite(block).all():
                i, j = np.argwhere(~np.isfinite(block))[0]
                raise UncorkError(
                    f"{self.name}[{start + i}, {j}] is {block[i, j]}: a rank needs finite values; "
                    "a probability of zero has no logarithm, and no softmax head can give one"
                )
            top = block.max(axis=1)
            self.normaliser[here] = top + np.log(np.exp(block - top[:, None]).sum(axis=1))
            self.row_mean[here] = block.mean(axis=1)
            column_sum += block.sum(axis=0)
            column_square += np.einsum("ij,ij->j", block, block)
            widest = max(widest, float(np.einsum("ij,ij->i", block, block).max()))
            _release(self.values)
            progress.advance(len(block))
        if not np.isfinite(column_square.sum()):  # no sum of squares would tell ranks apart
            raise UncorkError(
                f"{self.name}: the squares of its values exceed what float64 holds: no outputs of "
                "a model are that large; scale them down"
            )
        if self.kind == "log-probabilities":
            worst = int(np.abs(self.normaliser).argmax())
            if abs(self.normaliser[worst]) > _SUMS_TO_ONE:
                raise UncorkError(
                    f"{self.name}: row {worst} sums to {np.exp(self.normaliser[worst]):.3g} as "
                    "probabilities, not to 1: these are not natural logarithms of probabilities; "
                    "if they are logits, say so (--logits)"
                )
        self._column_mean = column_sum / self.contexts
        roundoff, factor = ROUNDOFF[self.dtype]
        # Independent errors of at most this share of each value: Bandeira and van Handel (2016).
        self.noise = factor * roundoff * (widest**0.5 + float(column_square.max()) ** 0.5)
        self.total_noise = factor * roundoff * float(column_square.sum()) ** 0.5

    def centred(self, centre: Centre) -> Outputs:
        """Choose what is taken away; returns itself."""
        self._shift = np.zeros(self.contexts)
        self._offset = np.zeros(self.classes)
        if centre == "none" and self.kind == "logits":
            self._shift = self.normaliser
        elif centre != "none":
            self._shift = self.row_mean
            if centre == "both":
                self._offset = self._column_mean - self.row_mean.mean()
        return self

    @property
    def shape(self) -> tuple[int, int]:
        return self.contexts, self.classes

    def panel(self, start: int, stop: int) -> np.ndarray:
        """Along the longer side, in float64: contexts, or classes."""
        if self.contexts >= self.classes:
            block = np.array(self.values[start:stop], dtype=np.float64)
            _release(self.values)
            block -= self._shift[start:stop, None]
            block -= self._offset
            return block
        block = np.array(self._columns(start, stop), dtype=np.float64)
        block -= self._shift[:, None]
        block -= self._offset[start:stop]
        return block.T  # as it lies: to turn it round in memory would take longer than its use

    def _columns(self, start: int, stop: int) -> np.ndarray:
        """Columns of a file stored by rows, read many at a time: few long reads, not many short."""
        first, held = self._held
        if not first <= start <= stop <= first + held.shape[1]:
            width = max(stop - start, _HELD_BYTES // (self.contexts * self.values.itemsize))
            if self.values.flags.f_contiguous or _mapped(self.values) is None:
                width = stop - start
            held = np.zeros((0, 0))
            self._held = start, held  # lets go of the old one first
            width = min(width, self.classes - start)
            first, held = start, np.empty((self.contexts, width), dtype=self.values.dtype)
            for row in range(0, self.contexts, _HELD_ROWS):  # pages are mapped by more than asked
                here = slice(row, row + _HELD_ROWS)
                held[here] = self.values[here, start : start + width]
                _release(self.values)
            self._held = first, held
        return held[:, start - first : stop - first]


def _release(values: np.ndarray) -> None:
    """Let go of the pages of a mapped file that were read: they would count as our memory."""
    if values.flags.writeable:
        return  # a map that may hold changes of its own
    mapped = _mapped(values)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def _mapped(values: np.ndarray) -> mmap.mmap | None:
    """The map of a file that an array lies in."""
    base: Any = values
    while base is not None and not isinstance(base, mmap.mmap):
        base = getattr(base, "base", None)
    return base


def _stored_type(values: np.ndarray) -> str:
    """The type values were rounded to: float64 may hold what a narrower type computed."""
    name = str(values.dtype)
    if name not in ROUNDOFF:
        raise UncorkError(f"outputs are {name}: expected floating-point numbers of 16 to 64 bits")
    if name == "float64":
        sample = np.asarray(values[:: max(1, len(values) // 64)], dtype=np.float64)
        with np.errstate(over="ignore"):
            if (sample.astype(np.float32) == sample).all() and not (
                sample == np.rint(sample)
            ).all():
                return "float32"
    return name


def looks_like_log_probabilities(values: np.ndarray) -> bool:
    """Whether a few rows are logarithms of probabilities: none positive, each summing to one."""
    if values.ndim != 2 or not len(values):
        return False
    some = np.asarray(values[:: max(1, len(values) // 8)][:8], dtype=np.float64)
    if not np.isfinite(some).all() or (some > 1e-6).any():
        return False
    return bool((np.abs(np.log(np.exp(some).sum(axis=1))) <= _SUMS_TO_ONE).all())


def spectrum_of_head(
    head: Head, hidden: np.ndarray, centre: Centre = "none", *, progress: Progress | None = None
) -> Spectrum:
    """The spectrum of log softmax(hidden Wᵀ + b) over those contexts: hidden is (contexts, d).

    The matrix is [hidden, 1, −logsumexp]·[W, b, 1]ᵀ, so that its singular values are those of the
    product of two triangular factors of d + 2 columns. It is never made: only its normalisers are,
    in blocks. Weights and hidden states count as exact.
    """
    progress = Progress() if progress is None else progress
    hidden = np.asarray(hidden)
    if hidden.ndim != 2 or hidden.shape[1] != head.features:
        raise UncorkError(
            f"hidden states have shape {hidden.shape}: expected contexts × {head.features} features"
        )
    if not np.isfinite(hidden).all():
        raise UncorkError("hidden states hold NaN or infinity: every value must be finite")
    contexts, classes = len(hidden), head.classes
    normaliser = None
    if centre == "none":
        normaliser = normalisers(head, hidden, progress)
    mean_row, mean_bias = np.zeros(head.features), 0.0
    if centre != "none":
        step = _rows(head.features)
        mean_row = sum(block.sum(axis=0) for _, block in head.blocks(step)) / classes
        mean_bias = float(head.offsets.mean())
    has_offset = head.bias is not None and centre != "both"
    mean_hidden = hidden.mean(axis=0, dtype=np.float64) if centre == "both" else 0.0

    def left() -> Iterator[np.ndarray]:
        for start in range(0, contexts, step):
            block = np.asarray(hidden[start : start + step], dtype=np.float64) - mean_hidden
            columns = [block]
            if has_offset:
                columns.append(np.ones((len(block), 1)))
            if normaliser is not None:
                columns.append(-normaliser[start : start + step, None])
            yield np.hstack(columns)

    def right() -> Iterator[np.ndarray]:
        for start, block in head.blocks(step):
            columns = [block - mean_row]
            if has_offset:
                columns.append(head.offsets[start : start + len(block), None] - mean_bias)
            if normaliser is not None:
                columns.append(np.ones((len(block), 1)))
            yield np.hstack(columns)

    step = _rows(head.features + 2)
    width = head.features + has_offset + (normaliser is not None)
    product = triangular(left(), width) @ triangular(right(), width).T
    values = np.linalg.svd(product, compute_uv=False)
    return Spectrum.whole(values, (contexts, classes))


def head_spectrum(head: Head) -> Spectrum:
    """The singular values of a head's weight alone."""
    blocks = (block for _, block in head.blocks(_rows(head.features)))
    values = np.linalg.svd(triangular(blocks, head.features), compute_uv=False)
    return Spectrum.whole(values, (head.classes, head.features))


def centred_spectrum(head: Head) -> Spectrum:
    """The singular values of a head's rows less their mean, which changes no order of classes.

    Rounding to the stored type leaves values of its own, of about u·rms(W)·(√C + √d) at most:
    what a product of two narrow matrices has beside its rank, once it is stored. They do not count.
    """
    step = _rows(head.features)
    mean = sum(block.sum(axis=0) for _, block in head.blocks(step)) / head.classes
    energy = sum(float(np.vdot(block, block)) for _, block in head.blocks(step))
    blocks = (block - mean for _, block in head.blocks(step))
    values = np.linalg.svd(triangular(blocks, head.features), compute_uv=False)
    roundoff, _ = ROUNDOFF.get(head.dtype, ROUNDOFF["float64"])
    rms = (energy / head.weight.size) ** 0.5
    noise = roundoff * rms * (head.classes**0.5 + head.features**0.5)
    return replace(Spectrum.whole(values, head.weight.shape), noise=noise)


def normalisers(head: Head, hidden: np.ndarray, progress: Progress | None = None) -> np.ndarray:
    """logsumexp of the logits of each context, block by block: (contexts,)."""
    progress = Progress() if progress is None else progress
    contexts = len(hidden)
    step = max(1, min(contexts, 2048))
    rows = max(1, _BLOCK_BYTES // (8 * max(step, head.features)))
    progress.stage("normalise", head.classes)
    top = np.full(contexts, -np.inf)
    total = np.zeros(contexts)
    for first, block in head.blocks(rows):
        offsets = head.offsets[first : first + len(block)]
        for start in range(0, contexts, step):
            here = slice(start, start + step)
            logits = np.asarray(hidden[here], dtype=np.float64) @ block.T + offsets
            higher = np.maximum(top[here], logits.max(axis=1))
            total[here] *= np.exp(top[here] - higher)
            logits -= higher[:, None]
            total[here] += np.exp(logits, out=logits).sum(axis=1)
            top[here] = higher
        progress.advance(len(block))
    return top + np.log(total)


def _rows(width: int) -> int:
    return max(2 * width, _BLOCK_BYTES // (8 * width) // 2)
