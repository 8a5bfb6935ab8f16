"""The weights of an ncnn .bin, which lie one after another in the order of the layers.

Nothing in the file says where a layer's begin: how much each layer takes is known from ncnn's own
`load_model` functions, and the whole must come out at the end of the file. A weight that may be
stored in several types has a tag before it; others are plain float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.bounded.cursor import Cursor, mapped, opened
from uncork.loading.ncnn.network import KNOWN, Layer

_HALF, _CODES, _PLAIN = 0x01306B47, 0x000D4B38, 0x0002C056
_TABLE = 256
_BLOCKS = 400  # from here on, codes come in blocks of a row
Part = tuple[str, int, bool]  # name, number of values, whether a tag comes before it


@dataclass(frozen=True)
class Weight:
    """One stored array: `codes` where its values are integers that wait for a scale."""

    count: int
    dtype: np.dtype
    read: Callable[[], np.ndarray]
    codes: bool = False


def read_weights(path: Path, layers: list[Layer]) -> dict[str, dict[str, Weight]]:
    """The arrays of each layer by their names, by the layer's name."""
    found: dict[str, dict[str, Weight]] = {}
    if path.stat().st_size == 0:
        raise UncorkError(f"{path} is empty")
    with opened(path) as cursor:
        for layer in layers:
            where = f"{layer.type} {printable(layer.name)[:80]!r}"
            if layer.type not in KNOWN:
                raise UncorkError(
                    f"{path}: {where} is a layer of someone's own, and how much of the file it "
                    "takes is not known: export the network to ONNX, and give that"
                )
            parts = {}
            for name, count, tagged in _parts(layer):
                if count < 0:
                    raise UncorkError(f"{path}: {where} has {count} values by its own account")
                parts[name] = _weight(cursor, count, tagged, where)
            found[layer.name] = parts
        if cursor.left:
            raise UncorkError(
                f"{path} is damaged, or belongs to another network: {cursor.left} bytes are left "
                "after the last layer's weights"
            )
    return found


def _parts(layer: Layer) -> list[Part]:
    """What a layer stores, in order."""
    rule = _PARTS.get(layer.type)
    return [] if rule is None else rule(layer)


def _weight(cursor: Cursor, count: int, tagged: bool, where: str) -> Weight:
    tag = cursor.number("I", where) if tagged else 0
    kind: np.dtype = np.dtype("<f4")
    if tag == _HALF:
        kind = np.dtype("<f2")
    elif tag == _CODES:
        kind = np.dtype("i1")
    elif tag not in (0, _PLAIN):
        table = cursor.array("f4", _TABLE, where)
        offset = cursor.skip(-(-count // 4) * 4, where)
        picked = functools.partial(mapped, cursor.path, np.uint8, (count,), offset)
        return Weight(count, np.dtype("float32"), lambda: table[picked()])
    size = -(-count * kind.itemsize // 4) * 4
    offset = cursor.skip(size, where)
    read = functools.partial(mapped, cursor.path, kind, (count,), offset)
    return Weight(count, kind, read, codes=kind.kind == "i")


def _convolution(dynamic: int, layer: Layer) -> list[Part]:
    if layer.whole(dynamic, 0):
        return []
    outputs, scales = layer.whole(0, 0), layer.whole(8, 0)
    parts: list[Part] = [("weight", layer.whole(6, 0), True)]
    if layer.whole(5, 0):
        parts.append(("bias", outputs, False))
    if scales:
        each = outputs
        if layer.type == "ConvolutionDepthWise":
            each = layer.whole(7, 1) if scales in (1, 101) else 1
        parts += [("weight scale", each, False), ("input scale", 1, False)]
    if scales > 100:
        parts.append(("output scale", 1, False))
    return parts


def _inner_product(layer: Layer) -> list[Part]:
    outputs = layer.whole(0, 0)
    parts: list[Part] = [("weight", layer.whole(2, 0), True)]
    if layer.whole(1, 0):
        parts.append(("bias", outputs, False))
    if layer.whole(8, 0):
        parts += [("weight scale", outputs, False), ("input scale", 1, False)]
    return parts


def _embed(layer: Layer) -> list[Part]:
    parts: list[Part] = [("weight", layer.whole(3, 0), True)]
    if layer.whole(2, 0):
        parts.append(("bias", layer.whole(0, 0), False))
    if layer.whole(18, 0):
        parts.append(("weight scale", 1, False))
    return parts


def _recurrent(gates: int, biases: int, layer: Layer) -> list[Part]:
    outputs, directions = layer.whole(0, 0), 2 if layer.whole(2, 0) == 2 else 1
    hidden = layer.whole(3, outputs) if layer.type == "LSTM" else outputs
    total = layer.whole(1, 0)
    parts: list[Part] = [
        ("weight", total, True), ("bias", hidden * biases * directions, True),
        ("recurrent weight", outputs * hidden * gates * directions, True),
    ]  # fmt: skip
    if hidden != outputs:
        parts.append(("projection", hidden * outputs * directions, True))
    if layer.whole(8, 0):
        each = hidden * gates * directions
        parts += [("weight scale", each, False), ("recurrent weight scale", each, False)]
    return parts


def _gemm(layer: Layer) -> list[Part]:
    m, n, k = (layer.whole(key, 0) for key in (7, 8, 9))
    scaled = layer.whole(18, 0)
    if scaled >= _BLOCKS:
        raise UncorkError(f"Gemm {printable(layer.name)[:80]!r} holds codes in blocks: not read")
    parts: list[Part] = []
    if layer.whole(4, 0) == 1:
        parts.append(("A", m * k, True))
    if layer.whole(5, 0) == 1:
        parts.append(("B", n * k, True))
    sizes = {0: 1, 1: m, 2: m, 3: n * m, 4: n}
    if layer.whole(6, 0) == 1 and layer.whole(10, 0) in sizes:
        parts.append(("C", sizes[layer.whole(10, 0)], True))
    if scaled and layer.whole(4, 0) == 1:
        parts.append(("A scale", m, False))
    if scaled and layer.whole(5, 0) == 1:
        parts.append(("B scale", 1, False))
    return parts


def _attention(layer: Layer) -> list[Part]:
    width, total = layer.whole(0, 0), layer.whole(2, 0)
    scaled = layer.whole(18, 0)
    if scaled >= _BLOCKS or width <= 0:
        raise UncorkError(f"MultiHeadAttention {printable(layer.name)[:80]!r} is not read")
    q = total // width
    sides = (("q", q), ("k", layer.whole(3, width)), ("v", layer.whole(4, width)))
    parts: list[Part] = []
    for name, size in sides:
        parts += [(name, width * size, True), (f"{name} bias", width, False)]
    parts += [("out", q * width, True), ("out bias", q, False)]
    if scaled:
        parts += [(f"{name} scale", width, False) for name, _ in sides]
        parts.append(("out scale", 1, False))
    return parts


def _affine(size: int, flag: int, names: tuple[str, ...], layer: Layer) -> list[Part]:
    """Gains and offsets, where the layer has them."""
    return [(name, layer.whole(size, 0), False) for name in names] if layer.whole(flag, 1) else []


def _some(names: dict[str, tuple[int, int]], layer: Layer) -> list[Part]:
    """Plain arrays whose lengths are settings."""
    return [(name, layer.whole(key, default), False) for name, (key, default) in names.items()]


def _scale(layer: Layer) -> list[Part]:
    size = layer.whole(0, 0)
    if size == -233:
        return []
    parts: list[Part] = [("scale", size, False)]
    return [*parts, ("bias", size, False)] if layer.whole(1, 0) else parts


def _memory(layer: Layer) -> list[Part]:
    sizes = [layer.whole(key, 0) for key in (0, 1, 11, 2)]
    count = math.prod(size for size in sizes if size)
    return [("data", count, layer.whole(21, 1) == 0)] if any(sizes) else []


_NORMS = {"BatchNorm": ("slope", "mean", "variance", "bias")}
_PARTS: dict[str, Callable[[Layer], list[Part]]] = {
    **dict.fromkeys(("Convolution", "ConvolutionDepthWise", "Convolution1D",
                     "ConvolutionDepthWise1D", "Convolution3D", "ConvolutionDepthWise3D"),
                    functools.partial(_convolution, 19)),
    **dict.fromkeys(("Deconvolution", "DeconvolutionDepthWise", "Deconvolution1D",
                     "DeconvolutionDepthWise1D", "Deconvolution3D", "DeconvolutionDepthWise3D",
                     "DeformableConv2D"), functools.partial(_convolution, 28)),
    "InnerProduct": _inner_product, "Embed": _embed, "Gemm": _gemm, "Scale": _scale,
    "MultiHeadAttention": _attention, "MemoryData": _memory,
    "LSTM": functools.partial(_recurrent, 4, 4), "GRU": functools.partial(_recurrent, 3, 4),
    "RNN": functools.partial(_recurrent, 1, 1),
    "BatchNorm": lambda layer: [(name, layer.whole(0, 0), False) for name in _NORMS["BatchNorm"]],
    "LayerNorm": functools.partial(_affine, 0, 2, ("gain", "offset")),
    "RMSNorm": functools.partial(_affine, 0, 2, ("gain",)),
    "InstanceNorm": functools.partial(_affine, 0, 2, ("gain", "offset")),
    "GroupNorm": functools.partial(_affine, 1, 3, ("gain", "offset")),
    "Bias": functools.partial(_some, {"bias": (0, 0)}),
    "PReLU": functools.partial(_some, {"slope": (0, 0)}),
    "Normalize": functools.partial(_some, {"scale": (3, 0)}),
    "Padding": functools.partial(_some, {"values": (6, 0)}),
    "Quantize": functools.partial(_some, {"scale": (0, 1)}),
    "Dequantize": functools.partial(_some, {"scale": (0, 1), "bias": (1, 0)}),
    "Requantize": functools.partial(_some, {"in": (0, 1), "out": (1, 1), "bias": (2, 0)}),
}  # fmt: skip
