"""MLX's affine codes: uint32 words of `weight`, and `scales` and `biases` one a group of features.

code · scale + bias, the product and the sum each rounded to the scales' own type, as
mlx.core.dequantize does. Bits and group size are those of the configuration; without one they
follow from the shapes up to a factor of two, and the codes settle that: MLX puts the value of
largest magnitude of every group on code 0, so that of codes read with too many bits most groups
have none.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from uncork.loading.codes.layer import Layer, Matrix, is_float, once
from uncork.loading.codes.packing import unpacked
from uncork.loading.contents import Tensor

_BITS = (8, 6, 5, 4, 3, 2)
_GROUPS = (32, 64, 128)
_SAMPLED = 64  # rows that are looked at to tell the bits


def read_affine(layer: Layer) -> Matrix | None:
    codes, scales, offsets = layer.part("weight"), layer.part("scales"), layer.part("biases")
    if codes is None or scales is None or offsets is None or codes.dtype != "uint32":
        return None
    if len(codes.shape) != 2 or scales.shape != offsets.shape or len(scales.shape) != 2:
        layer.fail(f"{scales} and {offsets} do not fit {codes}")
    if not (is_float(scales.dtype) and scales.dtype == offsets.dtype):
        layer.fail(f"{scales} and {offsets} are of types {scales.dtype} and {offsets.dtype}")
    classes, groups = scales.shape
    if codes.shape[0] != classes or 0 in (*codes.shape, groups):
        layer.fail(f"{scales} does not fit {codes}")
    bits, group = _sizes(layer, codes, groups)
    features = groups * group
    dtype = layer.type_of("scales")
    parts = once(
        layer, lambda layer: (codes.read(), layer.finite("scales"), layer.finite("biases"))
    )

    def rows(start: int, stop: int) -> np.ndarray:
        words, scale, offset = parts()
        values = unpacked(words[start:stop], bits, features).astype(scale.dtype)
        grouped = values.reshape(stop - start, groups, group)
        product = (grouped * scale[start:stop, :, None]).astype(dtype).astype(scale.dtype)
        total: np.ndarray = product + offset[start:stop, :, None]
        return total.reshape(stop - start, features)

    how = (
        f"dequantised: {bits}-bit codes times {layer.name('scales')} plus {layer.name('biases')}, "
        f"one each a group of {group} (MLX)"
    )
    return Matrix((classes, features), dtype, how, rows)


def _sizes(layer: Layer, codes: Tensor, groups: int) -> tuple[int, int]:
    """Bits a code and codes a group."""
    in_group = codes.shape[1] * 32 / groups  # bits
    said = layer.quantisation
    if isinstance(said.get(layer.module), Mapping):  # layers may differ
        said = said[layer.module]
    mode = said.get("mode", "affine")
    bits, group = said.get("bits"), said.get("group_size")
    if mode != "affine":
        layer.fail(f"MLX's mode {str(mode)[:20]!r} has no biases")
    if type(bits) is int and type(group) is int:
        if bits not in _BITS or bits * group != in_group:
            layer.fail(
                f"the configuration's {bits} bits in groups of {group} do not fit {codes} with "
                f"{groups} groups"
            )
        return bits, group
    fitting = [(b, g) for b in _BITS for g in _GROUPS if b * g == in_group]
    if len(fitting) > 1:  # twice the bits, or half the group
        sampled = np.linspace(0, codes.shape[0] - 1, min(codes.shape[0], _SAMPLED))
        words = codes.read()[sampled.astype(np.int64)]
        for bits, group in fitting:
            zero = unpacked(words, bits, groups * group).reshape(-1, group) == 0
            if zero.any(axis=1).all() and not zero.all():
                return bits, group
    if len(fitting) != 1:
        layer.unsaid("how many bits its codes have")
    return fitting[0]
