"""JSON weights: arrays by name with labels beside them, scikit-learn's names, brain.js's networks.

The plain form is an object with `weight` (a list of rows, one a class), perhaps `bias`, `labels`.
Other names are those that other formats use for output layers (`fc.weight`, `coef_`); numbers are
JSON's, in float64.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.contents import (
    AmbiguousError,
    Choice,
    Contents,
    Tensor,
    Vocabulary,
    bias_names,
    turned_to,
)
from uncork.loading.json_weights.brain_js import brain_js
from uncork.loading.naming import choose_by_name, choose_columns

_MOST_BYTES = 512 << 20
_LOOKED_AT = 1 << 20
_SHAPE = re.compile(rb'"([\w./:-]*[._/])?(weights?|W|kernel|coef_|fc_w)"\s*:\s*\[\s*\[\s*-?\d')
_SIZES, _LAYERS = re.compile(rb'"sizes"\s*:\s*\[\s*\d'), re.compile(rb'"layers"\s*:\s*\[\s*\{')
_OTHERS = re.compile(rb'"(weightsManifest|modelTopology|weight_map|model_type)"\s*:')
_NOT_THESE = re.compile(r"(config|index|tokenizer\w*|vocab|special_tokens_map|added_tokens)\.json$")
_LABELS = ("labels", "classes", "classes_", "class_names", "label_names", "id2label", "names")
_ALIASES = {"weights": "weight", "biases": "bias"}
_BIASES = ("bias", "b", "intercept_", "intercept")
_MOST_ARRAYS, _MOST_NAME, _MOST_DEPTH = 10_000, 1000, 32


def looks_like_json_weights(path: Path, start: bytes, size: int) -> bool:
    """An object with a list of rows under a weight's name, or a network of brain.js."""
    if start.lstrip()[:1] != b"{" or _NOT_THESE.search(path.name.lower()):
        return False
    with path.open("rb") as file:
        begin = file.read(_LOOKED_AT)
    sizes = _SIZES.search(begin)
    network = sizes is not None and _LAYERS.search(begin, sizes.end()) is not None
    return (network or bool(_SHAPE.search(begin))) and not _OTHERS.search(begin)


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
        functools.partial(_around, path, said, tensors),
        functools.partial(_vocabulary, said),
    )


def _arrays(
    path: Path, said: Mapping[str, Any], prefix: str = "", depth: int = 0
) -> dict[str, Any]:
    """Every list of numbers, and list of such lists, by its name; objects inside with a dot.

    A number alone may be a bias.
    """
    found: dict[str, Tensor] = {}
    for name, value in said.items():
        full = f"{prefix}{_ALIASES.get(name, name)}"
        if len(full) > _MOST_NAME:
            raise UncorkError(f"{path} has a name of {len(full)} characters: damaged")
        bias = _ALIASES.get(name, name) in _BIASES
        more: dict[str, Tensor] = {}
        if isinstance(value, dict) and depth < _MOST_DEPTH and name not in _LABELS:
            more = _arrays(path, value, f"{full}.", depth + 1)
            if bias and value and not more:  # one number a name
                more = _array(path, full, [*value], bias)
        elif bias and type(value) in (int, float):
            more = _array(path, full, [value], bias)
        elif isinstance(value, list) and value and name not in _LABELS:
            more = _array(path, full, value, bias)
        twice = next(iter(found.keys() & more.keys()), None)
        if twice is not None:
            raise UncorkError(f"{path} has two arrays called {printable(twice)!r}")
        found |= more
        if len(found) > _MOST_ARRAYS:
            raise UncorkError(f"{path} holds more than {_MOST_ARRAYS} arrays")
    return found


def _array(path: Path, name: str, value: list[Any], bias: bool) -> dict[str, Tensor]:
    """A list as a tensor, if it holds numbers; one that holds others too says so when it is read.

    It would be missing otherwise, and something else be taken for the weight, or no bias added.
    """
    array = as_array(path, name, value)
    if array is not None:
        return {name: Tensor(name, array.shape, "float64", functools.partial(_of, array))}
    rows = [row for row in value if isinstance(row, list)]
    numbers = any(type(n) in (int, float) for row in (value, *rows) for n in row)
    if not numbers and not bias:
        return {}
    shape = (len(value), max(map(len, rows))) if rows else (len(value),)
    return {name: Tensor(name, shape, "?", functools.partial(_refuse, path, name))}


def _refuse(path: Path, name: str) -> np.ndarray:
    raise UncorkError(f"{path}: {printable(name)!r} holds something else than numbers")


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
    if choice.bias is None:
        _check_biases(path, tensors, choice)
    own = any(name in tensors for name in bias_names(choice.weight_name))
    if choice.weight.shape[0] != 1 or _named_labels(said, 2) is None:
        return choice if own else _sided(said, choice)
    if choice.bias is None and own:
        return choice  # which does not fit
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


def _around(
    path: Path, said: Mapping[str, Any], tensors: Mapping[str, Tensor], name: str
) -> Choice | None:
    found = choose_columns(path, tensors, name)
    shape = tensors[name].matrix_shape
    if found is not None or shape is None or any(one in tensors for one in bias_names(name)):
        return found
    choice = Choice(tensors[name].read(), None, name, None, "by its name")
    turned = _sided(said, choice)
    return None if turned is choice else turned


def _sided(said: Mapping[str, Any], choice: Choice) -> Choice:
    """The side that the file's own labels fit, where there is no bias to say more."""
    rows, columns = choice.weight.shape
    if _named_labels(said, rows) is not None or _named_labels(said, columns) is None:
        return choice
    if (rows, columns) == (1, 2):
        return choice  # one row for two classes is a sign
    return turned_to(choice, "the number of labels")


def _check_biases(path: Path, tensors: Mapping[str, Tensor], choice: Choice) -> None:
    """Refuse a bias beside the weight whose name does not go with the weight's."""
    before = choice.weight_name.rpartition(".")[0]
    for name in _BIASES:
        full = f"{before}.{name}" if before else name
        if full not in tensors or full in bias_names(choice.weight_name):
            continue
        if math.prod(tensors[full].shape) in choice.weight.shape:
            raise AmbiguousError(
                f"{path}: {tensors[full]} may be the bias of {printable(choice.weight_name)}: name "
                "both with --weight and --bias, or the weight alone if nothing is added"
            )


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
