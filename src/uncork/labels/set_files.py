"""Label sets from files: one set a line, JSON lists, or the label matrix of a data set."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.labels.sets import LabelSets

NOTHING = "-"  # a line that stands for the set with no label
_SVMLIGHT = (".svm", ".svmlight", ".libsvm")


def read_sets(path: str | Path, head: Head) -> LabelSets:
    """The distinct sets of a file, with how often each occurs.

    `.npy` and `.npz` hold a label matrix (examples, labels) of zeros and ones, dense or as SciPy
    saves a sparse one; `.svm`, `.svmlight` and `.libsvm` the labels before the features of each
    line; `.json` a list of lists; anything else is text with one set a line.
    """
    source = Path(path)
    if not source.is_file():
        raise UncorkError(f"{source}: no such file")
    kind = source.suffix.lower()
    try:
        if kind in (".npy", ".npz"):
            return _matrix(source, head.classes)
        names = LabelNames(head)
        if kind in _SVMLIGHT:
            return LabelSets.of(head.classes, _svmlight(source))
        if kind == ".json":
            given = json.loads(source.read_text("utf-8"))
            if not isinstance(given, list) or not all(isinstance(s, list) for s in given):
                raise UncorkError("expected a list of lists of labels")
            return LabelSets.of(head.classes, ([names(str(i)) for i in s] for s in given))
        return LabelSets.of(head.classes, _lines(source, names))
    except UncorkError as error:
        raise UncorkError(f"{source}: {error}") from None
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise UncorkError(f"{source}: not label sets, or a damaged file ({error})") from None


class LabelNames:
    """The number behind a label as people write it: its number, or its name."""

    def __init__(self, head: Head) -> None:
        self.count = head.classes
        self.by_name: dict[str, int] = {}
        for i, name in reversed(list(enumerate(head.labels or ()))):
            self.by_name[name] = i

    def __contains__(self, text: str) -> bool:
        return text.isdecimal() or text in self.by_name

    def __call__(self, text: str) -> int:
        text = text.strip()
        if text in self.by_name and not text.isdecimal():
            return self.by_name[text]
        if text.isdecimal() and int(text) < self.count:
            return int(text)
        if text.isdecimal():
            raise UncorkError(
                f"label {text} does not exist: the head has {self.count:,} labels, 0 to "
                f"{self.count - 1}"
            )
        why = "" if self.by_name else ": the head's labels have no names, so give numbers"
        raise UncorkError(f"no label is called {text!r}{why}")

    def several(self, text: str) -> list[int]:
        """Labels with commas between them; a name that holds commas may stand alone."""
        if text.strip() in self:
            return [self(text)]
        return [self(part) for part in text.split(",") if part.strip()]


def _lines(source: Path, names: LabelNames) -> Iterable[list[int]]:
    for number, line in enumerate(source.read_text("utf-8-sig").splitlines(), 1):
        text = line.strip()
        if not text:
            continue
        try:
            if text == NOTHING:
                yield []
            elif text in names:
                yield [names(text)]
            else:
                parts = re.split(r"[,\t;]", text)
                if len(parts) == 1:
                    parts = text.split()
                yield [names(part) for part in parts if part.strip()]
        except UncorkError as error:
            raise UncorkError(f"line {number}: {error}") from None


def _svmlight(source: Path) -> Iterable[Sequence[int]]:
    with source.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            text = line.split("#")[0].rstrip()
            if not text:
                continue
            first = "" if line[0].isspace() else text.split()[0]
            if ":" in first:  # a line without labels that does not begin with a space
                first = ""
            try:
                yield [int(float(part)) for part in first.split(",") if part]
            except ValueError:
                raise UncorkError(f"line {number}: {first!r}: expected label numbers") from None


def _matrix(source: Path, labels: int) -> LabelSets:
    loaded: Any = np.load(source, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return LabelSets.of_matrix(loaded, labels)
    with loaded:
        if "indptr" in loaded.files:
            return LabelSets.of_matrix(_sparse(loaded), labels)
        if len(loaded.files) != 1:
            raise UncorkError(
                f"it holds {len(loaded.files)} arrays ({', '.join(loaded.files[:5])}): expected "
                "one label matrix"
            )
        return LabelSets.of_matrix(loaded[loaded.files[0]], labels)


def _sparse(loaded: Any) -> Any:
    from scipy import sparse

    form = loaded["format"].item()
    form = form.decode() if isinstance(form, bytes) else str(form)
    made = {"csr": sparse.csr_matrix, "csc": sparse.csc_matrix}.get(form)
    if made is None:
        raise UncorkError(f"a sparse matrix in the form {form!r}: expected csr or csc")
    matrix = made((loaded["data"], loaded["indices"], loaded["indptr"]), tuple(loaded["shape"]))
    matrix.check_format(full_check=True)
    return matrix
