"""The formats that can be read: how a file shows which one it is, and which module reads it."""

from __future__ import annotations

import importlib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from uncork.core.errors import UncorkError
from uncork.loading.contents import Contents
from uncork.loading.not_read import archive_not_read, file_not_read
from uncork.loading.safetensors.file import looks_like_safetensors

_MOST_MEMBERS = 100_000  # entries of an archive's directory that are looked at


@dataclass(frozen=True)
class Format:
    """A format by name, and "module:function" of its reader, imported when a file calls for it."""

    name: str
    reader: str

    def read(self, path: Path) -> Contents:
        module, function = self.reader.split(":")
        reader: Callable[[Path], Contents] = getattr(
            importlib.import_module(f"uncork.loading.{module}"), function
        )
        return reader(path)


NPY = Format("npy", "numpy.file:read_npy")
NPZ = Format("npz", "numpy.file:read_npz")
SAFETENSORS = Format("safetensors", "hugging_face.folder:read_safetensors_file")
ONNX = Format("onnx", "onnx.file:read_onnx")
GGUF = Format("gguf", "gguf.file:read_gguf")
FASTTEXT = Format("fasttext", "fasttext.file:read_fasttext")
KERAS = Format("keras", "keras.file:read_keras")
HDF5 = Format("hdf5", "keras.file:read_hdf5")
TFLITE = Format("tflite", "tflite.file:read_tflite")
SKOPS = Format("skops", "sklearn.skops_file:read_skops")
TESSERACT = Format("tesseract", "tesseract.file:read_tesseract")
TORCH = Format("torch", "hugging_face.folder:read_torch_file")

READ = (
    ".safetensors, .onnx, .gguf, .npz, .npy, .pt/.bin (tensors only), .keras, .h5, .tflite, "
    ".skops, fastText .bin/.ftz, Tesseract .traineddata, a Hugging Face folder or hf:owner/name"
)
_LEGACY_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # a pickle of torch's magic number
_PICKLES = (".pkl", ".pickle", ".joblib")
_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".th")


def recognise(path: Path, start: bytes, size: int) -> Format:
    """The format of a file, by its first bytes and only then by its name."""
    suffix = path.suffix.lower()
    if start.startswith(b"\x93NUMPY"):
        return NPY
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")) and suffix != ".distcp":
        return _archive(path)
    if start.startswith(b"GGUF"):
        return GGUF
    if start.startswith(b"\xba\x16\x4f\x2f"):
        return FASTTEXT
    if start.startswith(b"\x89HDF"):
        return HDF5
    if start[4:8] == b"TFL3":
        return TFLITE
    if looks_like_safetensors(start, size):
        return SAFETENSORS
    what = file_not_read(path, start)
    if what is not None:
        raise UncorkError(f"{path} is {what}")
    pickled = start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    if start.startswith(_LEGACY_TORCH):
        return TORCH
    if suffix == ".traineddata":
        return TESSERACT
    if suffix in _PICKLES or (pickled and suffix not in _TORCH_SUFFIXES):
        raise UncorkError(
            f"{path} is a pickle{'' if pickled else ' by its name'}, and opening a pickle runs its "
            "code: save the weights as .safetensors (or a scikit-learn model with skops) and load "
            "that"
        )
    if suffix == ".safetensors":
        return SAFETENSORS
    if pickled:
        return TORCH
    # A protobuf has no magic; an ONNX model starts with its field 1, the version of the format.
    if suffix == ".onnx" or start[:1] == b"\x08":
        return ONNX
    if suffix in (".npz", ".npy", *_TORCH_SUFFIXES, ".keras", ".h5", ".tflite", ".gguf", ".skops"):
        raise UncorkError(f"{path} is not a {suffix} file, whatever its name: truncated or damaged")
    raise UncorkError(f"{path} is no model that uncork reads: expected {READ}")


def _archive(path: Path) -> Format:
    """Which of the formats that are zip archives a file is, by the names inside."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {info.filename for info in archive.infolist()[:_MOST_MEMBERS]}
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise UncorkError(f"{path} is a damaged or truncated archive: {error}") from error
    what = archive_not_read(names)
    if what is not None:
        raise UncorkError(f"{path} is {what}")
    if any(name == "data.pkl" or name.endswith("/data.pkl") for name in names):
        return TORCH
    if "model.weights.h5" in names:
        return KERAS
    if "schema.json" in names:
        return SKOPS
    return NPZ
