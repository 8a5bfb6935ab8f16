"""Tesseract .traineddata: the softmax layer of its LSTM, and which characters its codes are."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.domain import Box
from uncork.loading.bounded.cursor import Cursor, opened
from uncork.loading.contents import Choice, Contents, FoundDomain, Tensor, Vocabulary
from uncork.loading.tesseract.network import PLUMBING, Matrix, Network, read_network, text
from uncork.loading.vocabulary.labels import BLANK

_LSTM, _UNICHARSET, _RECODER, _VERSION = 17, 21, 22, 23  # numbers of a file's components
_MOST_COMPONENTS = 1000
_MOST_UNICHARS = 1 << 22
_LONGEST_CODE = 9
_SHOWN = 3
_INT8_MOST = 127
# What a layer can hand on. Everything between layers of an int8 model is an int8 over 127.
_RANGES = {
    "LSTM": (-1.0, 1.0), "SummLSTM": (-1.0, 1.0), "Tanh": (-1.0, 1.0), "LinTanh": (-1.0, 1.0),
    "Logistic": (0.0, 1.0), "LinLogistic": (0.0, 1.0), "Relu": (0.0, np.inf),
}  # fmt: skip
_WORDS = {"LSTM": "an LSTM, a logistic gate times tanh", "SummLSTM": "an LSTM"}


def read_tesseract(path: Path) -> Contents:
    """The weight and bias of the recogniser's softmax layer; nothing else of it is kept."""
    with opened(path) as cursor:
        components = _components(cursor)
        if _LSTM not in components:
            raise UncorkError(
                f"{path} has no LSTM component: a model for Tesseract 3, or a part of one; get it "
                "from tessdata_fast or tessdata_best"
            )
        whole = _UNICHARSET in components and _RECODER in components
        part = components[_LSTM]
        network = read_network(part)
        null = _settings(part) if whole else None
        if whole and part.left:
            raise UncorkError(
                f"{path} is damaged: {part.left} bytes are left after the network's settings"
            )
        names = _unicharset(components[_UNICHARSET]) if whole else []
        codes = _recoder(components[_RECODER]) if whole else []
    head, before = _softmax(path, network)
    weights = head.weights
    assert weights is not None
    rows, columns = weights.values.shape
    if rows < 2 or columns < 2:
        raise UncorkError(f"{path} is damaged: its softmax layer is {rows} × {columns}")
    kind = "float32" if weights.values.dtype == np.float32 else "float64"
    read = functools.partial(_values, weights)
    tensors = {
        "softmax.weight": Tensor(
            "softmax.weight", (rows, columns - 1), kind, lambda: read()[:, :-1]
        ),
        "softmax.bias": Tensor("softmax.bias", (rows,), kind, lambda: read()[:, -1]),
    }
    return Contents(
        path,
        "tesseract",
        tensors,
        functools.partial(_choose, weights, tensors, head),
        vocabulary=functools.partial(_vocabulary, names, codes, null),
        domain=functools.partial(_domain, before, weights.scales is not None),
    )


def _components(cursor: Cursor) -> dict[int, Cursor]:
    """The parts of the file by number. A file from a machine of the other byte order is turned."""
    count = cursor.number("i", "the number of components")
    if not 0 <= count <= _MOST_COMPONENTS:
        cursor.at, cursor.order = 0, ">"
        count = cursor.number("i", "the number of components")
    if not 0 < count <= _MOST_COMPONENTS:
        raise UncorkError(f"{cursor.path} is no Tesseract model: it announces {count} components")
    offsets = cursor.array("i8", count, "the table of components").tolist()
    begins = [(offset, number) for number, offset in enumerate(offsets) if offset >= 0]
    found = {}
    for (begin, number), (end, _) in zip(begins, [*begins[1:], (cursor.end, -1)], strict=True):
        if not cursor.at <= begin <= end <= cursor.end:
            raise UncorkError(
                f"{cursor.path} is truncated or damaged: component {number} lies at bytes {begin} "
                f"to {end} of a file of {cursor.end}"
            )
        found[number] = Cursor(cursor.path, cursor.data, begin, end, cursor.order)
    return found


def _settings(cursor: Cursor) -> int:
    """What follows the network; the code of the CTC blank is all that is wanted of it."""
    text(cursor, "the network's specification")
    null = cursor.unpack("iiiifff", "the training settings")[3]
    return int(null)


def _unicharset(cursor: Cursor) -> list[str]:
    """Characters by number: a count, then a line each that begins with the character."""
    lines = cursor.take(cursor.left, "the unicharset").decode("utf-8", "backslashreplace")
    first, *rest = lines.split("\n")
    try:
        count = int(first)
    except ValueError:
        count = -1
    if not 0 <= count <= min(_MOST_UNICHARS, len(rest)):
        raise UncorkError(
            f"{cursor.path} is damaged: its unicharset announces {first[:40]!r} characters"
        )
    names = [line.split(" ", 1)[0] for line in rest[:count]]
    return [" " if name == "NULL" else name for name in names]


def _recoder(cursor: Cursor) -> list[tuple[bool, tuple[int, ...]]]:
    """The codes of each character, and whether it is the one its code stands for."""
    count = cursor.number("I", "the recoder")
    if count > min(_MOST_UNICHARS, cursor.left // 5):
        raise UncorkError(f"{cursor.path} is damaged: its recoder announces {count} characters")
    found = []
    for _ in range(count):
        normal, length = cursor.unpack("bi", "a code")
        if not 0 <= length <= _LONGEST_CODE:
            raise UncorkError(f"{cursor.path} is damaged: a character has {length} codes")
        found.append((normal != 0, cursor.unpack(f"{length}i", "a code")))
    return found


def _softmax(path: Path, network: Network) -> tuple[Network, Network | None]:
    """The softmax layer at the network's end, and the layer before it."""
    before: Network | None = None
    current = network
    while current.kind in PLUMBING or current.kind.startswith("LSTM"):
        if not current.parts or (current.kind in PLUMBING and current.kind != "Series"):
            break
        before = current.parts[-2] if len(current.parts) > 1 else before
        if current.kind.startswith("LSTM"):  # a softmax inside an LSTM, fed back to it
            before = Network("LSTM", current.name, current.inputs, current.outputs)
        current = current.parts[-1]
    if current.kind not in ("Softmax", "SoftmaxNoCTC"):
        raise UncorkError(f"{path}: the network ends in {current.kind!r}, not in a softmax layer")
    return current, before


def _values(weights: Matrix) -> np.ndarray:
    """The matrix with its bias column, in float64 where it was int8."""
    if weights.scales is None:
        return weights.values
    return weights.values.astype(np.float64) * weights.scales[:, None]


def _choose(weights: Matrix, tensors: Mapping[str, Tensor], head: Network) -> Choice:
    notes = []
    if weights.scales is not None:
        notes.append(
            "int8 weights times a scale for each row, rounded to float64: Tesseract itself scales "
            "sums of integers, so near ties can fall differently there"
        )
        if np.any(weights.scales <= 0):
            notes.append(f"{np.sum(weights.scales <= 0)} rows have a scale that is not positive")
    notes.append(
        "the classes are codes of the recoder, one or several of which spell a character; "
        "Tesseract searches with a beam, so a code that never comes first can still be part of "
        "its answer"
    )
    return Choice(
        tensors["softmax.weight"].read(),
        tensors["softmax.bias"].read(),
        "softmax.weight",
        "softmax.bias",
        f"the {head.kind} layer {head.name!r} at the end of the LSTM network",
        tuple(notes),
    )


def _vocabulary(
    names: list[str], codes: list[tuple[bool, tuple[int, ...]]], null: int | None, classes: int
) -> Vocabulary:
    if not names or max((c for _, code in codes for c in code), default=-1) >= classes:
        return Vocabulary(None, "the recoder has other codes than the softmax layer: not used")
    alone: dict[int, str] = {}
    parts: dict[int, list[str]] = {}
    for number, (normal, code) in enumerate(codes):
        name = names[number] if number < len(names) else BLANK
        if len(code) == 1 and (normal or code[0] not in alone):
            alone.setdefault(code[0], name)
        for c in code if len(code) > 1 else ():
            parts.setdefault(c, []).append(name)
    labels = []
    for c in range(classes):
        if c == null:
            labels.append(BLANK)
        elif c in alone:
            labels.append(alone[c])
        else:
            inside = parts.get(c, [])
            more = "…" if len(inside) > _SHOWN else ""
            labels.append(
                f"<part of {' '.join(inside[:_SHOWN])}{more}>" if inside else f"<code {c}>"
            )
    special = (null,) if null is not None and 0 <= null < classes else ()
    unused = tuple(c for c in range(classes) if c not in alone and c not in parts and c != null)
    return Vocabulary(tuple(labels), "the unicharset and its recoder", special, unused)


def _domain(before: Network | None, quantised: bool, choice: Choice) -> FoundDomain | None:
    """The range of the layer before the softmax, through layers that only rearrange."""
    kinds = _kinds(before) if before is not None else None
    if not kinds or not kinds <= _RANGES.keys():
        return None
    lower = min(_RANGES[kind][0] for kind in kinds)
    upper = max(_RANGES[kind][1] for kind in kinds)
    words = " and ".join(_WORDS.get(kind, kind) for kind in sorted(kinds))
    if quantised:
        upper = min(upper, 1.0)
        words += f", in steps of 1/{_INT8_MOST}"
    return FoundDomain(Box(lower, upper), f"the layer before is {words}")


def _kinds(network: Network) -> set[str]:
    """The kinds of layers whose outputs a network hands on."""
    if network.kind == "Series":
        return _kinds(network.parts[-1]) if network.parts else set()
    if network.kind in PLUMBING:
        return set().union(*(_kinds(part) for part in network.parts))
    return {network.kind}
