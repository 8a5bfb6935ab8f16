"""slovnet: the last layer of a tagger, its tags, and what its encoder can leave.

An archive has `model.json`, a tree of layers whose arrays are numbered, `arrays/N.bin` with their
values, and `vocabs/tag.gz`. A layer's weight is features × classes, as slovnet multiplies with it.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.domain import Box
from uncork.loading.bounded.archive import Storage
from uncork.loading.bounded.cursor import mapped
from uncork.loading.bounded.tar import members_of
from uncork.loading.contents import (
    AmbiguousError,
    Choice,
    Contents,
    FoundDomain,
    Tensor,
    UnknownDomain,
    Vocabulary,
    listing,
)
from uncork.loading.slovnet.navec import is_navec, read_navec, unpacked

_TYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64")
_MOST_JSON, _MOST_TEXT = 1 << 24, 1 << 24
_MOST_DEPTH, _MOST_NAME = 32, 1000
_HEAD = "head.proj.weight"
_CRF = (
    "a CRF follows the head: it chooses a path of classes by their scores and its own transitions, "
    "so that a class that never comes first can still lie on it"
)


def read_slovnet(path: Path) -> Contents:
    """The arrays of a tagger by their place in its tree, and its output layer."""
    members = members_of(path)
    if is_navec(members):
        return read_navec(path, members)
    model = _json(path, members, "model.json")
    tensors: dict[str, Tensor] = {}
    for tensor in _arrays(path, members, model):
        if tensor.name in tensors:
            raise UncorkError(f"{path} has two arrays called {printable(tensor.name)!r}: damaged")
        tensors[tensor.name] = tensor
    return Contents(
        path,
        "slovnet",
        tensors,
        functools.partial(_choose, path, model, tensors),
        functools.partial(_around, path, model, tensors),
        functools.partial(_vocabulary, path, members),
        functools.partial(_domain, model, tensors),
    )


def _json(path: Path, members: Mapping[str, Storage], name: str) -> dict[str, Any]:
    place = members.get(name)
    if place is None or place.size > _MOST_JSON:
        what = "has no" if place is None else f"has {place.size} bytes in"
        raise UncorkError(f"{path} {what} {name}: not a model of slovnet, or damaged")
    with path.open("rb") as file:
        file.seek(place.offset)
        data = file.read(place.size)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UncorkError(f"{path}: {name} is not JSON: damaged") from error
    if not isinstance(found, dict):
        raise UncorkError(f"{path}: {name} is not a JSON object: damaged")
    return found


def _arrays(
    path: Path, members: Mapping[str, Storage], tree: Any, prefix: str = "", depth: int = 0
) -> Iterator[Tensor]:
    """Every array of the tree that the archive holds; those of navec are in a file of their own."""
    if depth > _MOST_DEPTH:
        raise UncorkError(f"{path}: its model.json is nested too deep: damaged")
    if len(prefix) > _MOST_NAME:
        raise UncorkError(f"{path}: its model.json has a name of {len(prefix)} characters: damaged")
    if isinstance(tree, list):
        tree = {str(at): part for at, part in enumerate(tree)}
    if not isinstance(tree, dict):
        return
    if not {"shape", "dtype"} <= set(tree):
        for name, part in tree.items():
            yield from _arrays(
                path, members, part, f"{prefix}.{name}" if prefix else name, depth + 1
            )
        return
    number, shape, kind = tree.get("array"), tree["shape"], tree["dtype"]
    if number is None:
        return
    place = members.get(f"arrays/{number}.bin") if type(number) is int else None
    known = isinstance(shape, list) and all(type(n) is int and 0 <= n < 2**40 for n in shape)
    if place is None or not known or kind not in _TYPES or len(shape) > 8:
        raise UncorkError(f"{path}: array {printable(prefix)[:80]!r} is not there: damaged")
    dtype = np.dtype(kind)
    if math.prod(shape) * dtype.itemsize != place.size:
        raise UncorkError(
            f"{path}: array {printable(prefix)[:80]!r} of shape {shape} has {place.size} bytes: "
            "truncated or damaged"
        )
    read = functools.partial(mapped, path, dtype.newbyteorder("<"), tuple(shape), place.offset)
    yield Tensor(prefix, tuple(shape), dtype.name, read)


def _choose(path: Path, model: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Choice:
    if _HEAD not in tensors:
        if "rel.kernel" in tensors:
            raise AmbiguousError(
                f"{path} is slovnet's syntax model: a word's head and relation come from products "
                "of two words' features, not from one linear layer; --weight takes a layer by name "
                f"all the same: {listing(tensors.values())}"
            )
        raise AmbiguousError(
            f"{path} has no output layer {_HEAD}: name the weight with --weight: "
            f"{listing(tensors.values())}"
        )
    found = _around(path, model, tensors, _HEAD)
    if found is None:
        raise AmbiguousError(
            f"{path}: {_HEAD} has no bias of its width, so it is no linear layer of "
            "slovnet's; --weight with --transpose takes it all the same"
        )
    return found


def _around(
    path: Path, model: Mapping[str, Any], tensors: Mapping[str, Tensor], name: str
) -> Choice | None:
    """A linear layer by its weight, whose columns are its outputs."""
    weight = tensors[name]
    bias = tensors.get(f"{name.removesuffix('weight')}bias")
    linear = name.endswith("proj.weight") and len(weight.shape) == 2
    if not linear or bias is None or bias.shape != weight.shape[1:]:
        return None
    inner = model.get("head")
    crf = name == _HEAD and isinstance(inner, dict) and "crf" in inner
    return Choice(
        weight.read().T, bias.read(), name, bias.name,
        "slovnet's output layer, classes are its columns" if name == _HEAD else "a linear layer, "
        "classes are its columns",
        doubts=(_CRF,) if crf else (), bias_settled=True,
        vocabulary=None if name == _HEAD else Vocabulary(),
    )  # fmt: skip


def _vocabulary(path: Path, members: Mapping[str, Storage], classes: int) -> Vocabulary:
    place = members.get("vocabs/tag.gz")
    if place is None:
        return Vocabulary()
    with path.open("rb") as file:
        file.seek(place.offset)
        data = file.read(place.size)
    try:
        labels = unpacked(data, _MOST_TEXT).decode("utf-8").splitlines()
    except ValueError:
        return Vocabulary(None, "vocabs/tag.gz is damaged: not used")
    if len(labels) != classes:
        return Vocabulary(None, f"vocabs/tag.gz has {len(labels)} tags for {classes} classes")
    return Vocabulary(tuple(labels), "vocabs/tag.gz")


def _domain(
    model: Mapping[str, Any], tensors: Mapping[str, Tensor], choice: Choice
) -> FoundDomain | UnknownDomain | None:
    """What a ReLU leaves after the batch normalisation that follows it, feature by feature.

    Each step rounds monotonely in float32, so the value at zero, computed in the same steps, is the
    bound itself.
    """
    encoder = model.get("encoder")
    layers = encoder.get("layers") if isinstance(encoder, dict) else None
    if choice.weight_name != _HEAD or not isinstance(layers, list) or not layers:
        return None
    head = model.get("head")
    known = set(encoder or ()) == {"layers"} and set(model) <= {"emb", "encoder", "head"}
    if not known or not isinstance(head, dict) or not set(head) <= {"proj", "crf"}:
        return UnknownDomain("it has parts that slovnet's taggers do not have")
    last = layers[-1]
    if not isinstance(last, dict) or list(last) != ["conv", "relu", "norm"]:
        return UnknownDomain("its encoder does not end in a ReLU and a normalisation")
    name = f"encoder.layers.{len(layers) - 1}.norm"
    parts = [tensors.get(f"{name}.{part}") for part in ("mean", "std", "weight", "bias")]
    width = (choice.weight.shape[1],)
    if any(part is None or part.shape != width or part.dtype != "float32" for part in parts):
        return UnknownDomain(f"{name} does not fit the head")
    mean, std, gain, offset = (part.read() for part in parts if part is not None)
    if not (std > 0).all():
        return UnknownDomain(f"{name} divides by numbers that are not positive")
    with np.errstate(all="ignore"):
        ends = ((np.zeros_like(mean) - mean) / std * gain + offset).astype(np.float64)
    if not np.isfinite(ends).all():
        return UnknownDomain(f"{name} holds numbers that are not finite")
    lower = np.where(gain >= 0, ends, -np.inf)
    upper = np.where(gain > 0, np.inf, ends)
    return FoundDomain(
        Box(lower, upper), f"ReLU and the batch normalisation {name} precede the head",
        "slovnet computes in float32, and does not ask for tags of padding",
    )  # fmt: skip
