"""ncnn: the network as an ONNX graph, with the weights beside it, and the head found there."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.contents import Choice, Contents, FoundDomain, Tensor, UnknownDomain
from uncork.loading.ncnn.network import read_network
from uncork.loading.ncnn.operators import Translation
from uncork.loading.ncnn.weights import read_weights
from uncork.loading.onnx.file import OnnxModel
from uncork.loading.vocabulary import find_vocabulary

_NETWORKS = (".param", ".param.bin")
_FLOATS = "ncnn computes in float32 (its options for 16-bit storage and arithmetic are off)"
_ROUNDED = "ncnn also rounds the head's inputs to 8 bits there, so near ties can fall differently"


def looks_like_ncnn_weights(path: Path, start: bytes, size: int) -> bool:
    """The weights beside a network."""
    if path.suffix.lower() != ".bin":
        return False
    return any(path.with_name(path.name[:-4] + end).is_file() for end in _NETWORKS)


def is_ncnn_folder(names: set[str]) -> bool:
    """Whether a folder with these files is that of one ncnn model."""
    others = (".safetensors", ".onnx", ".gguf", ".pt", ".pth", ".npz", ".keras", ".tflite", ".xml")
    return len(_pairs(names)) == 1 and not any(name.endswith(others) for name in names)


def _pairs(names: set[str]) -> list[str]:
    stems = {name[: -len(end)] for end in _NETWORKS for name in names if name.endswith(end)}
    return [stem for stem in sorted(stems) if f"{stem}.bin" in names]


def read_ncnn(path: Path) -> Contents:
    """The weights of a network, and the head that its results come from."""
    network, weights = _files(path)
    layers = read_network(network)
    translation = Translation(network, layers, read_weights(weights, layers))
    model = OnnxModel(network, translation.draft)
    tensors = model.constants.tensors()
    for name, made in translation.made.items():
        tensors[name] = replace(tensors[name], folded=(printable(made),))

    def domain(choice: Choice) -> FoundDomain | UnknownDomain | None:
        found = model.domain(choice)
        if not isinstance(found, FoundDomain):
            return found
        return replace(found, assumed="; ".join(filter(None, (found.assumed, _FLOATS))))

    def around(name: str) -> Choice | None:
        found = model.around(name)
        return None if found is None else _settled(found, tensors)

    return Contents(
        path,
        "ncnn",
        tensors,
        lambda: _settled(model.choose(), tensors),
        around,
        functools.partial(find_vocabulary, network.parent),
        domain,
    )


def _files(path: Path) -> tuple[Path, Path]:
    """The network and the weights, whichever of the two or their folder was given."""
    if path.is_dir():
        stem = path / _pairs({one.name for one in path.iterdir()})[0]
    else:
        end = next((end for end in _NETWORKS[::-1] if path.name.endswith(end)), ".bin")
        stem = path.with_name(path.name[: -len(end)])
    networks = [stem.with_name(stem.name + end) for end in _NETWORKS]
    network = next((one for one in networks if one.is_file()), networks[0])
    if path in networks:
        network = path
    weights = stem.with_name(f"{stem.name}.bin")
    for one, what in ((network, "network"), (weights, "weights")):
        if not one.is_file():
            raise UncorkError(
                f"{path} is part of an ncnn model, whose {what} ({one.name}) do not lie beside it: "
                "put both into one folder"
            )
    return network, weights


def _settled(choice: Choice, tensors: dict[str, Tensor]) -> Choice:
    """The network shows what is added to the logits, and that nothing is."""
    stored = tensors.get(choice.weight_name)
    notes = (_ROUNDED,) if stored is not None and stored.folded else ()
    return replace(choice, bias_settled=True, notes=(*choice.notes, *notes))
