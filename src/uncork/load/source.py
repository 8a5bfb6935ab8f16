"""Opening a source: the file's first bytes pick the reader, and the reader finds the head."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from uncork.domain import Domain, parse_domain
from uncork.errors import UncorkError
from uncork.head import Head
from uncork.load.contents import Contents, choose_by_hand
from uncork.load.labels import read_labels
from uncork.load.numpy_files import read_npy, read_npz
from uncork.load.onnx_file import read_onnx
from uncork.load.safetensors_file import looks_like_safetensors, read_safetensors

Source = str | os.PathLike[str]
T = TypeVar("T")

_SUFFIXES = (".npz", ".npy", ".safetensors", ".onnx")
_FORMATS = ", ".join(_SUFFIXES[:-1]) + " or " + _SUFFIXES[-1]
_OTHERS = {  # the first bytes of files people will try
    b"\x89HDF": "an HDF5 file (Keras?)",
    b"GGUF": "a GGUF file",
    b"\xba\x16\x4f\x2f": "a fastText model",
    b"\x1f\x8b": "gzip-compressed: unpack it first",
    b"BZh": "bzip2-compressed: unpack it first",
    b"\xfd7zX": "xz-compressed: unpack it first",
    b"(\xb5/\xfd": "zstd-compressed: unpack it first",
    b"version https://git-lfs": "a Git LFS pointer, not the file itself: run git lfs pull",
    b"<!DOCTYPE": "a web page, not a model: was the download refused?",
    b"<html": "a web page, not a model: was the download refused?",
}
_PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt", ".joblib")


@dataclass(frozen=True)
class Found:
    """A head and where it came from."""

    head: Head
    contents: Contents
    weight_name: str
    bias_name: str | None
    why: str
    labels_from: str
    notes: tuple[str, ...]


def find(
    source: Source,
    *,
    weight: str | None = None,
    bias: str | None = None,
    transpose: bool = False,
    labels: Source | Sequence[str] | None = None,
    domain: Domain | str | None = None,
    contents: Contents | None = None,
) -> Found:
    """As `uncork.load`, and says which tensors were taken, why, and what is worth noting."""
    if isinstance(domain, str):
        domain = parse_domain(domain)
    contents = open_source(source) if contents is None else contents
    path = contents.path
    choice = _guarded(
        path, contents.format, lambda: choose_by_hand(contents, weight, bias, transpose)
    )
    notes = list(choice.notes)
    try:
        head = Head(choice.weight, choice.bias, domain=domain, source=str(path))
    except UncorkError as error:
        bias_text = f", bias {choice.bias_name!r}" if choice.bias_name else ""
        raise UncorkError(f"{path} (weight {choice.weight_name!r}{bias_text}): {error}") from error
    if labels is None:
        names, labels_from = _guarded(path, contents.format, lambda: contents.labels(head.classes))
        if names is None and labels_from:
            notes.append(f"no labels: {labels_from}")
            labels_from = ""
    elif isinstance(labels, str | os.PathLike):
        names, labels_from = read_labels(Path(labels), head.classes), str(labels)
    else:
        names, labels_from = tuple(labels), "given"
    if names is not None:
        head = Head(head.weight, head.bias, names, head.domain, source=str(path))
    return Found(
        head, contents, choice.weight_name, choice.bias_name, choice.why, labels_from, tuple(notes)
    )


def open_source(source: Source) -> Contents:
    """The tensors of a file, by the reader its first bytes call for."""
    path = Path(source)
    try:
        if path.is_dir():
            inside = sorted(p.name for p in path.iterdir() if p.suffix in _SUFFIXES)
            hint = f", for example {path / inside[0]}" if inside else f" ({_FORMATS})"
            raise UncorkError(f"{path} is a folder: name the model file inside it{hint}")
        if not path.exists():
            raise UncorkError(f"{path} does not exist: check the path")
        if not path.is_file():
            raise UncorkError(f"{path} is not a regular file")
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(32)
    except (OSError, ValueError) as error:
        if isinstance(error, UncorkError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise UncorkError(f"{path} cannot be opened: {reason}") from error
    if size == 0:
        raise UncorkError(f"{path} is empty")
    name, reader = _reader(path, start, size)
    return _guarded(path, name, lambda: reader(path))


def _reader(path: Path, start: bytes, size: int) -> tuple[str, Callable[[Path], Contents]]:
    suffix = path.suffix.lower()
    if start.startswith(b"\x93NUMPY"):
        return "npy", read_npy
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "npz", read_npz
    if looks_like_safetensors(start, size):
        return "safetensors", read_safetensors
    for magic, what in _OTHERS.items():
        if start.startswith(magic):
            raise UncorkError(f"{path} is {what}; uncork reads {_FORMATS}")
    pickled = start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    if pickled or suffix in _PICKLES:
        raise UncorkError(
            f"{path} is a pickle{'' if pickled else ' by its name'}, and opening a pickle runs its "
            "code: save the weights as .safetensors and load that"
        )
    if suffix == ".safetensors":
        return "safetensors", read_safetensors
    # A protobuf has no magic; an ONNX model starts with its field 1, the version of the format.
    if suffix == ".onnx" or start[:1] == b"\x08":
        return "onnx", read_onnx
    if suffix in (".npz", ".npy"):
        raise UncorkError(f"{path} is not a NumPy file, whatever its name: truncated or damaged")
    raise UncorkError(f"{path} is no model that uncork reads: expected {_FORMATS}")


def _guarded(path: Path, kind: str, work: Callable[[], T]) -> T:
    """Run a reader; whatever a damaged file makes it raise becomes one clear line."""
    try:
        return work()
    except UncorkError:
        raise
    except MemoryError as error:
        raise UncorkError(f"{path} does not fit into memory as {kind}") from error
    except Exception as error:
        text = " ".join(str(error).split())[:200] or type(error).__name__
        raise UncorkError(f"{path} cannot be read as {kind}: {text}") from error
