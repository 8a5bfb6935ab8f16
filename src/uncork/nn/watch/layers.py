"""The weight and the bias of what is watched: a torch module, a Keras layer, or a function."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.nn._torch import torch
from uncork.nn.transforms.sharded import is_sharded

Tensor = torch.Tensor
_INSTEAD = "give a function that returns the weight (classes × features) and the bias or None"


def parameters(layer: Any) -> tuple[Tensor, Tensor | None]:
    """Weight (C, d) and bias (C,) or None, as they are now, where they are."""
    weight: Any
    bias: Any
    name = type(layer).__name__
    if _is_keras(layer):
        weight, bias = _of_keras(layer)
    elif isinstance(layer, torch.nn.Module):
        if name == "Conv1D" and hasattr(layer, "nf"):  # transformers', of GPT-2
            raise UncorkError(f"a {name} layer keeps its weight transposed: {_INSTEAD}")
        if hasattr(layer, "base_layer") and not getattr(layer, "merged", False):  # PEFT
            raise UncorkError(f"the weight of this {name} is without its adapter's: {_INSTEAD}")
        weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
    else:
        made = layer()
        if not isinstance(made, tuple) or len(made) != 2:
            raise UncorkError(f"what is to watch gives {type(made).__name__}: {_INSTEAD}")
        weight, bias = made
        name = "what is given"
    if not isinstance(weight, Tensor):
        raise _without_weight(name)
    if isinstance(weight, torch.nn.parameter.UninitializedParameter):
        raise UncorkError(f"this {name} layer has no weight yet: run the model once first")
    if weight.is_meta:
        raise UncorkError(f"the weight to watch is on the device meta, without values: {_INSTEAD}")
    if weight.is_complex():
        raise UncorkError(f"the weight to watch is {weight.dtype}, of complex numbers: {_INSTEAD}")
    if not weight.is_floating_point() or weight.element_size() < 2:
        raise UncorkError(
            f"the weight to watch is {weight.dtype}, codes whose scales are elsewhere: {_INSTEAD}"
        )
    if is_sharded(weight):
        raise UncorkError(f"the weight to watch is a DTensor: {_INSTEAD}, as full_tensor()")
    if not isinstance(bias, Tensor | None):
        raise UncorkError(f"the bias to watch is a {type(bias).__name__}: {_INSTEAD}")
    if weight.layout is not torch.strided:
        raise UncorkError(f"the weight to watch is {weight.layout}: {_INSTEAD}, dense")
    if weight.ndim != 2:
        raise UncorkError(
            f"the weight to watch has shape {tuple(weight.shape)}, expected classes × features: "
            f"{_INSTEAD}"
        )
    return weight.detach(), None if bias is None else bias.detach()


def check_has_weight(layer: Any) -> None:
    """Said when a watch is made, and not at its first count, which would end the training: a module
    has a weight or it has not. What the weight is like may still change."""
    is_module = isinstance(layer, torch.nn.Module) and not _is_keras(layer)
    if is_module and not isinstance(getattr(layer, "weight", None), Tensor):
        raise _without_weight(type(layer).__name__)


def _without_weight(name: str) -> UncorkError:
    return UncorkError(f"{name} has no weight tensor to watch: name its last layer, or {_INSTEAD}")


def _is_keras(layer: Any) -> bool:
    """Whoever has a layer of Keras has imported it; with its torch backend it is a module too."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(layer, keras.layers.Layer)


def _of_keras(layer: Any) -> tuple[Tensor, Tensor | None]:
    """Of a Dense layer, whose kernel has a column a class; others order theirs as they like."""
    name = type(layer).__name__
    if not isinstance(layer, sys.modules["keras"].layers.Dense):
        raise UncorkError(f"of Keras's layers a Dense one is watched, not {name}: {_INSTEAD}")
    if getattr(layer, "quantization_mode", None) is not None:
        raise UncorkError(f"the kernel of this {name} layer is stored as codes: {_INSTEAD}")
    if not layer.built:
        raise UncorkError(f"this {name} layer has no kernel yet: build the model first")
    return _tensor(layer.kernel).T, None if layer.bias is None else _tensor(layer.bias)


def _tensor(value: Any) -> Tensor:
    """A variable of any backend. What is not torch's is copied to main memory."""
    value = getattr(value, "value", value)
    if callable(value):  # a tf.Variable's
        value = value()
    if isinstance(value, Tensor):
        return value.detach()
    array = np.array(value)
    # bfloat16 is no type of NumPy's own; float32 holds it exactly.
    return torch.from_numpy(array if array.dtype.kind == "f" else array.astype(np.float32))
