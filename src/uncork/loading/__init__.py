"""load: from a file to a Head. One module a format; the file's first bytes pick the reader."""

from __future__ import annotations

from collections.abc import Sequence

from uncork.core.head import Head
from uncork.domain import Domain
from uncork.loading.contents import AmbiguousError
from uncork.loading.description import Description, describe
from uncork.loading.source import Found, Source, find, open_source
from uncork.loading.vectors.items import load_items

__all__ = [
    "AmbiguousError",
    "Description",
    "Found",
    "describe",
    "find",
    "load",
    "load_items",
    "open_source",
]


def load(
    source: Source,
    *,
    weight: str | None = None,
    bias: str | None = None,
    transpose: bool = False,
    drop_bias: bool = False,
    labels: Source | Sequence[str] | None = None,
    domain: Domain | str | None = None,
    base: Source | None = None,
) -> Head:
    """Read the head of a model: a file, a Hugging Face folder or hub id, or a live object.

    Files: .npz, .npy, .safetensors, .onnx, .gguf, torch checkpoints, Keras, TFLite, fastText,
    skops, Tesseract. Objects: torch modules, transformers models, scikit-learn estimators.

    The head is found by the names real models use, or in an ONNX graph by walking back from its
    outputs. Where that fails, name the tensors: `weight` (classes × features, or the other way
    round with `transpose`) and `bias` (classes,); `drop_bias` goes without one. `labels` is a file
    with one label a line, a JSON file, or the labels themselves; `domain` is a Domain or text such
    as "box:100", the default. `base` is the folder or hub id of the model that an adapter's folder
    is merged into.
    Values keep the type they are stored in, and large files are memory-mapped. Files are never
    unpickled. Bad input raises `UncorkError`.
    """
    return find(
        source, weight=weight, bias=bias, transpose=transpose, drop_bias=drop_bias, labels=labels,
        domain=domain, base=base,
    ).head  # fmt: skip
