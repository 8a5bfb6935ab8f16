"""OpenVINO: the network as an ONNX graph, with the weights beside it, and the head found there."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.contents import Choice, Contents, FoundDomain, UnknownDomain, Vocabulary
from uncork.loading.onnx.file import OnnxModel
from uncork.loading.openvino.network import read_network
from uncork.loading.openvino.operators import Translation
from uncork.loading.vocabulary import find_vocabulary

_TYPES = (
    "OpenVINO computes in the network's own types (it may choose float16 or bfloat16 where a "
    "device prefers them)"
)
_TOKENIZERS = ("openvino_tokenizer", "openvino_detokenizer")


def looks_like_openvino(path: Path, start: bytes, size: int) -> bool:
    """A network in XML, or the weights beside one."""
    suffix = path.suffix.lower()
    if suffix == ".bin":
        other = path.with_suffix(".xml")
        return other.is_file() and _is_network(other)
    return suffix == ".xml" and _is_network(path)


def _is_network(path: Path) -> bool:
    with path.open("rb") as file:
        return b"<net" in file.read(4096)


def is_openvino_folder(names: set[str]) -> bool:
    """Whether a folder with these files is that of one OpenVINO model."""
    others = (".safetensors", ".onnx", ".gguf", ".pt", ".pth", ".npz", ".keras", ".tflite")
    return len(_networks(names)) == 1 and not any(name.endswith(others) for name in names)


def _networks(names: set[str]) -> list[str]:
    stems = {name.removesuffix(".xml") for name in names if name.endswith(".xml")}
    return [stem for stem in sorted(stems) if f"{stem}.bin" in names and stem not in _TOKENIZERS]


def read_openvino(path: Path) -> Contents:
    """The constants of a network, and the head that its results come from."""
    folder = path if path.is_dir() else path.parent
    if path.is_dir():
        (stem,) = _networks({one.name for one in path.iterdir()})
        network_path = path / f"{stem}.xml"
    else:
        network_path = path.with_suffix(".xml")
    weights = network_path.with_suffix(".bin")
    if not weights.is_file():
        raise UncorkError(
            f"{network_path} is the network of an OpenVINO model, whose weights are in "
            f"{weights.name}, which does not lie beside it: put it there"
        )
    network = read_network(network_path)
    translation = Translation(network, weights, weights.stat().st_size)
    model = OnnxModel(network_path, translation.draft)
    tensors = model.constants.tensors()
    for name, made in translation.decoded.items():
        if name in tensors:
            tensors[name] = replace(tensors[name], folded=(printable(made),))
    return Contents(
        path,
        "openvino",
        tensors,
        lambda: _settled(model.choose()),
        lambda name: _settled(found) if (found := model.around(name)) is not None else None,
        functools.partial(_vocabulary, folder, network.labels.split()),
        functools.partial(_domain, model),
    )


def _domain(model: OnnxModel, choice: Choice) -> FoundDomain | UnknownDomain | None:
    found = model.domain(choice)
    if not isinstance(found, FoundDomain):
        return found
    return replace(found, assumed="; ".join(filter(None, (found.assumed, _TYPES))))


def _settled(choice: Choice) -> Choice:
    """The network shows what is added to the logits, and that nothing is."""
    return replace(choice, bias_settled=True)


def _vocabulary(folder: Path, labels: list[str], classes: int) -> Vocabulary:
    if len(labels) == classes:
        return Vocabulary(tuple(labels), "rt_info labels")
    return find_vocabulary(folder, classes)
