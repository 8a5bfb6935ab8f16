"""compressed-tensors' pack-quantized: signed codes of 2, 4 or 8 bits in int32 words.

(code − zero) · scale of its row or group, rounded once to the scale's own type, as its decompressor
does. Codes are stored with half their range added, packed along the features; zero points likewise,
packed along the classes.
"""

from __future__ import annotations

import numpy as np

from uncork.loading.codes.layer import Layer, Matrix, is_float, once
from uncork.loading.codes.packing import unpacked

_BITS = (2, 4, 8)  # others were packed in different ways by different versions


def read_packed(layer: Layer) -> Matrix | None:
    codes, scale = layer.part("weight_packed"), layer.part("weight_scale")
    size = layer.part("weight_shape")
    if codes is None or scale is None or size is None or codes.dtype != "int32":
        return None
    if size.shape != (2,) or len(codes.shape) != 2 or not is_float(scale.dtype):
        layer.fail(f"{size} or {scale} does not fit {codes}")
    classes, features = (int(n) for n in size.read().astype(np.int64))
    fitting = [
        b for b in _BITS if features > 0 and codes.shape == (classes, -(-features * b // 32))
    ]
    if len(fitting) != 1:
        layer.fail(f"{codes} does not hold {classes} × {features} codes of 2, 4 or 8 bits")
    bits = fitting[0]
    groups = int(np.prod(scale.shape[1:], dtype=np.int64))
    if scale.shape[:1] not in ((classes,), (1,)) or not groups or features % groups:
        layer.fail(f"{scale} does not fit {classes} × {features} codes")
    group, dtype, half = features // groups, layer.type_of("weight_scale"), 2 ** (bits - 1)
    zero = layer.part("weight_zero_point")
    if zero is not None and (
        zero.dtype != "int32" or zero.shape != (-(-classes * bits // 32), groups)
    ):
        layer.fail(f"{zero} does not fit {scale}")

    def make(layer: Layer) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        order = layer.part("weight_g_idx")
        if order is not None and not np.array_equal(order.read(), np.arange(features) // group):
            layer.fail(f"{order} reorders its features")
        scales = np.broadcast_to(
            layer.finite("weight_scale").reshape(-1, groups), (classes, groups)
        )
        less = np.zeros((classes, groups), np.int16)
        if zero is not None:
            less = unpacked(zero.read().T, bits, classes).T.astype(np.int16) - half
        return codes.read(), scales, less

    parts = once(layer, make)

    def rows(start: int, stop: int) -> np.ndarray:
        words, scales, less = parts()
        values = unpacked(words[start:stop], bits, features).astype(np.int16) - half
        difference = values.reshape(stop - start, groups, group) - less[start:stop, :, None]
        product = difference.astype(scales.dtype) * scales[start:stop, :, None]
        return product.reshape(stop - start, features)

    how = (
        f"dequantised: {bits}-bit codes of {layer.name('weight_packed')}"
        f"{' less their zero points' if zero is not None else ''} times "
        f"{layer.name('weight_scale')}, one a {'row' if groups == 1 else f'group of {group}'}"
    )
    return Matrix((classes, features), dtype, how, rows)
