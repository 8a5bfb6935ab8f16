"""The network of an ncnn .param, as text or binary: its layers, their values and settings."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.bounded.cursor import Cursor, opened

MAGIC = 7767517
_MOST_BYTES = 64 << 20
_MOST_SETTINGS = 32
_END = -233
_SETTING = re.compile(r'(-?\d{1,9})=("[^"]*"|\S+)(?:\s|$)')
_ARRAYS, _TEXTS = -23300, -23400
# By number, as binary networks name them; the order is that of ncnn's src/CMakeLists.txt.
_LISTED = (
    "AbsVal ArgMax BatchNorm Bias BNLL Concat Convolution Crop Deconvolution Dropout Eltwise ELU "
    "Embed Exp Flatten InnerProduct Input Log LRN MemoryData MVN Pooling Power PReLU Proposal "
    "Reduction ReLU Reshape ROIPooling Scale Sigmoid Slice Softmax Split SPP TanH Threshold Tile "
    "RNN LSTM BinaryOp UnaryOp ConvolutionDepthWise Padding Squeeze ExpandDims Normalize Permute "
    "PriorBox DetectionOutput Interp DeconvolutionDepthWise ShuffleChannel InstanceNorm Clip Reorg "
    "YoloDetectionOutput Quantize Dequantize Yolov3DetectionOutput PSROIPooling ROIAlign Packing "
    "Requantize Cast HardSigmoid SELU HardSwish Noop PixelShuffle DeepCopy Mish StatisticsPooling "
    "Swish Gemm GroupNorm LayerNorm Softplus GRU MultiHeadAttention GELU Convolution1D Pooling1D "
    "ConvolutionDepthWise1D Convolution3D ConvolutionDepthWise3D Pooling3D MatMul Deconvolution1D "
    "DeconvolutionDepthWise1D Deconvolution3D DeconvolutionDepthWise3D Einsum DeformableConv2D GLU "
    "Fold Unfold GridSample CumulativeSum CopyTo Erf Diag CELU Shrink RMSNorm Spectrogram "
    "InverseSpectrogram Flip SDPA RotaryEmbed"
)
_TYPES = tuple(_LISTED.split())
KNOWN = frozenset(_TYPES)
Number = int | float | bytes  # four bytes where the file does not say which of the two it is


@dataclass(frozen=True)
class Layer:
    """One layer: its type and name, the values it takes and gives, its settings by number."""

    type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    settings: dict[int, Number | tuple[Number, ...]] = field(default_factory=dict)

    def whole(self, key: int, default: int) -> int:
        found = self.settings.get(key, default)
        if isinstance(found, bytes):
            return int(struct.unpack("<i", found)[0])
        return int(found) if isinstance(found, int | float) else default

    def real(self, key: int, default: float) -> float:
        """A setting as the float32 that ncnn holds it in."""
        found = self.settings.get(key, default)
        if isinstance(found, bytes):
            return float(struct.unpack("<f", found)[0])
        return float(np.float32(found)) if isinstance(found, int | float) else default

    def reals(self, key: int) -> list[float]:
        found = self.settings.get(key, ())
        values = found if isinstance(found, tuple) else (found,)
        return [
            float(struct.unpack("<f", one)[0] if isinstance(one, bytes) else np.float32(one))
            for one in values
        ]

    def wholes(self, key: int) -> list[int]:
        found = self.settings.get(key, ())
        values = found if isinstance(found, tuple) else (found,)
        return [
            int(struct.unpack("<i", one)[0] if isinstance(one, bytes) else one) for one in values
        ]


def read_network(path: Path) -> list[Layer]:
    """The layers in the order in which they are run."""
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise UncorkError(f"{path} has {size} bytes: too many for a network")
    with path.open("rb") as file:
        binary = file.read(4) == struct.pack("<i", MAGIC)
    layers = _from_binary(path) if binary else _from_text(path)
    made = [name for layer in layers for name in layer.outputs]
    if len(set(made)) < len(made):
        raise UncorkError(f"{path} is damaged: two layers make one value")
    if len({layer.name for layer in layers}) < len(layers):
        raise UncorkError(f"{path} is damaged: two layers have one name")
    return layers


def _from_text(path: Path) -> list[Layer]:
    lines = path.read_bytes().decode("utf-8", "backslashreplace").split("\n")
    if not lines or lines[0].strip() != str(MAGIC):
        raise UncorkError(f"{path} does not begin with {MAGIC}: it is not ncnn's, or older")
    layers = [_line(path, line.split()) for line in lines[2:] if line.strip()]
    counts = lines[1].split() if len(lines) > 1 else []
    if len(counts) != 2 or counts[0] != str(len(layers)):
        raise UncorkError(
            f"{path} is truncated or damaged: it has {len(layers)} layers, and announces "
            f"{printable(' '.join(counts))[:40]!r}"
        )
    return layers


def _line(path: Path, words: list[str]) -> Layer:
    try:
        kind, name, given, made = words[0], words[1], int(words[2]), int(words[3])
        if given < 0 or made < 0 or len(words) < 4 + given + made:
            raise ValueError
        names, rest = words[4 : 4 + given + made], words[4 + given + made :]
        settings = dict(_setting(key, value) for key, value in _settings(" ".join(rest)))
    except (ValueError, IndexError):
        line = printable(" ".join(words))[:80]
        raise UncorkError(f"{path} is damaged: {line!r} is not a layer of ncnn's") from None
    return Layer(kind, name, tuple(names[:given]), tuple(names[given:]), settings)


def _settings(text: str) -> list[tuple[str, str]]:
    """Keys and values; a text in quotes may hold spaces."""
    if _SETTING.sub("", text).strip():
        raise ValueError
    return [(match[1], match[2]) for match in _SETTING.finditer(text)]


def _setting(key: str, value: str) -> tuple[int, Number | tuple[Number, ...]]:
    number, parts = int(key), value.split(",")
    if number <= _ARRAYS:
        number, parts = _ARRAYS - number, parts[1:]
        return number, tuple(map(_number, parts))
    if value[:1].isalpha() or value[:1] == '"':
        return number, ()  # a text: no setting that is looked at is one
    return number, tuple(map(_number, parts)) if len(parts) > 1 else _number(value)


def _number(text: str) -> Number:
    return float(text) if any(mark in text for mark in ".eE") else int(text)


def _from_binary(path: Path) -> list[Layer]:
    with opened(path) as cursor:
        _, count, blobs = cursor.unpack("3i", "the header")
        if not 0 < count <= cursor.left // 12 or blobs <= 0:
            raise UncorkError(f"{path} is damaged: {count} layers and {blobs} values by its header")
        layers = [_record(cursor, number) for number in range(count)]
        if cursor.left:
            raise UncorkError(f"{path} is damaged: {cursor.left} bytes are left after its layers")
    return layers


def _record(cursor: Cursor, number: int) -> Layer:
    kind, given, made = cursor.unpack("3i", "a layer")
    if not 0 <= kind < len(_TYPES):
        raise UncorkError(f"{cursor.path}: layer {number} is of type {kind}, which is not ncnn's")
    if min(given, made) < 0 or given + made > cursor.left // 4:
        raise UncorkError(f"{cursor.path} is damaged: layer {number} has {given} inputs")
    names = [f"blob {one}" for one in cursor.unpack(f"{given + made}i", "a layer's values")]
    settings: dict[int, Number | tuple[Number, ...]] = {}
    while (key := cursor.number("i", "a setting")) != _END:
        length = 1
        if key <= _ARRAYS:
            length = cursor.number("i", "a setting")
        at = _ARRAYS - key if _TEXTS < key <= _ARRAYS else key
        if key <= _TEXTS:
            cursor.skip(-(-length // 4) * 4, "a setting")
            continue
        if not 0 <= at < _MOST_SETTINGS or not 0 <= length <= cursor.left // 4:
            raise UncorkError(f"{cursor.path} is damaged: layer {number} has the setting {key}")
        values = tuple(cursor.take(4, "a setting") for _ in range(length))
        settings[at] = values if key <= _ARRAYS else values[0]
    name = f"{_TYPES[kind]} {number}"
    return Layer(_TYPES[kind], name, tuple(names[:given]), tuple(names[given:]), settings)


def unused(layers: Sequence[Layer]) -> list[str]:
    """Values that no layer takes: the results of a network."""
    taken = {name for layer in layers for name in layer.inputs}
    return [name for layer in layers for name in layer.outputs if name not in taken]
