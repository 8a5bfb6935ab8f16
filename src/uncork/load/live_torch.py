"""Live torch models: transformers models as their folder would be read, timm, torchvision, plain.

Nothing is copied, except from a GPU, and then only what is asked for. A module does not say in
which order its layers run, so that the head of a plain one is taken only where that is certain:
where the model names it, or where it is an `nn.Sequential`, whose order is its forward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from uncork.domain import Box, LayerNorm, RMSNorm
from uncork.errors import UncorkError
from uncork.load.activation_ranges import RANGES
from uncork.load.codes import decoded
from uncork.load.contents import (
    AmbiguousError,
    Choice,
    Contents,
    FoundDomain,
    Tensor,
    Vocabulary,
    as_matrix,
    listing,
)
from uncork.load.decisions import sigmoids
from uncork.load.hugging_face.configured import configured

_KIND = "torch module"
# Types that NumPy lacks: read bit for bit as integers, and named again.
_BITS: dict[str, tuple[str, Any]] = {
    "bfloat16": ("int16", ml_dtypes.bfloat16),
    "float8_e4m3fn": ("uint8", ml_dtypes.float8_e4m3fn),
    "float8_e5m2": ("uint8", ml_dtypes.float8_e5m2),
}
# Where torchvision's models keep their classifiers: the last of these that is a layer.
_CLASSIFIERS = ("fc", "classifier", "heads.head", "head", "heads", "head.fc", "last_linear")
_ACTIVATIONS = {
    "ReLU": "relu", "ReLU6": "relu6", "Tanh": "tanh", "Sigmoid": "sigmoid", "SiLU": "silu",
    "Hardswish": "hardswish",
}  # fmt: skip
_PASSING = ("Dropout", "Dropout1d", "Dropout2d", "AlphaDropout", "Identity", "Flatten",
            "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AvgPool1d", "AvgPool2d")  # fmt: skip
# What may follow the head without changing which class is first.
_FOLLOWING = ("Softmax", "LogSoftmax", "Sigmoid", "Tanh", "LogSigmoid", "Identity", "Flatten",
              "AdaptiveAvgPool2d", "Dropout")  # fmt: skip
_SIGMOIDS = ("Sigmoid", "LogSigmoid")
_LINEAR = ("Linear", "Conv1d", "Conv2d", "Conv3d", "NonDynamicallyQuantizableLinear")


def read_module(model: Any) -> Contents:
    """The tensors of a live module, and the head among them as the model itself names it."""
    model = _unwrapped(model)
    path = Path(f"<{type(model).__name__}>")
    _refuse_adapter(path, model)
    stored = {name: _tensor(path, name, value) for name, value in model.state_dict().items()}
    if not stored:
        raise UncorkError(f"{path} has no parameters")
    config = _configuration(model)
    tensors = decoded(path, stored, config, of_a_model=True)
    if config is not None:
        _check_output_layer(path, model, tensors, config)
        return configured(path, _KIND, config, tensors, functools.partial(_labels, config))
    plain = _Plain(path, model, tensors)
    return Contents(
        path, _KIND, tensors, plain.choose, plain.around,
        functools.partial(_labels, _timm(model)), plain.domain,
    )  # fmt: skip


def _unwrapped(model: Any) -> Any:
    """The model inside what training puts around it."""
    for _ in range(8):
        inner = getattr(model, "_orig_mod", None)  # torch.compile
        if inner is None and type(model).__name__ in ("DataParallel", "DistributedDataParallel"):
            inner = model.module
        if inner is None:
            break
        model = inner
    return model


def _refuse_adapter(path: Path, model: Any) -> None:
    """A layer with an adapter multiplies by more than its weight."""
    kinds = (type(module) for module in model.modules())
    if hasattr(model, "peft_config") or any(
        kind.__module__.startswith("peft.tuners.") for kind in kinds
    ):
        raise UncorkError(
            f"{path} has a PEFT adapter that is not merged: call merge_and_unload() first and give "
            "the model it returns, or give the adapter's folder and base="
        )


def _tensor(path: Path, name: str, value: Any) -> Tensor:
    try:
        shape = getattr(value, "shape", None)
    except RuntimeError as error:
        raise UncorkError(f"{path}: {name} has no values yet: {error}") from error
    if shape is None:  # extra state that a module keeps beside its tensors
        return Tensor(name, (), type(value).__name__, functools.partial(_refuse, path, name, value))
    kind = str(value.dtype).removeprefix("torch.")
    own = _own_dequantize(value)
    folded = () if own is None else (f"dequantised by {own.__name__}.dequantize()",)
    read = functools.partial(_array, path, name, value)
    return Tensor(name, tuple(shape), kind, read, folded=folded)


def _own_dequantize(value: Any) -> type | None:
    """The class of a tensor that holds codes and knows how to dequantise them, as torchao's do."""
    import torch

    own = type(value).__mro__[: type(value).__mro__.index(torch.Tensor)]
    return own[0] if any("dequantize" in vars(one) for one in own) else None


def _refuse(path: Path, name: str, value: Any) -> np.ndarray:
    raise UncorkError(f"{path}: {name} is no tensor but a {type(value).__name__}")


def _array(path: Path, name: str, value: Any) -> np.ndarray:
    """The tensor's own memory as an array, or a copy of it from a GPU."""
    import torch

    if value.is_meta:
        raise UncorkError(
            f"{path}: {name} has no values yet (it is on the meta device): load the weights first"
        )
    if hasattr(value, "full_tensor"):  # spread over several devices
        value = value.full_tensor()
    value = value.detach()
    if _own_dequantize(value) is not None:
        value = value.dequantize()
    if value.layout != torch.strided or value.is_quantized:
        raise UncorkError(f"{path}: {name} is sparse or quantised: make it dense first")
    value = value.cpu()
    kind = str(value.dtype).removeprefix("torch.")
    if kind in _BITS:
        bits, dtype = _BITS[kind]
        return value.contiguous().view(getattr(torch, bits)).numpy().view(dtype)
    try:
        found: np.ndarray = value.numpy()
    except (TypeError, RuntimeError) as error:
        raise UncorkError(
            f"{path}: {name} is of type {kind}, which cannot be read: {error}"
        ) from error
    return found


def _configuration(model: Any) -> dict[str, Any] | None:
    """The configuration of a transformers model, as its config.json would have it."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "to_dict") or not getattr(config, "model_type", None):
        return None
    found = dict(config.to_dict())
    found["architectures"] = [type(model).__name__]  # the class at hand, not the one once saved
    return found


def _check_output_layer(
    path: Path, model: Any, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
) -> None:
    """The configuration speaks of the layer as it was made: one put in its place may be another."""
    getter = getattr(model, "get_output_embeddings", None)
    if not callable(getter) or config.get("uncork_head") is not None:
        return
    try:
        found = getter()
    except (AttributeError, NotImplementedError):
        return
    for name, module in model.named_modules():
        if found is not None and module is found and f"{name}.weight" not in tensors:
            raise UncorkError(
                f"{path}: its output layer {name} is a {type(module).__name__}, which keeps no "
                "weight but computes it: put a plain torch.nn.Linear in its place"
                + _made_plain(module)
            )


def _made_plain(module: Any) -> str:
    return " (its to_linear() makes one)" if hasattr(module, "to_linear") else ""


def _timm(model: Any) -> Mapping[str, Any]:
    found = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    return found if isinstance(found, Mapping) else {}


def _labels(config: Mapping[str, Any], classes: int) -> Vocabulary:
    """Class names that the configuration carries, where they are more than numbers."""
    names = config.get("label_names")
    if isinstance(names, list | tuple) and len(names) == classes:
        return Vocabulary(tuple(map(str, names)), "label_names of the model")
    table = config.get("id2label")
    if not isinstance(table, Mapping) or len(table) != classes:
        return Vocabulary()
    by_id = {str(key): str(label) for key, label in table.items()}
    labels = tuple(by_id.get(str(k), "") for k in range(classes))
    if not all(labels) or all(label == f"LABEL_{k}" for k, label in enumerate(labels)):
        return Vocabulary()
    return Vocabulary(labels, "config.id2label")


class _Plain:
    """A module that is no transformers model."""

    def __init__(self, path: Path, model: Any, tensors: Mapping[str, Tensor]) -> None:
        self.path, self.model, self.tensors = path, model, tensors

    def choose(self) -> Choice:
        name, why = self._head()
        weight = f"{name}.weight" if name else "weight"
        tensor = self.tensors[weight]
        bias_name = f"{weight.removesuffix('weight')}bias"
        bias = self.tensors[bias_name].read() if bias_name in self.tensors else None
        return Choice(
            as_matrix(self.path, tensor), bias, weight, None if bias is None else bias_name, why,
            self._following(name),
        )  # fmt: skip

    def _following(self, name: str) -> tuple[str, ...]:
        """What is to be said of the layers after the head in its `nn.Sequential`."""
        for steps in _sequences(self.model, ""):
            at = next((k for k, (inner, _) in enumerate(steps) if inner == name), len(steps))
            if any(type(module).__name__ in _SIGMOIDS for _, module in steps[at + 1 :]):
                return (sigmoids(name or "it"),)
        return ()

    def around(self, name: str) -> Choice | None:
        module = self._layer(name.removesuffix(".weight")) if name.endswith("weight") else None
        if module is None or self.tensors[name].matrix_shape is None:
            return None
        bias = f"{name.removesuffix('weight')}bias"
        found = self.tensors[bias].read() if bias in self.tensors else None
        return Choice(
            as_matrix(self.path, self.tensors[name]), found, name,
            None if found is None else bias, f"the weight of a {type(module).__name__}",
            self._following(name.removesuffix("weight").removesuffix(".")),
        )  # fmt: skip

    def domain(self, choice: Choice) -> FoundDomain | None:
        """What precedes the head in its `nn.Sequential`; elsewhere the order is not known."""
        name = choice.weight_name.removesuffix("weight").removesuffix(".")
        for steps in _sequences(self.model, ""):
            at = next((k for k, (inner, _) in enumerate(steps) if inner == name), 0)
            for inner, module in reversed(steps[:at]):
                if type(module).__name__ not in _PASSING:
                    return _range(inner, module, choice.weight.shape[1], self.tensors)
        return None

    def _head(self) -> tuple[str, str]:
        """The head's name and why it is the head, or an error that lists what could be."""
        said = _timm(self.model).get("classifier")
        if isinstance(said, list | tuple) and len(said) > 1:
            raise AmbiguousError(
                f"{self.path} has {len(said)} classifiers: name one with weight=: "
                + ", ".join(f"{name}.weight" for name in said)
            )
        if isinstance(said, str) and self._layer(said) is not None:
            return said, "named by the model's pretrained_cfg"
        getter = getattr(self.model, "get_output_embeddings", None)
        found = getter() if callable(getter) else None
        for name, module in self.model.named_modules():
            if found is not None and module is found and self._layer(name) is not None:
                return name, "named by the model's get_output_embeddings()"
        if (last := _last_linear(self.model)) is not None:
            if self._layer(last) is None and f"{last}.weight".lstrip(".") not in self.tensors:
                self._refuse_computed(last)
            return last, "the last layer of the module's nn.Sequential"
        layers = [name for name, _ in self.model.named_modules() if self._layer(name) is not None]
        others = list(self._other_layers())
        if len(layers) == 1 and not others:
            return layers[0], "the only linear layer"
        if type(self.model).__module__.startswith("torchvision.models"):
            for known in _CLASSIFIERS:
                inner = _named(self.model, known)
                last = None if inner is None else _last_linear(inner, after=None)
                name = known if not last else f"{known}.{last}"
                if last is not None and self._layer(name) is not None:
                    certain = _last_linear(inner) is not None
                    after = "" if certain else "; the layers after it may reorder its classes"
                    return name, f"torchvision's classifier{after}"
        candidates = [self.tensors[f"{name}.weight" if name else "weight"] for name in layers]
        if others and len(candidates) < 2:
            self._refuse_computed(others[-1])
        if not candidates:
            raise AmbiguousError(
                f"{self.path} has no linear layer: name a tensor with weight=: there are "
                f"{listing(self.tensors.values())}"
            )
        candidates.reverse()  # the head is more likely among those registered last
        raise AmbiguousError(
            f"{self.path} has {len(candidates)} linear layers, and a module does not say which "
            f"comes last: name one with weight=: {listing(candidates)}"
        )

    def _other_layers(self) -> Iterator[str]:
        """Modules that may be a head too, though no plain layer: what they compute is not known."""
        for name, module in self.model.named_modules():
            kind = type(module)
            own = [value for value in module.parameters(recurse=False) if _is_matrix(value)]
            plain = kind.__module__.startswith("torch.nn.modules")
            computed = kind.__name__ in _LINEAR and f"{name}.weight".lstrip(".") not in self.tensors
            bilinear = kind.__name__ == "Bilinear"
            if computed or bilinear or (own and not plain and self._layer(name) is None):
                yield name.partition(".parametrizations")[0]

    def _refuse_computed(self, name: str) -> None:
        module = _named(self.model, name)
        raise AmbiguousError(
            f"{self.path}: {name or 'it'} is a {type(module).__name__}, which may be its head and "
            f"is no plain torch.nn.Linear: put one in its place{_made_plain(module)}, or name the "
            f"head's tensor with weight=: there are {listing(self.tensors.values())}"
        )

    def _layer(self, name: str) -> Any | None:
        module = _named(self.model, name)
        weight = self.tensors.get(f"{name}.weight" if name else "weight")
        linear = type(module).__name__ in _LINEAR
        return module if linear and weight is not None and weight.matrix_shape else None


def _is_matrix(value: Any) -> bool:
    return len(value.shape) == 2 and min(value.shape) > 1


def _named(model: Any, name: str) -> Any | None:
    return dict(model.named_modules()).get(name)


def _is_sequential(module: Any) -> bool:
    import torch

    return (
        isinstance(module, torch.nn.Sequential)
        and type(module).forward is torch.nn.Sequential.forward
    )


def _sequences(module: Any, name: str) -> Iterator[list[tuple[str, Any]]]:
    """The layers of each outermost nn.Sequential in the order they run, with their names.

    Between the children of any other module the order is not certain.
    """
    if _is_sequential(module):
        yield list(_flat(module, name))
        return
    for inner, child in module.named_children():
        yield from _sequences(child, f"{name}.{inner}" if name else inner)


def _flat(module: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not _is_sequential(module):
        yield name, module
        return
    for inner, child in module.named_children():
        yield from _flat(child, f"{name}.{inner}" if name else inner)


def _last_linear(module: Any, after: tuple[str, ...] | None = _FOLLOWING) -> str | None:
    """The last layer of an nn.Sequential (or the layer itself), if only `after` comes after it."""
    for name, child in reversed(list(_flat(module, ""))):
        if type(child).__name__ in _LINEAR:
            return name
        if after is not None and type(child).__name__ not in after:
            return None
    return None


def _range(
    name: str, module: Any, features: int, tensors: Mapping[str, Tensor]
) -> FoundDomain | None:
    kind = type(module).__name__
    if kind in _ACTIVATIONS or kind == "GELU":
        exact = "gelu" if getattr(module, "approximate", "none") == "none" else "gelu_new"
        low, high = RANGES[_ACTIVATIONS.get(kind, exact)]
        return FoundDomain(Box(low, high), f"{kind} {name} precedes the head")
    if kind not in ("LayerNorm", "RMSNorm") or not type(module).__module__.startswith("torch.nn"):
        return None
    if tuple(module.normalized_shape) != (features,):
        return None
    gain, offset = (tensors.get(f"{name}.{part}") for part in ("weight", "bias"))
    values = [None if one is None else one.read().astype(np.float64) for one in (gain, offset)]
    why = f"{kind} {name} precedes the head"
    if kind == "LayerNorm":
        return FoundDomain(LayerNorm(values[0], values[1], features=features), why)
    return FoundDomain(RMSNorm(values[0], features=features), why)
