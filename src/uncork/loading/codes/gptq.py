"""GPTQ: `qweight` packed along the features, with `qzeros`, `scales` and perhaps `g_idx`.

scale · (code − zero) of the feature's group, rounded once to the scales' own type, as gptqmodel
and auto-gptq do. Format 1 stores zero − 1, format 2 (`checkpoint_format: gptq_v2`) the zero itself;
without a configuration only symmetric codes, whose zero is the middle, tell which it is.
"""

from __future__ import annotations

import numpy as np

from uncork.loading.codes.layer import Layer, Matrix, is_float, once
from uncork.loading.codes.packing import unpacked

_BITS = (2, 3, 4, 8)
_METHODS = ("", "gptq", "auto-round")
_FORMATS = {
    "": None, "gptq": 1, "gptq_v2": 2, "auto_round:auto_gptq": 1, "auto_round:gptq": 1,
}  # fmt: skip


def read_gptq(layer: Layer) -> Matrix | None:
    codes, scales, zeros = layer.part("qweight"), layer.part("scales"), layer.part("qzeros")
    if codes is None or scales is None or zeros is None or layer.method not in _METHODS:
        return None
    shapes = (codes.shape, scales.shape, zeros.shape)
    if any(len(shape) != 2 or 0 in shape for shape in shapes) or codes.shape[1] != scales.shape[1]:
        return None
    groups, classes = scales.shape
    order = layer.part("g_idx")
    if codes.dtype != "int32" or zeros.dtype != "int32" or not is_float(scales.dtype):
        layer.fail(f"{codes}, {zeros} or {scales} is of a type that GPTQ does not use")
    fitting = [
        b for b in _BITS
        if zeros.shape == (groups, -(-classes * b // 32)) and codes.shape[0] * 32 % b == 0
        and (order is None or codes.shape[0] == -(-order.shape[0] * b // 32))
    ]  # fmt: skip
    said = layer.quantisation.get("bits")
    if type(said) is int and said in fitting:
        fitting = [said]
    if len(fitting) != 1:
        layer.fail("the shapes of its qweight, qzeros and scales do not go together")
    bits = fitting[0]
    features = codes.shape[0] * 32 // bits if order is None else order.shape[0]
    if features % groups and order is None:
        layer.fail(f"{features} features are not {groups} equal groups")
    dtype = layer.type_of("scales")

    def make(layer: Layer) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        zero = unpacked(zeros.read(), bits, classes).astype(np.int16)
        zero += _shift(layer, zero, bits)
        group = np.arange(features) // max(1, features // groups)
        if order is not None:
            group = order.read().astype(np.int64)
            if group.min() < -groups or group.max() >= groups:
                layer.fail(f"{order} names groups that are not there")
        return codes.read(), zero, layer.finite("scales"), group

    parts = once(layer, make)

    def rows(start: int, stop: int) -> np.ndarray:
        words, zero, scale, group = parts()
        values = unpacked(words[:, start:stop].T, bits, features).astype(np.int16)
        difference = values - zero[:, start:stop].T[:, group]
        product: np.ndarray = difference.astype(scale.dtype) * scale[:, start:stop].T[:, group]
        return product

    how = (
        f"dequantised: {bits}-bit codes less {layer.name('qzeros')} times {layer.name('scales')}, "
        f"{groups} group{'s' if groups > 1 else ''} of features (GPTQ)"
    )
    return Matrix((classes, features), dtype, how, rows)


def _shift(layer: Layer, zeros: np.ndarray, bits: int) -> int:
    """1 where zeros are stored less one (format 1), 0 where they are stored as they are."""
    said = layer.quantisation
    name = str(said.get("checkpoint_format") or said.get("packing_format") or "")
    form = _FORMATS.get(name)
    if name not in _FORMATS:
        layer.fail(f"the configuration calls its format {name[:40]!r}")
    middle = 2 ** (bits - 1)
    if form is None and layer.method == "gptq":
        form = 1  # as its libraries take it
    if form is None:
        if (zeros == middle - 1).all():
            form = 1
        elif (zeros == middle).all():
            form = 2
        else:
            layer.unsaid("whether its zero points are stored less one (checkpoint_format)")
    if form == 1 and (zeros == 2**bits - 1).any():
        layer.fail("its zero points leave their range, which libraries read in different ways")
    return 1 if form == 1 else 0
