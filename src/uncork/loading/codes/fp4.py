"""4-bit floats, two a byte: NVFP4 (a float8 scale for 16, one float32 for all) and MXFP4.

NVFP4 as ModelOpt writes it (`weight`, `weight_scale`, `weight_scale_2`): code · (scale · scale_2),
each product in float32. As compressed-tensors writes it (`weight_packed`, `weight_scale`,
`weight_global_scale`): code · (scale / global_scale), rounded to bfloat16, as its decompressor
does. MXFP4 (`blocks` and `scales`, or `weight_packed` with scales in bytes): code · 2^(byte − 127),
exact in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from uncork.loading.codes.layer import Layer, Matrix, once
from uncork.loading.codes.packing import E2M1, powers_of_two, unpacked
from uncork.loading.contents import Tensor

_NVFP4_GROUP, _MXFP4_GROUP = 16, 32
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def read_nvfp4(layer: Layer) -> Matrix | None:
    """ModelOpt's."""
    codes, scale = layer.part("weight"), layer.part("weight_scale")
    if codes is None or scale is None or not layer.has("weight_scale_2"):
        return None
    if codes.dtype != "uint8" or scale.dtype != "float8_e4m3fn":
        return None

    def scales(layer: Layer) -> np.ndarray:
        return scale.read().astype(np.float32) * np.float32(layer.number("weight_scale_2"))

    how = (
        f"dequantised: NVFP4 codes times {layer.name('weight_scale')}, one a group of 16, times "
        f"{layer.name('weight_scale_2')}"
    )
    return _matrix(layer, codes, scale, _NVFP4_GROUP, scales, np.dtype(np.float32), how)


def read_packed_fp4(layer: Layer) -> Matrix | None:
    """compressed-tensors' NVFP4 and MXFP4."""
    codes, scale = layer.part("weight_packed"), layer.part("weight_scale")
    if codes is None or scale is None or codes.dtype != "uint8":
        return None
    if layer.has("weight_zero_point") or layer.has("weight_shape"):
        return None
    shared = layer.part("weight_global_scale")
    if shared is not None and scale.dtype == "float8_e4m3fn":
        # One number of no dimension does not raise the type of what it divides in torch.
        narrow = shared.shape == ()

        def scales(layer: Layer) -> np.ndarray:
            divisor = np.float32(layer.number("weight_global_scale"))
            if divisor == 0:
                layer.fail(f"{shared} is 0")
            found: np.ndarray = scale.read().astype(np.float32) / divisor
            return found.astype(_BFLOAT16).astype(np.float32) if narrow else found

        how = (
            f"dequantised: NVFP4 codes times {layer.name('weight_scale')}, one a group of 16, over "
            f"{layer.name('weight_global_scale')}"
        )
        return _matrix(layer, codes, scale, _NVFP4_GROUP, scales, _BFLOAT16, how)
    if shared is None and scale.dtype in ("uint8", "float8_e8m0fnu"):
        how = (
            f"dequantised: MXFP4 codes times 2^({layer.name('weight_scale')} − 127), one a group "
            "of 32"
        )
        return _matrix(
            layer, codes, scale, _MXFP4_GROUP, lambda _: powers_of_two(scale.read()), _BFLOAT16, how
        )
    return None


def read_mxfp4(layer: Layer) -> Matrix | None:
    """Blocks of 16 bytes, as gpt-oss has them."""
    prefix = "weight_" if layer.has("weight_blocks") else ""
    codes, scale = layer.part(f"{prefix}blocks"), layer.part(f"{prefix}scales")
    if codes is None or scale is None or (codes.dtype, scale.dtype) != ("uint8", "uint8"):
        return None
    if len(codes.shape) != 3:  # experts, of which there are several
        return None
    if codes.shape[2] * 2 != _MXFP4_GROUP or codes.shape[:2] != scale.shape:
        layer.fail(f"{scale} does not fit {codes}")
    how = (
        f"dequantised: MXFP4 codes of {codes.name} times 2^({scale.name} − 127), one a group of 32"
    )
    return _matrix(
        layer, codes, scale, _MXFP4_GROUP, lambda _: powers_of_two(scale.read()), _BFLOAT16, how
    )


def _matrix(
    layer: Layer, codes: Tensor, scale: Tensor, group: int,
    scales: Callable[[Layer], np.ndarray], dtype: np.dtype, how: str,
) -> Matrix:  # fmt: skip
    """Rows of two codes a byte, the lower half first, with a scale a group."""
    classes, features = codes.shape[0], int(np.prod(codes.shape[1:], dtype=np.int64)) * 2
    if len(codes.shape) < 2 or scale.shape != (classes, features // group):
        layer.fail(f"{scale} does not fit {codes}")
    if features % group or not classes or not features:
        layer.fail(f"{codes} is not made of groups of {group}")

    def make(layer: Layer) -> tuple[np.ndarray, np.ndarray]:
        values = scales(layer)
        if not np.isfinite(values).all():
            layer.fail(f"{scale} holds values that are not finite")
        return codes.read().reshape(classes, -1), values

    parts = once(layer, make)

    def rows(start: int, stop: int) -> np.ndarray:
        packed, values = parts()
        codes = E2M1[unpacked(packed[start:stop], 4, features)].reshape(stop - start, -1, group)
        product: np.ndarray = codes * values[start:stop, :, None]
        return product.reshape(stop - start, features)

    return Matrix((classes, features), dtype, how, rows)
