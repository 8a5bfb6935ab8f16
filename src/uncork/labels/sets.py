"""Label sets: which labels are to be on, which off, and which may be either."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError

MOST_SETS = 5_000_000  # of one size, before a sample is asked for


@dataclass(frozen=True, eq=False)
class LabelSets:
    """Questions about a head of `labels` labels, one for each set.

    The labels of `on` are to be predicted and those of `off` are not. All others are to be off
    too, unless the set is `partial`: then they are free. `counts` says how often each set occurs
    in the data that it was read from.
    """

    labels: int
    on: tuple[np.ndarray, ...]  # sorted ids, one array a set
    off: tuple[np.ndarray, ...] = ()  # of partial sets; () where there are none
    partial: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))  # (n,)
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # (n,)

    def __post_init__(self) -> None:
        none = np.empty(0, dtype=np.int64)
        if not len(self.off):
            object.__setattr__(self, "off", (none,) * len(self.on))
        if not len(self.partial):
            object.__setattr__(self, "partial", np.zeros(len(self.on), dtype=bool))
        if not len(self.counts):
            object.__setattr__(self, "counts", np.ones(len(self.on), dtype=np.int64))

    def __len__(self) -> int:
        return len(self.on)

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self.on)

    @cached_property
    def sizes(self) -> np.ndarray:
        """How many labels are on in each set: (n,)."""
        return np.array([len(ids) for ids in self.on], dtype=np.int64)

    def signs(self, part: np.ndarray | slice | None = None) -> np.ndarray:
        """+1 where a label is to be on, −1 where off, 0 where free: (n, labels) int8."""
        which = np.arange(len(self))[slice(None) if part is None else part]
        signs = np.where(self.partial[which, None], np.int8(0), np.int8(-1))
        signs = np.repeat(signs, self.labels, axis=1)
        for wanted, ids in ((1, self.on), (-1, self.off)):
            chosen = [ids[k] for k in which.tolist()]
            rows = np.repeat(np.arange(len(which)), [len(c) for c in chosen])
            if len(rows):
                signs[rows, np.concatenate(chosen)] = wanted
        return signs

    def take(self, part: np.ndarray) -> LabelSets:
        """Some of the sets."""
        which = np.asarray(part).tolist()
        return LabelSets(
            self.labels, tuple(self.on[k] for k in which), tuple(self.off[k] for k in which),
            self.partial[part], self.counts[part],
        )  # fmt: skip

    # Making them

    @classmethod
    def of(cls, labels: int, sets: Iterable[Sequence[int] | np.ndarray]) -> LabelSets:
        """Exactly these labels on, one list of numbers a set; sets that repeat are counted."""
        counted: dict[tuple[int, ...], int] = {}
        for k, ids in enumerate(sets):
            key = _checked(labels, ids, f"set {k}")
            counted[key] = counted.get(key, 0) + 1
        if not counted:
            raise UncorkError("there is no label set to ask about")
        on = tuple(np.array(key, dtype=np.int64) for key in counted)
        return cls(labels, on, counts=np.array(list(counted.values()), dtype=np.int64))

    @classmethod
    def of_matrix(cls, matrix: Any, labels: int) -> LabelSets:
        """The distinct rows of a label matrix (examples, labels) of zeros and ones, dense or
        sparse, with how often each occurs."""
        if getattr(matrix, "ndim", 0) != 2 or matrix.shape[1] != labels:
            shape = getattr(matrix, "shape", None)
            raise UncorkError(
                f"the label matrix has shape {shape}: expected (examples, {labels}), one column "
                "for each label of the head"
            )
        if hasattr(matrix, "tocsr"):
            rows = matrix.tocsr()
            rows.sum_duplicates()
            rows.eliminate_zeros()
            if not np.isin(rows.data, (0, 1)).all():
                raise UncorkError("the label matrix holds values other than 0 and 1")
            ends = rows.indptr
            return cls.of(labels, (rows.indices[a:b] for a, b in itertools.pairwise(ends.tolist())))
        dense = np.asarray(matrix)
        if dense.dtype.kind not in "biuf" or not np.isin(dense, (0, 1)).all():
            raise UncorkError("the label matrix holds values other than 0 and 1")
        return cls.of(labels, (np.flatnonzero(row) for row in dense))

    @classmethod
    def of_size(cls, labels: int, size: int) -> LabelSets:
        """Every set of exactly `size` labels."""
        count = _number_of(labels, size)
        if count > MOST_SETS:
            raise UncorkError(
                f"{labels:,} labels have {count:,} sets of {size}: more than {MOST_SETS:,}, so "
                "ask about a sample of them"
            )
        chosen = itertools.chain.from_iterable(itertools.combinations(range(labels), size))
        ids = np.fromiter(chosen, dtype=np.int64, count=count * size).reshape(count, size)
        return cls(labels, tuple(ids))

    @classmethod
    def sample(cls, labels: int, size: int, count: int, seed: int = 0) -> LabelSets:
        """`count` sets of `size` labels, each set as likely as any other, with replacement."""
        if count < 1:
            raise UncorkError(f"a sample of {count} sets: expected one or more")
        _number_of(labels, size)
        rng = np.random.default_rng(seed)
        drawn = tuple(
            np.sort(rng.choice(labels, size, replace=False)).astype(np.int64) for _ in range(count)
        )
        return cls(labels, drawn)

    @classmethod
    def question(cls, labels: int, on: Sequence[int], off: Sequence[int] = ()) -> LabelSets:
        """One question with free labels: can all of `on` be on while all of `off` are off?"""
        wanted, refused = _checked(labels, on, "the labels"), _checked(labels, off, "the labels")
        if set(wanted) & set(refused):
            both = min(set(wanted) & set(refused))
            raise UncorkError(f"label {both} is asked to be both on and off")
        if not wanted and not refused:
            raise UncorkError("the question names no label")
        return cls(
            labels, (np.array(wanted, dtype=np.int64),), (np.array(refused, dtype=np.int64),),
            np.ones(1, dtype=bool),
        )  # fmt: skip

    def joined(self, other: LabelSets) -> LabelSets:
        """These sets and more of the same head."""
        if other.labels != self.labels:
            raise UncorkError("label sets of heads with different numbers of labels do not join")
        return LabelSets(
            self.labels, self.on + other.on, self.off + other.off,
            np.concatenate([self.partial, other.partial]),
            np.concatenate([self.counts, other.counts]),
        )  # fmt: skip


def _number_of(labels: int, size: int) -> int:
    if not 0 <= size <= labels:
        raise UncorkError(f"sets of {size} labels: the head has {labels:,} labels")
    return math.comb(labels, size)


def _checked(labels: int, ids: Sequence[int] | np.ndarray, where: str) -> tuple[int, ...]:
    """Label numbers in order, each once."""
    given = sorted({int(i) for i in ids})
    wrong = [i for i in given if not 0 <= i < labels]
    if wrong:
        raise UncorkError(
            f"{where}: label {wrong[0]} does not exist: the head has {labels:,} labels, "
            f"0 to {labels - 1}"
        )
    return tuple(given)
