"""JSON weights: arrays by name with labels beside them, scikit-learn's names, brain.js's networks.

The plain form is an object with `weight` (a list of rows, one a class), perhaps `bias`, `labels`.
Other names are those that other formats use for output layers (`fc.weight`, `coef_`); numbers are
JSON's, in float64.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.contents import Choice, Contents, Tensor, Vocabulary
from uncork.loading.json_weights.brain_js import brain_js
from uncork.loading.naming import choose_by_name, choose_columns

_MOST_BYTES = 512 << 20
_LOOKED_AT = 1 << 20
_SHAPES = (
    re.compile(rb'"([\w./:-]*[._/])?(weights?|W|kernel|coef_|fc_w)"\s*:\s*\[\s*\[\s*-?\d'),
    re.compile(rb'"sizes"\s*:\s*\[\s*\d.*"layers"\s*:\s*\[\s*\{', re.DOTALL),
)
_OTHERS = re.compile(rb'"(weightsManifest|modelTopology|weight_map|model_type)"\s*:')
_NOT_THESE = re.compile(r"(config|index|tokenizer\w*|vocab|special_tokens_map|added_tokens)\.json$")
_LABELS = ("labels", "classes", "classes_", "class_names", "label_names", "id2label", "names")
_ALIASES = {"weights": "weight", "biases": "bias"}
_MOST_ARRAYS = 10_000


def looks_like_json_weights(path: Path, start: bytes, size: int) -> bool:
    """An object with a list of rows under a weight's name, or a network of brain.js."""
    if start.lstrip()[:1] != b"{" or _NOT_THESE.search(path.name.lower()):
        return False
    with path.open("rb") as file:
        begin = file.read(_LOOKED_AT)
    return any(shape.search(begin) for shape in _SHAPES) and not _OTHERS.search(begin)


def read_json_weights(path: Path) -> Contents:
    """The arrays of a file by name, and which of them is the head."""
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise UncorkError(f"{path} has {size} bytes of JSON: save the weights with numpy.savez")
    try:
        said = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        text = " ".join(str(error).split())[:80]
        raise UncorkError(f"{path} is no JSON: truncated or damaged ({text})") from None
    if not isinstance(said, dict):
        raise UncorkError(f"{path} is not a JSON object: damaged")
    network = brain_js(path, said)
    if network is not None:
        return network
    tensors = _arrays(path, said)
    return Contents(
        path,
        "json weights",
        tensors,
        functools.partial(_choose, path, said, tensors),
        functools.partial(choose_columns, path, tensors),
        functools.partial(_vocabulary, said),
    )


def _arrays(
    path: Path, said: Mapping[str, Any], prefix: str = "", depth: int = 0
) -> dict[str, Any]:
    """Every list of numbers, and list of such lists, by its name; objects inside with a dot."""
    found: dict[str, Tensor] = {}
    for name, value in said.items():
        full = f"{prefix}{_ALIASES.get(name, name)}"
        if isinstance(value, dict) and depth < 4 and name not in _LABELS:
            found |= _arrays(path, value, f"{full}.", depth + 1)
        elif isinstance(value, list) and value and name not in _LABELS:
            array = as_array(path, full, value)
            if array is not None:
                found[full] = Tensor(full, array.shape, "float64", functools.partial(_of, array))
        if len(found) > _MOST_ARRAYS:
            raise UncorkError(f"{path} holds more than {_MOST_ARRAYS} arrays")
    return found


def _of(array: np.ndarray) -> np.ndarray:
    return array


def as_array(path: Path, name: str, value: list[Any]) -> np.ndarray | None:
    """A list of numbers or of rows of them; None where it holds something else."""
    rows = value if isinstance(value[0], list) else [value]
    if any(not isinstance(row, list) for row in rows):
        return None
    plain = (type(n) in (int, float) for row in rows for n in row)
    if not all(plain):
        return None
    if len({len(row) for row in rows}) != 1 or not rows[0]:
        raise UncorkError(f"{path}: the rows of {printable(name)[:80]!r} have different lengths")
    try:
        array = np.array(value, np.float64)
    except (ValueError, OverflowError) as error:
        raise UncorkError(f"{path}: {printable(name)[:80]!r} has a number too large") from error
    return array


def _choose(path: Path, said: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Choice:
    choice = choose_by_name(path, tensors)
    if choice.weight.shape[0] != 1 or _named_labels(said, 2) is None:
        return choice
    # One row for two classes, as scikit-learn keeps them: its sign decides.
    rows = np.vstack([np.zeros_like(choice.weight), choice.weight])
    bias = None
    if choice.bias is not None:
        bias = np.concatenate([np.zeros(1), choice.bias])
    note = "one row for two classes, whose sign decides: a row of zeros stands for the first"
    return Choice(
        rows, bias, choice.weight_name, choice.bias_name, choice.why, (*choice.notes, note),
        bias_settled=True,
    )  # fmt: skip


def _named_labels(said: Mapping[str, Any], classes: int) -> tuple[str, list[str]] | None:
    """Labels under one of the usual names, if there is one for each class."""
    for name in _LABELS:
        value = said.get(name)
        if isinstance(value, dict):  # by number, as transformers writes them
            numbers = {str(n): value.get(str(n)) for n in range(classes)}
            value = [*numbers.values()] if len(value) == classes else None
        if not isinstance(value, list) or len(value) != classes:
            continue
        if all(isinstance(one, str | int | float) for one in value):
            return name, [str(one) for one in value]
    return None


def _vocabulary(said: Mapping[str, Any], classes: int) -> Vocabulary:
    found = _named_labels(said, classes)
    return Vocabulary() if found is None else Vocabulary(tuple(found[1]), f"{found[0]} in the file")
