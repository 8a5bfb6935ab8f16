"""Ways of storing a weight as codes that are not dequantised here: known by name, and refused."""

from __future__ import annotations

from uncork.core.text import printable
from uncork.loading.codes.layer import Layer

# Parts that hold the codes in place of a `weight`, and who writes them.
HOLDERS = {
    "qweight": "", "weight_packed": "", "weight_blocks": "", "blocks": "",
    "W_q": "HQQ", "weight._data": "Quanto", "_weight_qdata": "torchao", "codebooks": "AQLM",
    "centroids.weight": "VPTQ", "dense_weights": "SpQR", "Qidxs": "QuIP#", "q_weight": "EXL2",
    "trellis": "EXL3", "dqweight": "FP-Quant",
}  # fmt: skip
# Holders whose names alone are used for other things: what must lie beside them.
_COMPANIONS = {"blocks": "scales", "weight_blocks": "weight_scales", "codebooks": "codes",
               "centroids.weight": "indices"}  # fmt: skip
# Parts beside a `weight` that say of any type that it is not the matrix itself.
MARKS = {
    "weight_scale": "", "weight_scale_inv": "", "weight_scale_2": "", "weight_global_scale": "",
    "weight_zero_point": "", "weight_packed": "", "scale_weight": "ComfyUI", "SCB": "bitsandbytes",
    "weight.absmax": "bitsandbytes", "weight.quant_map": "bitsandbytes", "weight_scales": "EETQ",
    "weight.quant_state.bitsandbytes__nf4": "bitsandbytes",
    "weight.quant_state.bitsandbytes__fp4": "bitsandbytes", "weight_sf": "NVFP4 of transformers",
    "qweight": "", "qzeros": "", "g_idx": "",
}  # fmt: skip
# Parts that say so of integers and float8 only: elsewhere such names are used for other things.
WEAK_MARKS = {
    "scales": "", "biases": "", "qbiases": "", "scale": "", "zero": "", "zeros": "",
    "zero_point": "", "weight_zeros": "", "tables": "HIGGS", "absmax": "", "quant_map": "",
}  # fmt: skip
# What else lies beside codes: no matrices to choose from.
OTHER_PARTS = (
    "weight_shape", "weight_g_idx", "weight_format", "input_scale", "input_global_scale",
    "weight.nested_absmax", "weight.nested_quant_map",
)  # fmt: skip
_LIBRARIES = {
    "hqq": "HQQ", "quanto": "Quanto", "aqlm": "AQLM", "vptq": "VPTQ", "spqr": "SpQR",
    "bitnet": "BitNet", "eetq": "EETQ", "higgs": "HIGGS", "fp_quant": "FP-Quant", "quark": "Quark",
    "torchao": "torchao", "sinq": "SINQ", "bitsandbytes": "bitsandbytes", "gptq": "GPTQ",
    "awq": "AWQ", "compressed-tensors": "compressed-tensors", "modelopt": "ModelOpt",
}  # fmt: skip


def holders(layer: Layer) -> list[str]:
    """The parts that hold the layer's codes in place of a weight."""
    return [
        part for part in HOLDERS
        if layer.has(part) and (part not in _COMPANIONS or layer.has(_COMPANIONS[part]))
    ]  # fmt: skip


def refusal(layer: Layer, parts: list[str]) -> str:
    """What to say of codes in a way that is not known."""
    writers = {**HOLDERS, **MARKS, **WEAK_MARKS}
    named = [writers[part] for part in parts if writers[part]]
    by = _LIBRARIES.get(layer.method) or (named[0] if named else "")
    shown = ", ".join(printable(layer.name(part)) for part in parts)
    weight = layer.part("weight")
    kind = "" if weight is None else f"{weight.dtype} "
    return (
        f"{layer.path}: {printable(layer.weight)} is stored as codes ({kind}with {shown})"
        + (f" by {by}" if by else "")
        + ", in a way that uncork does not dequantise: dequantise the model with its own library "
        "and save that"
    )
