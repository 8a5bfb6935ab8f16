"""Keras models, .keras and .h5: the last Dense layer by the configuration's own order."""

from __future__ import annotations

import functools
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.bounded.archive import read_member
from uncork.loading.contents import (
    AmbiguousError,
    Choice,
    Contents,
    FoundDomain,
    Tensor,
    UnknownDomain,
    listing,
)
from uncork.loading.decisions import sigmoids
from uncork.loading.keras.domain import domain_before
from uncork.loading.keras.graph import Layer, Scope, read_graph
from uncork.loading.keras.hdf5_tensors import attribute, hdf5_tensors, opened_hdf5
from uncork.loading.naming import choose_by_name

_WEIGHTS = "model.weights.h5"
_MOST_CONFIG = 64 << 20
_MOST_STEPS = 50
# Layers after the head that leave the order of the classes as it is.
_MONOTONE_LAYERS = ("Softmax", "Dropout", "Identity", "ActivityRegularization")
_MONOTONE = ("linear", "softmax", "log_softmax", "sigmoid", "tanh", "exponential", "softplus",
             "log_sigmoid", "softsign")  # fmt: skip
_HEADS = ("Dense", "Conv1D", "Conv2D", "Conv3D")
_CONTAINERS = ("layers", "_layer_checkpoint_dependencies")


@dataclass(frozen=True)
class _Model:
    """A model file: its layers, and which stored arrays are whose."""

    path: Path
    tensors: Mapping[str, Tensor]
    graph: Scope
    stored: Callable[[Layer], list[str]]  # names of a layer's tensors, in Keras's order

    def variables(self, layer: Layer) -> list[np.ndarray]:
        return [self.tensors[name].read() for name in self.stored(layer)]


def read_keras(path: Path) -> Contents:
    """A .keras archive: config.json, and the weights as HDF5."""
    with zipfile.ZipFile(path) as archive:
        try:
            info = archive.getinfo("config.json")
        except KeyError:
            raise UncorkError(
                f"{path} is an incomplete .keras file: config.json is missing"
            ) from None
        if info.file_size > _MOST_CONFIG:
            raise UncorkError(f"{path}: config.json has {info.file_size} bytes: too many")
        config = _parsed(path, read_member(archive, info))
    with opened_hdf5(path, _WEIGHTS) as file:
        tensors = hdf5_tensors(path, file, _WEIGHTS)
        # Newer versions of Keras write each layer's name beside its variables.
        names = {
            name: attribute(file[name], "name")
            for name in {tensor.rpartition("/")[0] for tensor in tensors}
        }
    groups = {group.removesuffix("/vars"): name for group, name in names.items() if name}
    stored = functools.partial(_stored_in_groups, tensors, groups)
    return contents_of_layers(path, "keras", tensors, config, stored)


def read_hdf5(path: Path) -> Contents:
    """A legacy .h5 model of Keras, or any HDF5 file whose arrays can be named by hand."""
    with opened_hdf5(path) as file:
        tensors = hdf5_tensors(path, file)
        text = attribute(file, "model_config")
    if not isinstance(text, str):
        return Contents(
            path,
            "hdf5",
            tensors,
            functools.partial(choose_by_name, path, tensors),
            functools.partial(_kernel_alone, tensors),
        )
    stored = functools.partial(stored_by_name, tensors)
    return contents_of_layers(path, "hdf5", tensors, _parsed(path, text), stored)


def _parsed(path: Path, text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UncorkError(
            f"{path}: the model's configuration is not valid JSON: {error}"
        ) from error


def contents_of_layers(
    path: Path,
    form: str,
    tensors: Mapping[str, Tensor],
    config: Any,
    stored: Callable[[Layer], list[str]],
) -> Contents:
    """A model by its configuration; `stored` names a layer's tensors, in Keras's order."""

    def model() -> _Model:
        return _Model(path, tensors, read_graph(path, config), stored)

    def choose() -> Choice:
        whole = model()
        heads = _heads(whole)
        if len(heads) > 1:
            kernels = [tensors[name] for uses in heads for name in stored(uses[0].head)[:1]]
            raise AmbiguousError(
                f"{path} has {len(heads)} outputs that end in a layer of their own: "
                f"{listing(kernels)}: name one with --weight"
            )
        return _choice(whole, heads[0])

    def around(name: str) -> Choice | None:
        whole = model()
        for uses in _heads(whole):
            if stored(uses[0].head)[:1] == [name]:
                return _choice(whole, uses)
        return _kernel_alone(tensors, name)

    def domain(choice: Choice) -> FoundDomain | UnknownDomain | None:
        whole = model()
        for uses in _heads(whole):
            if stored(uses[0].head)[:1] == [choice.weight_name]:
                found = [domain_before(use.head, whole.variables) for use in uses]
                if any(one != found[0] for one in found):
                    return UnknownDomain(f"{_called(uses[0].head)} is used {len(uses)} times")
                return _by_name_only(found[0]) if "module" not in config else found[0]
        return None

    return Contents(path, form, tensors, choose, around, domain=domain)


def _by_name_only(found: FoundDomain | UnknownDomain) -> FoundDomain | UnknownDomain:
    """Legacy files name classes without saying whose they are."""
    if isinstance(found, UnknownDomain):
        return found
    own = "its classes are Keras's own, as it is read without others (the file does not say)"
    return replace(found, assumed="; ".join(filter(None, (found.assumed, own))))


@dataclass(frozen=True)
class _Use:
    """A head, and the layers between it and an output."""

    head: Layer
    after: tuple[Layer, ...]


def _heads(model: _Model) -> list[list[_Use]]:
    """The linear layer behind each output: each layer once, with its uses."""
    heads: dict[tuple[str, ...], list[_Use]] = {}
    for reference in model.graph.outputs():
        layer = model.graph.resolve(reference)
        after: list[Layer] = []
        for _ in range(_MOST_STEPS):
            if layer is None or layer.kind in _HEADS:
                break
            passed = layer.kind in _MONOTONE_LAYERS or (
                layer.kind == "Activation" and layer.activation in _MONOTONE
            )
            given = layer.scope.given(layer) if passed else []
            if len(given) != 1:
                raise AmbiguousError(
                    f"{model.path}: an output ends in {_called(layer)}, not "
                    "in a Dense layer; if there is a head before it, name its kernel with --weight"
                )
            after.append(layer)
            layer = given[0]
        if layer is None or layer.kind not in _HEADS:
            raise AmbiguousError(f"{model.path}: an output has no Dense layer behind it")
        heads.setdefault((*layer.scope.trail, layer.name), []).append(_Use(layer, tuple(after)))
    if not heads:
        raise AmbiguousError(f"{model.path}: the configuration names no outputs")
    return list(heads.values())


def _called(layer: Layer) -> str:
    return f"{printable(layer.kind)[:80]} {printable(layer.name)!r}"


def _reordering(uses: Sequence[_Use]) -> Iterator[str]:
    """Doubts about what follows the head and may put another class first."""
    for use in uses:
        head = use.head
        first = head.kind != "Dense" and head.setting("data_format") == "channels_first"
        if first and head.activation in ("softmax", "log_softmax"):
            yield f"{_called(head)} ends in {head.activation} along its last axis, not its classes"
        for layer in use.after:
            if layer.kind == "Dropout" and layer.training:
                yield f"{_called(layer)} follows the head in training mode and drops scores"
            axis = layer.setting("axis") if layer.kind == "Softmax" else -1
            if layer.kind == "Activation" and layer.activation not in ("softmax", "log_softmax"):
                continue
            if layer.kind in ("Softmax", "Activation") and not _over_classes(layer, axis, first):
                yield (
                    f"{_called(layer)} follows the head along axis {printable(str(axis))[:80]}, "
                    "not over the classes: it may change their order"
                )


def _over_classes(layer: Layer, axis: Any, first: bool) -> bool:
    """Whether an axis is that of the classes: the second where features come first, or the last."""
    axis = axis[0] if isinstance(axis, list) and len(axis) == 1 else axis
    axis = -1 if axis is None else axis
    axes = len(layer.shape) if layer.shape else None
    if first:
        return axis == 1 or (axes is not None and axis == 1 - axes)
    return axis == -1 or (axes is not None and axis == axes - 1)


def _choice(model: _Model, uses: Sequence[_Use]) -> Choice:
    head = uses[0].head
    what = f"{head.kind} layer {printable(head.name)!r}"
    names = model.stored(head)
    units = head.setting("units" if head.kind == "Dense" else "filters")
    if not names:
        raise UncorkError(f"{model.path}: the weights of {what} are missing: saved without them?")
    kernel = model.tensors[names[0]]
    # A 1×1 convolution is a Dense layer at every place.
    if any(n != 1 for n in kernel.shape[:-2]) or len(kernel.shape) < 2:
        raise AmbiguousError(
            f"{model.path}: the last layer, {what}, is a convolution over more than one place "
            f"({kernel}): it has no head"
        )
    if head.setting("groups") not in (None, 1):
        raise AmbiguousError(
            f"{model.path}: the last layer, {what}, has groups, whose classes see different "
            "features: it has no head"
        )
    if kernel.shape[-1] != units:
        raise UncorkError(
            f"{model.path}: {what} has {units!r} units by its configuration, and {kernel} stored: "
            "damaged, or written by a version of Keras that is not read"
        )
    if kernel.dtype in ("int8", "uint8"):
        raise UncorkError(
            f"{model.path}: {what} is quantised by Keras, which divides by rounded scales: save "
            "the model with float weights"
        )
    matrix = kernel.read().reshape(kernel.shape[-2:]).T
    bias = None
    if head.setting("use_bias") is not False and len(names) > 1:
        bias = model.tensors[names[1]].read().reshape(-1)
    bias_name = None if bias is None else names[1]
    why = f"{what} is the last, classes are its columns"
    notes, doubts = [], list(dict.fromkeys(_reordering(uses)))
    if head.activation == "sigmoid" and units > 1:
        notes.append(sigmoids(what))
    elif head.activation not in _MONOTONE:
        doubts.append(
            f"{what} ends in {printable(head.activation)}, which can make scores equal or change "
            "their order: verdicts are about its values before that"
        )
    if units == 1 and head.activation == "sigmoid":
        matrix = np.concatenate([np.zeros_like(matrix), matrix])
        bias = None if bias is None else np.concatenate([np.zeros(1, bias.dtype), bias])
        why += "; its one sigmoid tells two classes apart: the first has a row of zeros"
    return Choice(matrix, bias, names[0], bias_name, why, notes=tuple(notes), doubts=tuple(doubts))


def _stored_in_groups(
    tensors: Mapping[str, Tensor], groups: Mapping[str, str], layer: Layer
) -> list[str]:
    """A layer's tensors in a .keras file, which keeps them by place: layers/dense_1/vars/0."""
    # From the outermost model inwards, by the name written there, else by order of kinds.
    place, scopes = "", [layer.scope]
    while scopes[0].parent is not None:
        scopes.insert(0, scopes[0].parent)
    for scope, name in zip(scopes, (*layer.scope.trail, layer.name), strict=True):
        children = [f"{place}/{word}".lstrip("/") for word in _CONTAINERS]
        named = [
            group
            for group, known in groups.items()
            if known == name and group.rpartition("/")[0] in children
        ]
        if layer.wrapped and name == layer.name and not named:
            inner = f"{scope.groups[name]}/layer"
        else:
            inner = scope.groups[name]
        guessed = [f"{child}/{inner}" for child in children]
        present = [group for group in guessed if any(t.startswith(f"{group}/") for t in tensors)]
        if not named and not present:
            return []
        place = (named or present)[0]
    if layer.wrapped and not place.endswith("/layer"):
        place += "/layer"
    inside = [name for name in tensors if name.rpartition("/")[0] == f"{place}/vars"]
    return sorted(inside, key=lambda name: (len(name), name))


def stored_by_name(tensors: Mapping[str, Tensor], layer: Layer) -> list[str]:
    """A layer's tensors in a legacy file: under its name, or that of the outermost model."""
    outermost = (*layer.scope.trail, layer.name)[0]
    inside = [
        name
        for name in tensors
        if name.startswith((f"model_weights/{outermost}/", f"{outermost}/"))
        and (not layer.scope.trail or f"/{layer.name}/" in name)
    ]

    def of(*words: str) -> list[str]:
        return [n for n in inside if n.rpartition("/")[2].partition(":")[0] in words]

    first, second = of("kernel", "gamma", "scale"), of("bias", "beta")
    # Two kernels under one name: nothing tells which is the layer's own.
    return [] if len(first) > 1 or len(second) > 1 else first + second


def _kernel_alone(tensors: Mapping[str, Tensor], name: str) -> Choice | None:
    """A Keras kernel named by hand: its classes are its columns. Its bias lies beside it."""
    folder, _, last = name.rpartition("/")
    kernel = tensors[name]
    if last.partition(":")[0] != "kernel" and not (last == "0" and folder.endswith("/vars")):
        return None
    if len(kernel.shape) < 2 or any(n != 1 for n in kernel.shape[:-2]):
        return None
    matrix = kernel.read().reshape(kernel.shape[-2:]).T
    beside = f"{folder}/1" if last == "0" else f"{folder}/{last.replace('kernel', 'bias')}"
    bias = tensors.get(beside.lstrip("/"))
    why = "classes are its columns, as in every Keras kernel"
    if bias is None or bias.shape != (matrix.shape[0],):
        return Choice(matrix, None, name, None, why)
    return Choice(matrix, bias.read(), name, bias.name, why)
