"""The formats that can be read: how a file shows which one it is, and which module reads it.

A new format is a module with a reader and a line in `FORMATS`; elsewhere, a call of `add`.
"""

from __future__ import annotations

import importlib
import itertools
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uncork.core.errors import UncorkError
from uncork.loading.contents import Contents
from uncork.loading.not_read import archive_not_read, file_not_read
from uncork.loading.safetensors.file import looks_like_safetensors

_MOST_MEMBERS = 100_000  # entries of an archive's directory that are looked at


@dataclass(frozen=True)
class Format:
    """A format: how its files are recognised, and who reads them.

    `reader` is "module:function", imported when a file calls for it; the function takes the path
    and returns `Contents`. `starts` tells from a file's first 32 bytes and its size, `holds` from
    the names inside a zip archive; `looks` opens the file, where what tells is further inside, and
    is asked last. A file with one of the `suffixes` whose bytes say otherwise is
    refused as damaged, or handed to the reader where `by_name` is set.
    """

    name: str
    reader: str
    shown: str  # in messages that list what can be read
    suffixes: tuple[str, ...] = ()
    starts: Callable[[bytes, int], bool] | None = None
    holds: Callable[[set[str]], bool] | None = None
    looks: Callable[[Path, bytes, int], bool] | None = None
    by_name: bool = False

    def read(self, path: Path) -> Contents:
        contents: Contents = _imported(self.reader)(path)
        return contents


def _imported(name: str) -> Callable[..., Any]:
    """The function behind "module:function"."""
    module, function = name.split(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _asking(name: str) -> Callable[..., bool]:
    """A function that tells a format, imported when a file gets as far as that."""
    return lambda *about: bool(_imported(name)(*about))


def _magic(*starts: bytes, at: int = 0) -> Callable[[bytes, int], bool]:
    return lambda start, size: start[at:].startswith(starts)


def _pickled(start: bytes) -> bool:
    return start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


def _is_torch_archive(names: set[str]) -> bool:
    return any(name == "data.pkl" or name.endswith("/data.pkl") for name in names)


_LEGACY_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # a pickle of torch's magic number
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_HERE = "uncork.loading"

SAFETENSORS = Format(
    "safetensors", f"{_HERE}.hugging_face.folder:read_safetensors_file", ".safetensors",
    (".safetensors",), looks_like_safetensors, by_name=True,
)  # fmt: skip
# A protobuf has no magic; an ONNX model starts with its field 1, the version of the format.
ONNX = Format("onnx", f"{_HERE}.onnx.file:read_onnx", ".onnx", (".onnx",), by_name=True)
ORT = Format("ort", f"{_HERE}.ort.file:read_ort_file", ".ort", (".ort",), _magic(b"ORTM", at=4))
GGUF = Format("gguf", f"{_HERE}.gguf.file:read_gguf", ".gguf", (".gguf",), _magic(b"GGUF"))
NPZ = Format("npz", f"{_HERE}.numpy.file:read_npz", ".npz", (".npz",))
NPY = Format("npy", f"{_HERE}.numpy.file:read_npy", ".npy", (".npy",), _magic(b"\x93NUMPY"))
PICKLE = Format(
    "pickle", f"{_HERE}.numpy.pickled:read_pickled", "pickles of NumPy arrays alone",
    looks=_asking(f"{_HERE}.numpy.pickled:looks_like_arrays"),
)  # fmt: skip
TORCH = Format(
    "torch", f"{_HERE}.hugging_face.folder:read_torch_file", ".pt/.bin (tensors only)",
    (".pt", ".pth", ".bin", ".ckpt", ".th"), _magic(_LEGACY_TORCH), _is_torch_archive,
)  # fmt: skip
TORCH_EXPORT = Format(
    "torch export", f"{_HERE}.torch_export.file:read_torch_export", "torch.export .pt2", (".pt2",),
    holds=_asking(f"{_HERE}.torch_export.archive:is_exported"),
)  # fmt: skip
EXECUTORCH = Format(
    "executorch", f"{_HERE}.executorch.file:read_executorch", "ExecuTorch .pte", (".pte",),
    _magic(b"ET12", at=4),
)  # fmt: skip
KERAS = Format(
    "keras", f"{_HERE}.keras.file:read_keras", ".keras", (".keras",),
    holds=lambda names: "model.weights.h5" in names,
)  # fmt: skip
HDF5 = Format("hdf5", f"{_HERE}.keras.file:read_hdf5", ".h5", (".h5",), _magic(b"\x89HDF"))
TFLITE = Format(
    "tflite", f"{_HERE}.tflite.file:read_tflite", ".tflite", (".tflite",), _magic(b"TFL3", at=4)
)
SKOPS = Format(
    "skops", f"{_HERE}.sklearn.skops_file:read_skops", ".skops", (".skops",),
    holds=lambda names: "schema.json" in names,
)  # fmt: skip
FASTTEXT = Format(
    "fasttext", f"{_HERE}.fasttext.file:read_fasttext", "fastText .bin/.ftz",
    starts=_magic(b"\xba\x16\x4f\x2f"),
)  # fmt: skip
CTRANSLATE2 = Format(
    "ctranslate2", f"{_HERE}.ctranslate2.file:read_ctranslate2", "CTranslate2 model.bin",
    starts=_asking(f"{_HERE}.ctranslate2.variables:looks_like_ctranslate2"),
)  # fmt: skip
MARIAN = Format(
    "marian", f"{_HERE}.marian.binary:read_marian", "Marian .bin",
    starts=_asking(f"{_HERE}.marian.binary:looks_like_marian"),
)  # fmt: skip
_OPENVINO = f"{_HERE}.openvino.file"
OPENVINO = Format(
    "openvino", f"{_OPENVINO}:read_openvino", "OpenVINO .xml with .bin", (".xml",),
    looks=_asking(f"{_OPENVINO}:looks_like_openvino"),
)  # fmt: skip
_NCNN = f"{_HERE}.ncnn.file"
NCNN = Format(
    "ncnn", f"{_NCNN}:read_ncnn", "ncnn .param with .bin", (".param",),
    _magic(b"7767517", b"\xdd\x85\x76\0"), looks=_asking(f"{_NCNN}:looks_like_ncnn_weights"),
)  # fmt: skip
COREML = Format(
    "coreml", f"{_HERE}.coreml.file:read_coreml", "Core ML .mlmodel and .mlpackage", (".mlmodel",),
    by_name=True,
)  # fmt: skip
TESSERACT = Format(
    "tesseract", f"{_HERE}.tesseract.file:read_tesseract", "Tesseract .traineddata",
    (".traineddata",), by_name=True,
)  # fmt: skip
PADDLE = Format(
    "paddle", f"{_HERE}.paddle.file:read_paddle", "Paddle .pdmodel/.json/__model__",
    (".pdmodel", ".pdiparams"), by_name=True,
    looks=_asking(f"{_HERE}.paddle.file:looks_like_paddle"),
)  # fmt: skip
PADDLE_VARIABLES = Format(
    "paddle variables", f"{_HERE}.paddle.variables:read_variables", "Paddle's variables",
    looks=_asking(f"{_HERE}.paddle.variables:looks_like_variable"),
)  # fmt: skip
TENSORFLOW = Format(
    "tensorflow", f"{_HERE}.tensorflow.file:read_tensorflow", "TensorFlow SavedModels and .pb",
    looks=_asking(f"{_HERE}.tensorflow.file:looks_like_tensorflow"),
)  # fmt: skip
CHECKPOINT = Format(
    "tensorflow checkpoint", f"{_HERE}.tensorflow.checkpoint:read_checkpoint",
    "TensorFlow checkpoints (.index)",
    looks=_asking(f"{_HERE}.tensorflow.checkpoint:looks_like_checkpoint"),
)  # fmt: skip
TENSORFLOW_JS = Format(
    "tensorflow.js", f"{_HERE}.tensorflow.javascript:read_tensorflow_js",
    "TensorFlow.js model.json",
    looks=_asking(f"{_HERE}.tensorflow.javascript:looks_like_tensorflow_js"),
)  # fmt: skip
KALDI = Format(
    "kaldi", f"{_HERE}.kaldi.file:read_kaldi", "Kaldi's .mdl and .raw (nnet3)", (".mdl", ".raw"),
    _magic(b"\0B<TransitionModel> ", b"\0B<Nnet3> ", b"<TransitionModel>", b"<Nnet3>"),
)  # fmt: skip
THINC = Format(
    "spacy", f"{_HERE}.spacy.file:read_component", "spaCy's models",
    starts=_magic(b"\x84\xa5nodes"),
)  # fmt: skip
SLOVNET = Format(
    "slovnet", f"{_HERE}.slovnet.file:read_slovnet", "slovnet's and navec's .tar",
    starts=_magic(b"meta.json\0"),
)  # fmt: skip
# Vectors of items.
_VECTORS = f"{_HERE}.vectors"
FAISS = Format(
    "faiss", f"{_VECTORS}.faiss:read_faiss", "faiss indices", (".faiss",),
    _asking(f"{_VECTORS}.faiss:looks_like_faiss"),
)  # fmt: skip
HNSWLIB = Format(
    "hnswlib", f"{_VECTORS}.hnswlib:read_hnswlib", "hnswlib indices", (".hnsw", ".hnswlib"),
    looks=_asking(f"{_VECTORS}.hnswlib:looks_like_hnswlib"),
)  # fmt: skip
USEARCH = Format(
    "usearch", f"{_VECTORS}.usearch:read_usearch", "usearch indices", (".usearch",),
    looks=_asking(f"{_VECTORS}.usearch:looks_like_usearch"),
)  # fmt: skip
_ANNOY = (".ann", ".annoy")
ANNOY = Format(
    "annoy", f"{_VECTORS}.annoy:read_annoy", "Annoy indices", _ANNOY,
    looks=lambda path, start, size: path.suffix.lower() in _ANNOY,  # its bytes look like others'
)  # fmt: skip
XVECS = Format(
    "xvecs", f"{_VECTORS}.xvecs:read_xvecs", ".fvecs/.ivecs/.bvecs", (".fvecs", ".ivecs", ".bvecs"),
    by_name=True,
)  # fmt: skip
WORDS = Format(
    "words", f"{_VECTORS}.words:read_words", "word vectors (GloVe, word2vec, fastText .vec)",
    (".vec", ".w2v", ".glove"), looks=_asking(f"{_VECTORS}.words:looks_like_words"),
)  # fmt: skip
JSON_WEIGHTS = Format(
    "json weights", f"{_HERE}.json_weights.file:read_json_weights", "JSON weights",
    looks=_asking(f"{_HERE}.json_weights.file:looks_like_json_weights"),
)  # fmt: skip
JSON = Format(
    "json", f"{_VECTORS}.records:read_json", "JSON and JSON lines of vectors",
    looks=_asking(f"{_VECTORS}.records:looks_like_json_vectors"),
)  # fmt: skip
PARQUET = Format(
    "parquet", f"{_VECTORS}.columns:read_parquet", "Parquet", (".parquet",), _magic(b"PAR1")
)
ARROW = Format(
    "arrow", f"{_VECTORS}.columns:read_arrow", "Arrow and Feather", (".arrow", ".feather"),
    _magic(b"ARROW1\0\0"),
)  # fmt: skip

# In the order in which they are tried and listed.
FORMATS = [
    SAFETENSORS,
    ONNX,
    ORT,
    GGUF,
    NPZ,
    NPY,
    PICKLE,
    TORCH_EXPORT,
    EXECUTORCH,
    TORCH,
    KERAS,
    HDF5,
    TFLITE,
    SKOPS,
    FASTTEXT,
    CTRANSLATE2,
    MARIAN,
    OPENVINO,
    NCNN,
    COREML,
    TESSERACT,
    PADDLE,
    PADDLE_VARIABLES,
    TENSORFLOW,
    CHECKPOINT,
    TENSORFLOW_JS,
    KALDI,
    THINC,
    SLOVNET,
    FAISS,
    HNSWLIB,
    USEARCH,
    ANNOY,
    XVECS,
    WORDS,
    JSON_WEIGHTS,
    JSON,
    PARQUET,
    ARROW,
]
# Folders that are one thing: by the names of what lies in them.
LANCE = Format(
    "lance", f"{_VECTORS}.columns:read_lance", "Lance datasets",
    holds=lambda names: {"_versions", "data"} <= names,
)  # fmt: skip
CHROMA = Format(
    "chroma", f"{_VECTORS}.chroma:read_chroma", "Chroma's folders",
    holds=lambda names: "chroma.sqlite3" in names,
)  # fmt: skip
OPENVINO_FOLDER = Format(
    "openvino", f"{_OPENVINO}:read_openvino", "OpenVINO's folders",
    holds=_asking(f"{_OPENVINO}:is_openvino_folder"),
)  # fmt: skip
NCNN_FOLDER = Format(
    "ncnn", f"{_NCNN}:read_ncnn", "ncnn's folders", holds=_asking(f"{_NCNN}:is_ncnn_folder")
)
PADDLE_FOLDER = Format(
    "paddle", f"{_HERE}.paddle.file:read_paddle", "Paddle's folders",
    holds=_asking(f"{_HERE}.paddle.file:is_paddle_folder"),
)  # fmt: skip
SAVED_MODEL = Format(
    "tensorflow", f"{_HERE}.tensorflow.file:read_tensorflow", "SavedModels",
    holds=_asking(f"{_HERE}.tensorflow.file:is_saved_model"),
)  # fmt: skip
TENSORFLOW_JS_FOLDER = Format(
    "tensorflow.js", f"{_HERE}.tensorflow.javascript:read_tensorflow_js", "TensorFlow.js's folders",
    holds=_asking(f"{_HERE}.tensorflow.javascript:is_tensorflow_js"),
)  # fmt: skip
MLPACKAGE = Format(
    "coreml", f"{_HERE}.coreml.file:read_package", "Core ML's packages",
    holds=_asking(f"{_HERE}.coreml.file:is_package"),
)  # fmt: skip
MLMODELC = Format(
    "coreml", f"{_HERE}.coreml.file:read_compiled_model", "compiled models of Core ML",
    holds=_asking(f"{_HERE}.coreml.file:is_compiled"),
)  # fmt: skip
SPACY = Format(
    "spacy", f"{_HERE}.spacy.file:read_pipeline", "spaCy's pipelines",
    holds=lambda names: {"config.cfg", "meta.json"} <= names,
)  # fmt: skip
SPACY_COMPONENT = Format(
    "spacy", f"{_HERE}.spacy.file:read_component", "a component of spaCy's",
    holds=lambda names: {"model", "cfg"} <= names,
)  # fmt: skip
VOSK = Format(
    "kaldi", f"{_HERE}.kaldi.file:read_kaldi", "Vosk's models",
    holds=lambda names: {"am", "conf"} <= names or "final.mdl" in names,
)  # fmt: skip
FOLDERS = [
    LANCE, CHROMA, OPENVINO_FOLDER, NCNN_FOLDER, PADDLE_FOLDER, SAVED_MODEL, TENSORFLOW_JS_FOLDER,
    MLPACKAGE, MLMODELC, SPACY, SPACY_COMPONENT, VOSK,
]  # fmt: skip
_PICKLES = (".pkl", ".pickle", ".joblib")


def add(new: Format) -> None:
    """Read one more format: it is tried before those that are built in."""
    FORMATS.insert(0, new)


def recognise(path: Path, start: bytes, size: int) -> Format:
    """The format of a file, by its first bytes and only then by its name."""
    suffix = path.suffix.lower()
    if start.startswith(_ZIP) and suffix != ".distcp":
        return _archive(path)
    for known in FORMATS:
        if known.starts is not None and known.starts(start, size):
            return known
    for known in FORMATS:
        if known.looks is not None and known.looks(path, start, size):
            return known
    what = file_not_read(path, start)
    if what is not None:
        raise UncorkError(f"{path} is {what}")
    pickled = _pickled(start)
    if suffix in _PICKLES or (pickled and suffix not in (*TORCH.suffixes, ".traineddata")):
        raise UncorkError(
            f"{path} is a pickle{'' if pickled else ' by its name'}, and opening a pickle runs its "
            "code: save the weights as .safetensors (or a scikit-learn model with skops) and load "
            "that"
        )
    by_name = next((known for known in FORMATS if suffix in known.suffixes), None)
    if by_name is not None and by_name.by_name:
        return by_name
    if pickled:
        return TORCH
    if start[:1] == b"\x08":
        return ONNX
    if by_name is not None:
        raise UncorkError(f"{path} is not a {suffix} file, whatever its name: truncated or damaged")
    readable = ", ".join(known.shown for known in FORMATS)
    raise UncorkError(
        f"{path} is not a model that uncork reads: expected {readable}, a Hugging Face folder or "
        "hf:owner/name"
    )


def recognise_folder(path: Path) -> Format | None:
    """The format of a folder that is not a model's, or None."""
    names = {one.name for one in itertools.islice(path.iterdir(), _MOST_MEMBERS)}
    held = (known for known in FOLDERS if known.holds is not None and known.holds(names))
    return next(held, None)


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
    held = (known for known in FORMATS if known.holds is not None and known.holds(names))
    return next(held, NPZ)
