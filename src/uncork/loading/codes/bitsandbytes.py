"""bitsandbytes: int8 rows with `SCB`, and 4-bit floats (nf4, fp4) in blocks with `absmax`.

int8 is code · SCB · (1/127), each product rounded to float32, as int8_vectorwise_dequant does.
4 bit is map[code] · absmax of its block in float32, rounded to the type that the quant_state
names; where absmax is itself quantised, it is map[code] · absmax + offset in float32 first.
"""

from __future__ import annotations

import json
import math
from typing import Any

import ml_dtypes
import numpy as np

from uncork.core.text import printable
from uncork.loading.codes.layer import Layer, Matrix, once

_MOST_JSON = 1 << 16
_INVERSE = np.float32(7.874015718698502e-3)  # 1/127, as the library has it
_TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
_KINDS = ("nf4", "fp4")
_MAPS = {
    "nf4": np.array(
        [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
         -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
         0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
         0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], np.float32,
    ),
    "fp4": np.array([0, 0.0625, 8, 12, 4, 6, 2, 3, -0.0, -0.0625, -8, -12, -4, -6, -2, -3],
                    np.float32) / np.float32(12),
}  # fmt: skip


def read_int8(layer: Layer) -> Matrix | None:
    codes, scale = layer.part("weight"), layer.part("SCB")
    if codes is None or scale is None or codes.dtype != "int8" or len(codes.shape) != 2:
        return None
    if math.prod(scale.shape) != codes.shape[0]:
        layer.fail(f"its scales {scale} do not fit {codes}")
    form = layer.part("weight_format")
    if form is not None and layer.number("weight_format") != 0:
        layer.fail(f"{form} says that its rows are not in order")
    parts = once(layer, lambda layer: (codes.read(), layer.finite("SCB").reshape(-1, 1)))

    def rows(start: int, stop: int) -> np.ndarray:
        weight, scales = parts()
        product: np.ndarray = weight[start:stop].astype(np.float32) * scales[start:stop] * _INVERSE
        return product

    how = f"dequantised: int8 codes times {layer.name('SCB')} / 127, one a row (bitsandbytes)"
    return Matrix((codes.shape[0], codes.shape[1]), np.dtype(np.float32), how, rows)


def read_four_bit(layer: Layer) -> Matrix | None:
    codes = layer.part("weight")
    kinds = [kind for kind in _KINDS if layer.has(f"weight.quant_state.bitsandbytes__{kind}")]
    if codes is None or not kinds or not layer.has("weight.absmax"):
        return None
    if len(kinds) > 1:
        layer.fail("it has two quant_states")
    kind = kinds[0]
    state = _state(layer, f"weight.quant_state.bitsandbytes__{kind}")
    rows_, columns = map(int, state["shape"])
    block = int(state["blocksize"])
    count = rows_ * columns
    absmax = layer.need("weight.absmax")
    if len(codes.shape) != 2 or codes.shape[1] != 1:
        layer.fail(f"{codes} is not one column of codes")
    if math.prod(absmax.shape) != -(-count // block):
        layer.fail(f"{absmax} does not fit a {rows_} × {columns} weight in blocks of {block}")
    if codes.dtype == "?" or codes.dtype.startswith(("complex", "raw")):
        layer.fail(f"{codes} is of type {codes.dtype}")
    data = once(layer, lambda layer: (_bytes(layer, count), _absmax(layer, state), _MAPS[kind]))

    def rows(start: int, stop: int) -> np.ndarray:
        packed, scales, table = data()
        first, last = start * columns, stop * columns
        pairs = packed[first // 2 : -(-last // 2)]
        values = table[np.stack([pairs >> 4, pairs & 15], axis=1).reshape(-1)]
        values = values[first % 2 : first % 2 + last - first]
        blocks = np.repeat(scales[first // block : -(-last // block)], block)
        product: np.ndarray = values * blocks[first % block : first % block + last - first]
        return product.reshape(stop - start, columns)

    how = (
        f"dequantised: 4-bit {kind} codes times {layer.name('weight.absmax')}, one a block of "
        f"{block} (bitsandbytes)"
    )
    return Matrix((rows_, columns), np.dtype(_TYPES[state["dtype"]]), how, rows)


def _state(layer: Layer, part: str) -> dict[str, Any]:
    """The settings that lie beside the codes as JSON in bytes, checked."""
    tensor = layer.need(part)
    if tensor.dtype != "uint8" or math.prod(tensor.shape) > _MOST_JSON:
        layer.fail(f"{tensor} is not a quant_state")
    try:
        state = json.loads(tensor.read().tobytes())
        shape, block = state["shape"], state["blocksize"]
        sizes = [*shape, block]
        good = len(shape) == 2 and all(type(n) is int and 0 < n < 2**40 for n in sizes)
        good = good and state["dtype"] in _TYPES and block <= 1 << 20
        if not good:
            raise ValueError("its shape, type or block size is not understood")
        return dict(state)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        text = printable(" ".join(str(error).split())[:80])
        layer.fail(f"{tensor} cannot be read ({text})")


def _bytes(layer: Layer, count: int) -> np.ndarray:
    """The packed codes as bytes, whatever type they were stored as."""
    tensor = layer.need("weight")
    packed = np.ascontiguousarray(tensor.read()).reshape(-1).view(np.uint8)
    if packed.size != -(-count // 2):
        layer.fail(f"{tensor} holds {packed.size} bytes where {-(-count // 2)} are expected")
    table = layer.part("weight.quant_map")
    kind = "nf4" if layer.has("weight.quant_state.bitsandbytes__nf4") else "fp4"
    if table is not None:
        values = layer.finite("weight.quant_map").reshape(-1)
        if values.shape != (16,) or np.abs(values - _MAPS[kind]).max() > 1e-6:
            layer.fail(f"{table} is not the table of {kind}")
    return packed


def _absmax(layer: Layer, state: dict[str, Any]) -> np.ndarray:
    """One float32 a block, dequantised where it is stored as codes itself."""
    tensor = layer.need("weight.absmax")
    if not layer.has("weight.nested_absmax"):
        values = layer.finite("weight.absmax").reshape(-1)
        return values.astype(np.float32)
    if tensor.dtype != "uint8":
        layer.fail(f"{tensor} is of type {tensor.dtype} where codes are expected")
    outer = layer.finite("weight.nested_absmax").reshape(-1).astype(np.float32)
    table = layer.finite("weight.nested_quant_map").reshape(-1).astype(np.float32)
    block, offset = state.get("nested_blocksize"), state.get("nested_offset")
    codes = tensor.read().reshape(-1)
    if type(block) is not int or not 0 < block < 2**31 or not isinstance(offset, int | float):
        layer.fail(f"the blocks that {tensor} is scaled by are not understood")
    if table.shape != (256,) or len(outer) != -(-len(codes) // block):
        layer.fail(f"what {tensor} is scaled by does not fit it")
    shift = np.float32(offset)
    if not np.isfinite(shift):
        layer.fail(f"the offset of {tensor} is not finite")
    # As the library: a product and a sum, each rounded to float32.
    product: np.ndarray = table[codes] * outer[np.arange(len(codes)) // block]
    return product + shift
