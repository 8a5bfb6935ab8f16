"""fastText .bin and .ftz: labels and output matrix of a flat model, product-quantised or not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.domain import Box
from uncork.loading.bounded.cursor import Cursor, mapped, opened
from uncork.loading.contents import Choice, Contents, FoundDomain, Tensor, Vocabulary

_MAGIC = 793712314
_VERSIONS = (11, 12)
_CBOW, _SKIPGRAM, _SUPERVISED = 1, 2, 3
_HIERARCHICAL, _NEGATIVE, _SOFTMAX, _ONE_VS_ALL = 1, 2, 3, 4
_CENTROIDS = 256
_MOST_WORDS = 1 << 27
_BLOCK_BYTES = 64 << 20


@dataclass(frozen=True)
class _Quantiser:
    """A product quantiser: each part of a row is one of 256 centroids."""

    features: int
    parts: int
    width: int  # of every part but the last
    last: int
    centroids: np.ndarray  # (features · 256,)

    def table(self, part: int) -> np.ndarray:
        """The centroids of one part: (256, its width)."""
        begin = part * _CENTROIDS * self.width
        width = self.last if part == self.parts - 1 else self.width
        return self.centroids[begin : begin + _CENTROIDS * width].reshape(_CENTROIDS, width)


@dataclass(frozen=True)
class _Matrix:
    """A matrix of the file, read only when asked for; `bounds` are its columns' extremes."""

    shape: tuple[int, int]
    dtype: str
    read: Callable[[], np.ndarray]
    bounds: Callable[[], tuple[np.ndarray, np.ndarray]]


def read_fasttext(path: Path) -> Contents:
    """The input and output matrices, and the dictionary's labels."""
    with opened(path) as cursor:
        magic, version = cursor.unpack("ii", "the magic and version")
        if magic != _MAGIC or version not in _VERSIONS:
            raise UncorkError(
                f"{path} is fastText format version {version}, and 11 and 12 are read: train or "
                "convert it with a current fastText"
            )
        arguments = cursor.unpack("12id", "the training arguments")
        features, loss, model = arguments[0], arguments[6], arguments[7]
        if not 1 <= loss <= 4 or not 1 <= model <= 3 or features < 1:
            raise UncorkError(
                f"{path} is damaged: loss {loss}, model {model}, {features} features by its header"
            )
        names = _dictionary(cursor, labels=model == _SUPERVISED)
        quantised = cursor.number("?", "whether the input matrix is quantised")
        inputs = _matrix(cursor, quantised, "the input matrix")
        quantised &= cursor.number("?", "whether the output matrix is quantised")
        outputs = _matrix(cursor, quantised, "the output matrix")
        if cursor.left:
            raise UncorkError(
                f"{path} is damaged: {cursor.left} bytes are left after the output matrix"
            )
    for matrix, what in ((inputs, "input"), (outputs, "output")):
        if matrix.shape[1] != features:
            raise UncorkError(
                f"{path} is damaged: its {what} matrix has {matrix.shape[1]} columns, its header "
                f"says {features}"
            )
    tensors = {
        "input": Tensor("input", inputs.shape, inputs.dtype, inputs.read),
        "output": Tensor("output", outputs.shape, outputs.dtype, outputs.read),
    }
    what = "labels" if model == _SUPERVISED else "words"
    return Contents(
        path,
        "fasttext",
        tensors,
        functools.partial(_choose, path, tensors["output"], loss, model, quantised),
        vocabulary=functools.partial(_vocabulary, names, what),
        domain=functools.partial(_domain, inputs),
    )


def _dictionary(cursor: Cursor, labels: bool) -> list[str]:
    """Names of the classes in their order: the labels, or the words of a model without any."""
    size, words, label_count, _, pruned = cursor.unpack("iiiqq", "the dictionary's header")
    if not 0 <= size <= min(_MOST_WORDS, cursor.left // 10) or words + label_count != size:
        raise UncorkError(
            f"{cursor.path} is damaged: its dictionary announces {size} entries, {words} words and "
            f"{label_count} labels"
        )
    names = []
    for _ in range(size):
        end = cursor.data.find(b"\0", cursor.at, cursor.end)
        if end < 0:
            raise UncorkError(f"{cursor.path} is truncated: its dictionary ends in a word")
        name = cursor.take(end - cursor.at, "a word")
        _, _, kind = cursor.unpack("Bqb", "a dictionary entry")
        if kind == (1 if labels else 0):
            names.append(name.decode("utf-8", "backslashreplace"))
    if len(names) != (label_count if labels else words):
        raise UncorkError(f"{cursor.path} is damaged: its dictionary's counts do not agree")
    if pruned > 0:  # −1 where nothing was pruned
        cursor.skip(8 * pruned, "the list of pruned words")
    return names


def _matrix(cursor: Cursor, quantised: bool, what: str) -> _Matrix:
    if quantised:
        return _quantised_matrix(cursor, what)
    rows, columns = cursor.unpack("qq", what)
    if rows < 0 or columns < 0:
        raise UncorkError(f"{cursor.path} is damaged: {what} is {rows} × {columns}")
    offset = cursor.skip(4 * rows * columns, what)
    read = functools.partial(mapped, cursor.path, "<f4", (rows, columns), offset)
    return _Matrix((rows, columns), "float32", read, lambda: _extremes(read()))


def _quantised_matrix(cursor: Cursor, what: str) -> _Matrix:
    with_norms = cursor.number("?", what)
    rows, columns, size = cursor.unpack("qqi", what)
    if rows < 0 or columns < 1 or size < 0:
        raise UncorkError(f"{cursor.path} is damaged: {what} is {rows} × {columns}")
    codes = cursor.array(np.uint8, size, what)
    parts = _quantiser(cursor, what)
    if parts.features != columns or parts.parts * rows != size:
        raise UncorkError(
            f"{cursor.path} is damaged: {what} is {rows} × {columns} in {size} codes of "
            f"{parts.parts} a row"
        )
    norm_codes, norms = None, None
    if with_norms:
        norm_codes = cursor.array(np.uint8, rows, what)
        quantiser = _quantiser(cursor, what)
        if quantiser.features != 1:
            raise UncorkError(f"{cursor.path} is damaged: the norms of {what} are not numbers")
        norms = quantiser.table(0)
    dtype = "float64" if with_norms else "float32"

    def read() -> np.ndarray:
        result = np.empty((rows, columns), dtype)
        at = 0
        for part in range(parts.parts):
            table = parts.table(part)
            picked = codes.reshape(rows, parts.parts)[:, part]
            result[:, at : at + table.shape[1]] = table[picked]
            at += table.shape[1]
        if norms is not None and norm_codes is not None:
            result *= norms[norm_codes].astype(np.float64)  # float32 × float32 is exact in float64
        return result

    def bounds() -> tuple[np.ndarray, np.ndarray]:
        tables = [parts.table(part) for part in range(parts.parts)]
        lower = np.concatenate([table.min(axis=0) for table in tables]).astype(np.float64)
        upper = np.concatenate([table.max(axis=0) for table in tables]).astype(np.float64)
        if norms is not None:
            sides = np.array([side * norm for side in (lower, upper)
                              for norm in (float(norms.min()), float(norms.max()))])  # fmt: skip
            lower, upper = sides.min(axis=0), sides.max(axis=0)
        return lower, upper

    return _Matrix((rows, columns), dtype, read, bounds)


def _quantiser(cursor: Cursor, what: str) -> _Quantiser:
    features, parts, width, last = cursor.unpack("4i", what)
    # The parts must add up to the row, or the centroids would be read across their borders.
    if (
        features < 1
        or parts < 1
        or not 1 <= last <= width
        or (parts - 1) * width + last != features
    ):
        raise UncorkError(
            f"{cursor.path} is damaged: {what} cuts {features} features into {parts} parts of "
            f"{width} and {last}"
        )
    return _Quantiser(features, parts, width, last, cursor.array("f4", features * _CENTROIDS, what))


def _choose(path: Path, output: Tensor, loss: int, model: int, quantised: bool) -> Choice:
    if loss == _HIERARCHICAL:
        raise UncorkError(
            f"{path} was trained with hierarchical softmax (-loss hs): the {output.shape[0]} rows "
            "of its output matrix are nodes of a binary tree, not classes, and a label wins by a "
            "product along its path, so there is no argmax over rows to audit; "
            "train with -loss softmax to have one"
        )
    notes = []
    if loss in (_NEGATIVE, _ONE_VS_ALL):
        how = "negative sampling" if loss == _NEGATIVE else "one-vs-all"
        notes.append(
            f"trained with {how}: each score is a sigmoid of its own, the largest logit still "
            "comes first, but fastText's table ends at ±8, beyond which scores tie"
        )
    if model in (_CBOW, _SKIPGRAM):
        notes.append("a word-vector model: the classes are the words it was trained to guess")
    if quantised:
        notes.append("the output matrix is product-quantised: its rows are the centroids' values")
    why = "the output matrix of a fastText model" + (" (softmax)" if loss == _SOFTMAX else "")
    return Choice(output.read(), None, output.name, None, why, tuple(notes))


def _vocabulary(names: list[str], what: str, classes: int) -> Vocabulary:
    if len(names) != classes:
        why = f"the dictionary has {len(names)} {what} for {classes} classes: not used"
        return Vocabulary(None, why)
    special = tuple(row for row, name in enumerate(names) if name == "</s>")
    return Vocabulary(tuple(names), f"the dictionary's {what}", special)


def _domain(inputs: _Matrix, choice: Choice) -> FoundDomain | None:
    """The head sees means of rows of the input matrix: each lies between the columns' extremes."""
    if choice.weight_name != "output" or not inputs.shape[0]:
        return None
    lower, upper = inputs.bounds()
    if not (np.isfinite(lower).all() and np.isfinite(upper).all()):
        return None
    why = f"the head sees means of the input matrix's {inputs.shape[0]} rows (words and n-grams)"
    return FoundDomain(Box(lower, upper), why)


def _extremes(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest of each column, a few rows at a time: (d,), (d,)."""
    lower = np.full(matrix.shape[1], np.inf)
    upper = np.full(matrix.shape[1], -np.inf)
    step = max(1, _BLOCK_BYTES // max(1, matrix[:1].nbytes))
    for start in range(0, matrix.shape[0], step):
        block = matrix[start : start + step]
        lower, upper = np.fmin(lower, block.min(axis=0)), np.fmax(upper, block.max(axis=0))
    return lower, upper
