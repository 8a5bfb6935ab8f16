"""float8 and int8 codes with one scale a weight, row, group or block: weight · scale.

Written by compressed-tensors and llm-compressor (naive, float- and int-quantized, mxfp8), by
ModelOpt and FBGEMM (float8), and in DeepSeek's way (`weight_scale_inv`, a block of 128 × 128 each;
it multiplies, whatever its name says). Codes and scale are multiplied and rounded once, to the
scale's own type, as compressed-tensors and transformers do; scales kept as exponents give bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import ml_dtypes
import numpy as np

from uncork.loading.codes.layer import Layer, Matrix, is_float, once
from uncork.loading.codes.packing import powers_of_two
from uncork.loading.contents import Tensor

_SCALES = ("weight_scale", "weight_scale_inv", "scale")  # the last in DeepSeek's own files
_BLOCK = 128  # DeepSeek's, where no configuration says another
_EXPONENTS = ("uint8", "float8_e8m0fnu")
_METHODS = ("", "compressed-tensors", "fp8", "fbgemm_fp8", "modelopt")


def read_scaled(layer: Layer) -> Matrix | None:
    codes = layer.part("weight")
    if codes is None or not (codes.dtype.startswith("float8") or codes.dtype == "int8"):
        return None
    found = [part for part in _SCALES if layer.has(part)]
    if found == ["scale"] and codes.dtype == "int8":
        return None  # what integers are multiplied by there is not known
    others = ("weight_scale_2", "weight_global_scale", "weight_g_idx", "weight_packed")
    if len(found) != 1 or any(map(layer.has, others)) or layer.method not in _METHODS:
        return None
    if len(codes.shape) != 2:
        return None
    part = found[0]
    scale = layer.need(part)
    height, width = _block(layer, codes, scale)
    exponents = scale.dtype in _EXPONENTS
    if not (exponents or is_float(scale.dtype)):
        layer.fail(f"its scale {scale} is of type {scale.dtype}")
    dtype = np.dtype(ml_dtypes.bfloat16) if exponents else layer.type_of(part)

    def make(layer: Layer) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        values = powers_of_two(scale.read()) if exponents else layer.finite(part)
        if not np.isfinite(values).all():
            layer.fail(f"{scale} holds values that are not finite")
        zero = layer.part("weight_zero_point")
        if zero is not None and zero.shape != scale.shape:
            layer.fail(f"the zero points {zero} do not fit its scale {scale}")
        zeros = None if zero is None else zero.read().astype(values.dtype).reshape(_grid(scale))
        return codes.read(), values.reshape(_grid(scale)), zeros

    parts = once(layer, make)

    def rows(start: int, stop: int) -> np.ndarray:
        weight, values, zeros = parts()
        at = np.ix_(np.arange(start, stop) // height, np.arange(codes.shape[1]) // width)
        part_of = weight[start:stop].astype(values.dtype)
        if zeros is not None:
            part_of = part_of - zeros[at]
        return part_of * values[at]

    each = {(1, codes.shape[1]): "row", codes.shape: "weight"}.get(
        (height, width), f"block of {height} × {width}"
    )
    zero = " less its zero point" if layer.has("weight_zero_point") else ""
    how = f"dequantised: {codes.dtype} codes{zero} times {layer.name(part)}, one a {each}"
    return Matrix((codes.shape[0], codes.shape[1]), dtype, how, rows)


def _grid(scale: Tensor) -> tuple[int, int]:
    """The scale's shape as a grid over the weight: one number and one a row are grids too."""
    shape = scale.shape
    if math.prod(shape) == 1:
        return 1, 1
    return (shape[0], 1) if len(shape) == 1 else (shape[0], math.prod(shape[1:]))


def _block(layer: Layer, codes: Tensor, scale: Tensor) -> tuple[int, int]:
    """How many rows and columns share a scale."""
    rows, columns = codes.shape
    if not (rows and columns) or len(scale.shape) > 2 or not math.prod(scale.shape):
        layer.fail(f"its scale {scale} does not fit {codes}")
    down, across = _grid(scale)
    if (down, across) in ((1, 1), (rows, 1)):
        return -(-rows // down), columns
    for height, width in _said(layer):
        if (
            height > 0
            and width > 0
            and (down, across) == (-(-rows // height), -(-columns // width))
        ):
            return height, width
    if rows % down or columns % across:
        layer.fail(f"its scale {scale} does not fit {codes}")
    return rows // down, columns // across


def _said(layer: Layer) -> list[tuple[int, int]]:
    """Sizes of blocks that the configuration names, else DeepSeek's."""
    said = layer.quantisation
    named = [said.get("weight_block_size")]
    groups = said.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        named.append(weights.get("block_structure") if isinstance(weights, Mapping) else None)
    sizes = [
        (size[0], size[1]) for size in named
        if isinstance(size, list | tuple) and len(size) == 2 and all(type(n) is int for n in size)
    ]  # fmt: skip
    return sizes or [(_BLOCK, _BLOCK)]
