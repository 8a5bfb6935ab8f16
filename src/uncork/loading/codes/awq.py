"""AWQ (its gemm version): `qweight` packed along the classes in the order 0 2 4 6 1 3 5 7.

(code − zero) · scale of the feature's group, rounded once to the scales' own type, as autoawq does.
"""

from __future__ import annotations

import numpy as np

from uncork.loading.codes.layer import Layer, Matrix, is_float, once
from uncork.loading.codes.packing import unpacked

_METHODS = ("", "awq", "auto-round")
_VERSIONS = ("", "gemm", "auto_round:auto_awq", "auto_round:awq")
_PLACE = np.array([0, 4, 1, 5, 2, 6, 3, 7])  # where in its word each class of eight lies


def read_awq(layer: Layer) -> Matrix | None:
    codes, scales, zeros = layer.part("qweight"), layer.part("scales"), layer.part("qzeros")
    if codes is None or scales is None or zeros is None or layer.method not in _METHODS:
        return None
    shapes = (codes.shape, scales.shape, zeros.shape)
    if any(len(shape) != 2 or 0 in shape for shape in shapes) or layer.has("g_idx"):
        return None
    (groups, classes), features = scales.shape, codes.shape[0]
    if codes.shape[1] * 8 != classes or zeros.shape != (groups, classes // 8):
        return None
    if codes.dtype != "int32" or zeros.dtype != "int32" or not is_float(scales.dtype):
        layer.fail(f"{codes}, {zeros} or {scales} is of a type that AWQ does not use")
    said = layer.quantisation
    version = str(said.get("version") or said.get("packing_format") or "").lower()
    if version not in _VERSIONS or said.get("bits", said.get("w_bit", 4)) != 4:
        layer.fail(f"its configuration asks for AWQ's version {version[:40]!r} or for other bits")
    if features % groups:
        layer.fail(f"{features} features are not {groups} equal groups")
    group = features // groups
    parts = once(layer, lambda layer: (codes.read(), zeros.read(), layer.finite("scales")))

    def rows(start: int, stop: int) -> np.ndarray:
        words, zero, scale = parts()
        columns = slice(start // 8, -(-stop // 8))
        values = _ordered(words[:, columns])[:, : stop - start].astype(np.int16)
        less = _ordered(zero[:, columns])[:, : stop - start].astype(np.int16)
        difference = values.reshape(groups, group, -1) - less[:, None, :]
        product = difference.astype(scale.dtype) * scale[:, None, start:stop]
        return product.reshape(features, -1).T

    how = (
        f"dequantised: 4-bit codes less {layer.name('qzeros')} times {layer.name('scales')}, one "
        f"each a group of {group} (AWQ)"
    )
    return Matrix((classes, features), layer.type_of("scales"), how, rows)


def _ordered(words: np.ndarray) -> np.ndarray:
    """Eight codes a word, in the order of the classes."""
    codes = unpacked(words, 4, words.shape[1] * 8)
    return codes.reshape(len(words), -1, 8)[:, :, _PLACE].reshape(len(words), -1)
