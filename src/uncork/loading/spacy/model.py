"""A Thinc model as its file keeps it: layers by number, and how they are put together.

The file lists the layers breadth first and says nothing of who holds whom. But a layer that holds
others is named after them ("maxout>>layernorm", "with_array(softmax)"), so that the tree is found
again by matching names; where they do not match, it is not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.bounded.cursor import Cursor, mapped, opened
from uncork.loading.bounded.msgpack import Raw, decode, decode_whole

MAGIC = b"\x84\xa5nodes"  # a table of four, the first of which are the nodes
_MOST_LAYERS = 100_000
_MOST_DIMENSIONS = 8
_LONGEST_ATTRIBUTE = 1 << 16
_TYPES = {
    text: np.dtype(text)
    for text in ("<f4", "<f8", "<f2", "<i4", "<i8", "<u4", "<u8", "|i1", "|u1", "|b1")
}
_WRAPPER = re.compile(r"(\w+)\((.*)\)", re.DOTALL)
PARSER = "parser_model"
_JOINS = (">>", "|")


@dataclass(frozen=True)
class Array:
    """A parameter, known by where its values lie."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    begin: int

    def read(self) -> np.ndarray:
        return mapped(self.path, self.dtype, self.shape, self.begin)


@dataclass(frozen=True)
class Layer:
    """A layer: `refs` names other layers by number, `parts` are those it holds."""

    index: int
    name: str
    dims: Mapping[str, int]
    refs: Mapping[str, int]
    attributes: Mapping[str, Any]
    arrays: Mapping[str, Array]
    how: str = ""  # how its parts are put together: ">>", "|", a wrapper's name, or nothing
    parts: tuple[int, ...] = field(default=())


@dataclass(frozen=True)
class Model:
    path: Path
    layers: tuple[Layer, ...]
    whole: bool  # whether the tree was found

    @property
    def root(self) -> Layer:
        return self.layers[0]

    def parts(self, layer: Layer) -> list[Layer]:
        return [self.layers[part] for part in layer.parts]

    def referred(self, name: str) -> Layer | None:
        """The layer that the model itself calls by that name."""
        number = self.root.refs.get(name)
        return None if number is None else self.layers[number]


def read_model(path: Path) -> Model:
    """The layers of a model file, their parameters left where they lie."""
    with opened(path) as cursor:
        found = decode_whole(cursor)
        if not isinstance(found, dict) or "nodes" not in found:
            what = (
                "a model of Thinc 7 (spaCy 2): load it in spaCy 2 and save its weights, or take "
                "the pipeline's version for spaCy 3"
                if isinstance(found, dict) and "weights" in found
                else "not a model of Thinc"
            )
            raise UncorkError(f"{path} is {what}")
        nodes, attributes, parameters = (
            _lists(path, found, key) for key in ("nodes", "attrs", "params")
        )
        if not nodes or not len(nodes) == len(attributes) == len(parameters):
            raise UncorkError(
                f"{path} is damaged: {len(nodes)} layers, the attributes of {len(attributes)} and "
                f"the parameters of {len(parameters)}"
            )
        layers = [
            _layer(cursor, number, *one)
            for number, one in enumerate(zip(nodes, attributes, parameters, strict=True))
        ]
    held = _parts(layers)
    if held is None:
        return Model(path, tuple(layers), False)
    return Model(path, tuple(
        Layer(one.index, one.name, one.dims, one.refs, one.attributes, one.arrays, how, parts)
        for one, (how, parts) in zip(layers, held, strict=True)
    ), True)  # fmt: skip


def _lists(path: Path, found: Mapping[Any, Any], key: str) -> list[dict[Any, Any]]:
    value = found.get(key)
    if not isinstance(value, list) or len(value) > _MOST_LAYERS or not all(
        isinstance(one, dict) for one in value
    ):  # fmt: skip
        raise UncorkError(f"{path} is damaged: its {key} are not a list of tables")
    return value


def _layer(
    cursor: Cursor,
    number: int,
    node: Mapping[Any, Any],
    attributes: Mapping[Any, Any],
    parameters: Mapping[Any, Any],
) -> Layer:
    name = node.get("name")
    sizes, refs = node.get("dims"), node.get("refs")
    if not isinstance(name, str) or not isinstance(sizes, dict) or not isinstance(refs, dict):
        raise UncorkError(f"{cursor.path} is damaged: layer {number} has no name or no sizes")
    arrays = {
        str(key): _array(cursor, f"{name[:80]}.{key}", value)
        for key, value in parameters.items()
        if value is not None
    }
    return Layer(
        number,
        name,
        {str(k): v for k, v in sizes.items() if _whole_number(v)},
        {str(k): v for k, v in refs.items() if _whole_number(v)},
        {str(k): _attribute(cursor, v) for k, v in attributes.items()},
        arrays,
    )


def _whole_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _attribute(cursor: Cursor, value: Any) -> Any:
    """An attribute: a value that was packed by itself; None where it cannot be unpacked."""
    if not isinstance(value, Raw):
        return value
    if value.kind is not None or value.size > _LONGEST_ATTRIBUTE:
        return None
    try:
        return decode(Cursor(cursor.path, cursor.data, value.begin, value.begin + value.size))
    except UncorkError:
        return None


def _array(cursor: Cursor, name: str, value: Any) -> Array:
    """A NumPy array as msgpack-numpy writes it: type, shape, and the values as bytes."""
    parts = value if isinstance(value, dict) else {}
    data, shape, kind = parts.get("data"), parts.get("shape"), parts.get("type")
    if isinstance(kind, Raw):
        kind = bytes(cursor.data[kind.begin : kind.begin + min(kind.size, 16)]).decode("latin-1")
    if not isinstance(data, Raw) or not isinstance(shape, list) or not isinstance(kind, str):
        raise UncorkError(f"{cursor.path} is damaged: {name!r} is not an array")
    if kind not in _TYPES or len(shape) > _MOST_DIMENSIONS or not all(map(_whole_number, shape)):
        raise UncorkError(
            f"{cursor.path}: {name!r} is an array of type {kind[:40]!r} and shape "
            f"{str(shape)[:80]}, which is not read"
        )
    needs = int(np.prod(shape, dtype=object)) * _TYPES[kind].itemsize
    if needs != data.size:
        raise UncorkError(
            f"{cursor.path} is damaged: {name!r} has shape {shape}, {needs} bytes, and the file "
            f"holds {data.size}"
        )
    return Array(cursor.path, tuple(shape), _TYPES[kind], data.begin)


def _parts(layers: Sequence[Layer]) -> list[tuple[str, tuple[int, ...]]] | None:
    """For each layer how it holds others, and which; None where the names do not tell."""
    found = []
    at = 1  # the first layer that nobody holds yet
    for layer in layers:
        if layer.index >= at > 0 and layer.index > 0:
            return None
        how, count = _held(layer, layers, at)
        found.append((how, tuple(range(at, at + count))))
        at += count
    return found if at == len(layers) else None


def _held(layer: Layer, layers: Sequence[Layer], at: int) -> tuple[str, int]:
    """How a layer holds those that begin at a place, and how many, by its name and theirs."""
    if at >= len(layers):
        return "", 0
    if layer.name == PARSER:
        ends = [layer.refs.get(name) for name in ("tok2vec", "lower", "upper")]
        return (PARSER, 3) if ends == [at, at + 1, at + 2] and at + 2 < len(layers) else ("", 0)
    if at in layer.refs.values() and layer.name == "para-attn":
        return layer.name, 1
    first = layers[at].name
    if layer.name.endswith(f"({first})"):
        return layer.name[: -len(first) - 2], 1
    for join in _JOINS:
        if not layer.name.startswith(first + join):
            continue
        length, count = len(first), 1
        while length < len(layer.name) and at + count < len(layers):
            length += len(join) + len(layers[at + count].name)
            count += 1
        if length == len(layer.name) and layer.name == join.join(
            one.name for one in layers[at : at + count]
        ):
            return join, count
    return "", 0
