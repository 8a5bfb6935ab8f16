"""TensorFlow.js: model.json with a graph or Keras's layers, and a manifest of its weights."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from uncork.core.errors import UncorkError
from uncork.loading.contents import Choice, Contents, Tensor
from uncork.loading.keras.file import contents_of_layers, stored_by_name
from uncork.loading.naming import choose_by_name
from uncork.loading.onnx.file import OnnxModel
from uncork.loading.tensorflow.file import contents_of, loose_ends
from uncork.loading.tensorflow.flat import Flat
from uncork.loading.tensorflow.graph import Function, Node, Signature, TensorFlowGraph, Value
from uncork.loading.tensorflow.labels import labels_beside
from uncork.loading.tensorflow.manifest import Weight, read_manifest
from uncork.loading.tensorflow.operators import Translation

_MOST_BYTES = 1 << 28
_MOST_LOOKED_AT = 64 << 20
_KEY = b'"weightsManifest"'
_TYPES = {
    "DT_FLOAT": 1, "DT_DOUBLE": 2, "DT_INT32": 3, "DT_UINT8": 4, "DT_INT16": 5, "DT_INT8": 6,
    "DT_STRING": 7, "DT_INT64": 9, "DT_BOOL": 10, "DT_BFLOAT16": 14, "DT_HALF": 19,
    "DT_RESOURCE": 20,
}  # fmt: skip
_FORM = "tensorflow.js"
_MODEL = "model.json"


def looks_like_tensorflow_js(path: Path, start: bytes, size: int) -> bool:
    """Whether a JSON file names weights as TensorFlow.js does."""
    if start[:1] not in (b"{", b"[") or path.suffix.lower() != ".json" or size > _MOST_LOOKED_AT:
        return False
    if start[:1] == b"[":
        return path.name.endswith("weights_manifest.json")
    return _KEY in path.read_bytes()


def is_tensorflow_js(names: set[str]) -> bool:
    """Whether a folder with these files is that of one such model."""
    return _MODEL in names and "config.json" not in names


def read_tensorflow_js(path: Path) -> Contents:
    """The weights of a model.json, and the head that its outputs come from."""
    if path.is_dir():
        return replace(read_tensorflow_js(path / _MODEL), path=path)
    if path.stat().st_size > _MOST_BYTES:
        raise UncorkError(f"{path} has {path.stat().st_size} bytes: too many for a model.json")
    try:
        data = json.loads(path.read_bytes())
        groups = data if isinstance(data, list) else data["weightsManifest"]
        weights = read_manifest(path, groups)
        topology = None if isinstance(data, list) else data.get("modelTopology")
        if isinstance(topology, dict) and "node" in topology:
            return _graph(path, data, topology, weights)
        return _layers(path, topology, weights)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, UncorkError):
            raise
        raise UncorkError(
            f"{path} is no model of TensorFlow.js, or is damaged: {type(error).__name__} {error}"
        ) from error


def _tensors(weights: Mapping[str, Weight]) -> dict[str, Tensor]:
    return {
        name: Tensor(name, one.shape, one.dtype.name, one.read, one.folded)
        for name, one in weights.items()
        if one.dtype is not None
    }


def _layers(path: Path, topology: Any, weights: Mapping[str, Weight]) -> Contents:
    """Keras's layers by their configuration; without one, weights to be named by hand."""
    tensors = _tensors(weights)
    config = topology.get("model_config", topology) if isinstance(topology, dict) else None
    if isinstance(config, dict) and "class_name" in config:
        stored = functools.partial(stored_by_name, tensors)
        found = contents_of_layers(path, _FORM, tensors, config, stored)
    else:
        found = Contents(
            path, _FORM, tensors, functools.partial(_chosen, path, tensors),
            functools.partial(_kernel, tensors),
        )  # fmt: skip
    return replace(found, vocabulary=functools.partial(labels_beside, path.parent))


def _chosen(path: Path, tensors: Mapping[str, Tensor]) -> Choice:
    """The weight that its name or shape gives away, as TensorFlow.js keeps a layer's."""
    choice = choose_by_name(path, tensors)
    found = _kernel(tensors, choice.weight_name)
    return choice if found is None else replace(found, why=f"{choice.why}, {found.why}")


def _kernel(tensors: Mapping[str, Tensor], name: str) -> Choice | None:
    """A layer's matrix, or 1×1 convolution: classes are its columns, the bias lies beside it."""
    stored = tensors[name]
    if len(stored.shape) not in (2, 4) or any(n != 1 for n in stored.shape[:-2]):
        return None
    weight = stored.read().reshape(stored.shape[-2:]).T
    bias = tensors.get(f"{name.rpartition('/')[0]}/bias")
    why = "classes are its columns, as in every layer of TensorFlow.js"
    if bias is None or bias.shape != weight.shape[:1] or "/" not in name:
        return Choice(weight, None, name, None, why)
    return Choice(weight, bias.read(), name, bias.name, why)


def _graph(
    path: Path, data: dict[str, Any], topology: dict[str, Any], weights: Mapping[str, Weight]
) -> Contents:
    nodes = tuple(_node(one, weights) for one in topology["node"])
    functions = {}
    for stored in (topology.get("library") or {}).get("function") or ():
        signature = stored["signature"]
        results = stored.get("ret") or {}
        functions[str(signature["name"])] = Function(
            str(signature["name"]),
            tuple(str(one["name"]) for one in signature.get("inputArg") or ()),
            tuple(str(results.get(one["name"], "")) for one in signature.get("outputArg") or ()),
            tuple(_node(one, weights) for one in stored.get("nodeDef") or ()),
        )
    outputs = _outputs(data)
    signatures = {"serving_default": Signature({}, dict(zip(outputs, outputs, strict=True)))}
    graph = TensorFlowGraph(path, nodes, functions, signatures)
    flat = Flat(graph)
    names = [flat.reference(name) for name in outputs]
    names = [name for name in names if flat.maker(name) is not None]
    if not names:
        names = [flat.reference(name) for name in loose_ends(graph)]
    found = contents_of(path, _FORM, OnnxModel(path, Translation(flat, names, {}).draft))
    folded = {name: one.folded for name, one in weights.items() if one.folded}
    tensors = {
        name: replace(one, folded=folded[name]) if name in folded else one
        for name, one in found.tensors.items()
    }
    return replace(found, tensors=tensors)


def _outputs(data: dict[str, Any]) -> list[str]:
    """The values that the model says it gives; newer ones say so in one place, older in another."""
    for place in (data, data.get("userDefinedMetadata") or {}):
        outputs = (place.get("signature") or {}).get("outputs") or {}
        found = [str(one.get("name", "")) for one in outputs.values()]
        if found and all(found):
            return list(dict.fromkeys(found))
    return []


def _node(stored: dict[str, Any], weights: Mapping[str, Weight]) -> Node:
    name, op = str(stored["name"]), str(stored["op"])
    inputs = tuple(str(one) for one in stored.get("input") or () if not str(one).startswith("^"))
    settings = {str(key): _setting(one) for key, one in (stored.get("attr") or {}).items()}
    if op == "Const":
        weight = weights.get(name)
        settings.pop("value", None)
        if weight is not None:
            settings["value"] = Value(weight.dtype, weight.shape, weight.read)
    return Node(name, op, inputs, settings)


def _setting(stored: dict[str, Any]) -> Any:
    """An attribute, as those of the binary form are read."""
    if "s" in stored:
        return _text(stored["s"])
    if "i" in stored:
        return int(stored["i"])
    if "f" in stored:
        return float(stored["f"])
    if "b" in stored:
        return bool(stored["b"])
    if "type" in stored:
        return _type(stored["type"])
    if "shape" in stored:
        return _shape(stored["shape"])
    if "func" in stored:
        return str(stored["func"]["name"])
    if "list" in stored:
        found = stored["list"] or {}
        if "s" in found:
            return [_text(one) for one in found["s"]]
        if "i" in found:
            return [int(one) for one in found["i"]]
        if "type" in found:
            return [_type(one) for one in found["type"]]
        return [_shape(one) for one in found.get("shape") or ()]
    return None


def _type(stored: Any) -> int:
    return stored if isinstance(stored, int) else _TYPES.get(str(stored), 0)


def _text(stored: Any) -> bytes:
    """Bytes are written in base64, or as a list of numbers."""
    if isinstance(stored, list):
        return bytes(stored)
    return base64.b64decode(str(stored), validate=True)


def _shape(stored: dict[str, Any]) -> list[int] | None:
    if stored.get("unknownRank"):
        return None
    return [int(one.get("size", 0)) for one in stored.get("dim") or ()]
