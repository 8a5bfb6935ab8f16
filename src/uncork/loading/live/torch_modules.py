"""Live torch models: transformers models as their folder would be read, timm, torchvision, plain.

Nothing is copied, except from a GPU, and then only what is asked for. A module does not say in
which order its layers run, so that the head of a plain one is taken only where that is certain:
where the model names it, or where it is an `nn.Sequential`, whose order is its forward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.arriving.activation_ranges import known_type, unit
from uncork.loading.arriving.known import Known, Stopped, found_by
from uncork.loading.codes.decoded import decoded
from uncork.loading.contents import (
    AmbiguousError,
    Choice,
    Contents,
    FoundDomain,
    Tensor,
    UnknownDomain,
    Vocabulary,
    as_matrix,
    listing,
)
from uncork.loading.decisions import sigmoids
from uncork.loading.hugging_face.architectures import Activation
from uncork.loading.hugging_face.configured import configured
from uncork.loading.hugging_face.locate import locate
from uncork.loading.live.library_code import changed, hooked_everywhere, is_compiled, is_own_class
from uncork.loading.live.torch_layers import known_after

_KIND = "torch module"
# Types that NumPy lacks: read bit for bit as integers, and named again.
_BITS: dict[str, tuple[str, Any]] = {
    "bfloat16": ("int16", ml_dtypes.bfloat16),
    "float8_e4m3fn": ("uint8", ml_dtypes.float8_e4m3fn),
    "float8_e5m2": ("uint8", ml_dtypes.float8_e5m2),
}
# Where torchvision's models keep their classifiers: the last of these that is a layer.
_CLASSIFIERS = ("fc", "classifier", "heads.head", "head", "heads", "head.fc", "last_linear")
# What may follow the head number by number: it rises, so that the first class stays first.
_RISING = ("Sigmoid", "Tanh", "LogSigmoid", "Softsign", "Identity")
_SIGMOIDS = ("Sigmoid", "LogSigmoid")
_OFF = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout")
# Of torch's own linear classes: how far from the end of its output's axes the classes are.
_LINEAR = {"Linear": 1, "NonDynamicallyQuantizableLinear": 1, "Conv1d": 2, "Conv2d": 3, "Conv3d": 4}
# Models of torchvision whose forward ends in a call of this nn.Sequential.
_ENDS = {
    ("torchvision.models.alexnet", "AlexNet"): "classifier",
    ("torchvision.models.vgg", "VGG"): "classifier",
    ("torchvision.models.mobilenetv3", "MobileNetV3"): "classifier",
}


def read_module(model: Any) -> Contents:
    """The tensors of a live module, and the head among them as the model itself names it."""
    model, outer = _unwrapped(model)
    path = Path(f"<{type(model).__name__}>")
    _refuse_adapter(path, model)
    stored = {name: _tensor(path, name, value) for name, value in model.state_dict().items()}
    if not stored:
        raise UncorkError(f"{path} has no parameters")
    config = _configuration(model)
    tensors = decoded(path, stored, config, of_a_model=True)
    if config is not None:
        _check_output_layer(path, model, tensors, config)
        contents = configured(path, _KIND, config, tensors, functools.partial(_labels, config))
        return replace(contents, domain=functools.partial(_believed, model, outer, contents))
    plain = _Plain(path, model, outer, tensors)
    return Contents(
        path, _KIND, tensors, plain.choose, plain.around,
        functools.partial(_labels, _timm(model)), plain.domain,
    )  # fmt: skip


def _unwrapped(model: Any) -> tuple[Any, list[Any]]:
    """The model inside what training puts around it, and that, outermost first."""
    outer: list[Any] = []
    while len(outer) < 8:
        inner = getattr(model, "_orig_mod", None)  # torch.compile
        if inner is None and type(model).__name__ in ("DataParallel", "DistributedDataParallel"):
            inner = model.module
        if inner is None:
            break
        outer.append(model)
        model = inner
    return model, outer


def _believed(
    model: Any, outer: Sequence[Any], contents: Contents, choice: Choice
) -> FoundDomain | UnknownDomain | None:
    """What the table says of a transformers model, if its modules still do what they did there."""
    found = contents.domain(choice)
    if not isinstance(found, FoundDomain):
        return found
    try:
        assumed = _outside(outer)
        for name, module in _on_the_way(model, contents.tensors):
            if (reason := changed(module)) is not None:
                raise Stopped(f"{_called(module, name)}: {reason}")
            if type(module).__name__ in _OFF and module.training and module.p:
                raise Stopped(f"{_called(module, name)} is in training mode: call eval() first")
    except Stopped as stopped:
        return UnknownDomain(str(stopped))
    return replace(found, assumed="; ".join(filter(None, (found.assumed, *assumed))))


def _on_the_way(model: Any, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Any]]:
    """The modules that can change what arrives at the head of a transformers model.

    These are the head, what precedes it, all modules around the two, whose forward calls them, and
    what those hold beside them. Whatever came before is bounded by the norm or activation.
    """
    import torch

    located = locate(_configuration(model) or {}, tensors)
    names = {} if located is None else dict.fromkeys(
        name.rpartition(".")[0]
        for name in (located.weight, located.gain, located.offset, located.project)
        if name is not None
    )  # fmt: skip
    if located is not None and isinstance(located.before, Activation):
        names[located.before.of] = None
    getter = getattr(model, "get_output_embeddings", None)
    head = getter() if callable(getter) else None
    names |= {name: None for name, module in model.named_modules() if module is head}
    inner = [name.split(".")[:k] for name in names for k in range(len(name.split(".")) + 1)]
    around = {".".join(parts): None for parts in [[], *inner]}
    for name in around:
        module = _named(model, name)
        if module is None:
            continue
        yield name, module
        for child, value in module.named_children():
            if type(value) is not torch.nn.ModuleList and not isinstance(
                module, torch.nn.ModuleList
            ):
                yield f"{name}.{child}".lstrip("."), value


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
    raise UncorkError(f"{path}: {name} is not a tensor but a {type(value).__name__}")


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
    """A module that is not a transformers model."""

    def __init__(self, path: Path, model: Any, outer: Any, tensors: Mapping[str, Tensor]) -> None:
        self.path, self.model, self.outer, self.tensors = path, model, outer, tensors

    def choose(self) -> Choice:
        name, why, doubts = self._head()
        weight = f"{name}.weight" if name else "weight"
        return self._choice(weight, why, doubts)

    def around(self, name: str) -> Choice | None:
        module = self._layer(name.removesuffix(".weight")) if name.endswith("weight") else None
        if module is None or self.tensors[name].matrix_shape is None:
            return None
        layer = name.removesuffix("weight").removesuffix(".")
        doubts = [*self._changes(layer), *self._after(layer)]
        return self._choice(name, f"the weight of a {type(module).__name__}", doubts)

    def _choice(self, weight: str, why: str, doubts: Sequence[str]) -> Choice:
        bias = f"{weight.removesuffix('weight')}bias"
        values = self.tensors[bias].read() if bias in self.tensors else None
        return Choice(
            as_matrix(self.path, self.tensors[weight]), values, weight,
            None if values is None else bias, why,
            self._sigmoids(weight.removesuffix('weight').removesuffix('.')), doubts=tuple(doubts),
        )  # fmt: skip

    def _sigmoids(self, name: str) -> tuple[str, ...]:
        """The note on a sigmoid that follows the head in its nn.Sequential."""
        for prefix, module in self.model.named_modules():
            steps = _flat(module, prefix) if _is_sequential(module) else []
            at = next((k for k, (inner, _) in enumerate(steps) if inner == name), len(steps))
            if any(type(after).__name__ in _SIGMOIDS for _, after in steps[at + 1 :]):
                return (sigmoids(name or "it"),)
        return ()

    def domain(self, choice: Choice) -> FoundDomain | UnknownDomain:
        """What the layers before the head in its `nn.Sequential` leave, by their classes."""
        return found_by(lambda: self._before(choice))

    def _before(self, choice: Choice) -> Known:
        name = choice.weight_name.removesuffix("weight").removesuffix(".")
        sequence, prefix, assumed = self._sequence()
        steps = _flat(sequence, prefix)
        head = self._layer(name)
        places = [k for k, (inner, _) in enumerate(steps) if inner == name]
        uses = [inner for inner, module in steps if module is head]
        if head is None or not places:
            raise Stopped(
                f"{name or 'the head'} is not one of torch's own layers in the nn.Sequential"
            )
        if len(uses) > 1 and uses[-1] != name:
            raise Stopped(f"{name} runs {len(uses)} times, and what arrives differs")
        if (reason := changed(head)) is not None:
            raise Stopped(f"the head {name}: {reason}")
        known = known_after(steps[: places[-1]], self._float_type())
        known = replace(known, assumed=(*known.assumed, *assumed))
        if _LINEAR[type(head).__name__] == 1:
            return known
        # A convolution sums over the axis in front of its places, and may put zeros around them.
        padded = not isinstance(head.padding, str) and any(head.padding)
        what = f"{type(head).__name__} {name}"
        return known.with_zero(what) if padded else known.rearranged(what)

    def _sequence(self) -> tuple[Any, str, tuple[str, ...]]:
        """The nn.Sequential whose layers run one after the other and end the model, its name, and
        what is taken for granted for that."""
        assumed = _outside(self.outer)
        kind = type(self.model)
        if self._layer("") is not None:
            raise Stopped("the model is the head alone")
        name = "" if _is_sequential(self.model) else None
        if is_own_class(kind) and (kind.__module__, kind.__qualname__) in _ENDS:
            name = _ENDS[kind.__module__, kind.__qualname__]
        if name is None:
            raise Stopped(
                f"{kind.__name__} has a forward of its own, which does not say what runs before "
                "the head"
            )
        sequence = _named(self.model, name)
        for inner, module in [("", self.model), *_sequences(name, sequence)]:
            if (reason := changed(module)) is not None:
                raise Stopped(f"{_called(module, inner)}: {reason}")
        return sequence, name, assumed

    def _float_type(self) -> str:
        """The coarsest type of the model's own numbers: what its layers hand on may be in it."""
        kinds = {tensor.dtype for tensor in self.tensors.values()}
        floats = [kind for kind in kinds if kind.startswith(("float", "bfloat"))]
        unknown = [kind for kind in floats if not known_type(kind)]
        return unknown[0] if unknown else max(floats, key=unit, default="float32")

    def _changes(self, name: str) -> list[str]:
        """What keeps the head from computing what its weight and bias say."""
        around = [
            (inner, module)
            for inner, module in _sequences("", self.model)
            if name == inner or name.startswith(f"{inner}." if inner else "")
        ]
        return [
            f"{_called(module, inner)}: {reason}: verdicts are about the head's weight and bias"
            for inner, module in [*around, (name, _named(self.model, name))]
            if (reason := changed(module)) is not None
        ]

    def _after(self, name: str) -> list[str]:
        """What may follow the head and put another class first, where its nn.Sequential ends."""
        steps = _flat(self.model, "")
        if not _is_sequential(self.model) or _last_linear(steps) != name:
            return []
        return list(_reordering(steps, name))

    def _unseen(self, name: str) -> list[str]:
        """The doubt about a module whose forward nobody reads."""
        if name == "" or changed(self.model) is None:  # the layer alone, or a library's model
            return []
        return [
            f"what {type(self.model).__name__} does with the scores of {name} is not seen: its "
            "forward may change their order"
        ]

    def _head(self) -> tuple[str, str, list[str]]:
        """The head's name, why it is the head, and doubts; or an error that lists what could be."""
        name, why = self._named_head()
        if _is_sequential(self.model):
            return name, why, [*self._changes(name), *self._after(name)]
        return name, why, [*self._changes(name), *self._unseen(name), *self._torchvision(name)]

    def _torchvision(self, name: str) -> list[str]:
        """What follows the head inside torchvision's classifier."""
        for known in _CLASSIFIERS:
            inner = _named(self.model, known)
            if "torchvision" in type(self.model).__module__ and _is_sequential(inner):
                steps = _flat(inner, known)
                if _last_linear(steps) == name:
                    return list(_reordering(steps, name))
        return []

    def _named_head(self) -> tuple[str, str]:
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
        steps = _flat(self.model, "")
        last = _last_linear(steps)
        if last is not None and not _unordered(steps, last):
            if not self._is_plain(_named(self.model, last)) or self._lacks_weight(last):
                self._refuse_computed(last)
            return last, "the last layer of the module's nn.Sequential"
        layers = [name for name, _ in self.model.named_modules() if self._layer(name) is not None]
        others = list(self._other_layers())
        if len(layers) == 1 and not others:
            return layers[0], "the only linear layer"
        if type(self.model).__module__.startswith("torchvision.models"):
            for known in _CLASSIFIERS:
                inner = _named(self.model, known)
                steps = [] if inner is None else _flat(inner, known)
                last = _last_linear(steps)
                if last is not None and self._layer(last) is not None:
                    certain = not _unordered(steps, last)
                    after = "" if certain else "; the layers after it may reorder its classes"
                    return last, f"torchvision's classifier{after}"
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
            computed = kind.__name__ in _LINEAR and self._lacks_weight(name)
            bilinear = kind.__name__ == "Bilinear"
            if computed or bilinear or (own and not plain and self._layer(name) is None):
                yield name.partition(".parametrizations")[0]

    def _refuse_computed(self, name: str) -> None:
        module = _named(self.model, name)
        raise AmbiguousError(
            f"{self.path}: {name or 'it'} is a {type(module).__name__}, which may be its head and "
            f"is not a plain torch.nn.Linear: put one in its place{_made_plain(module)}, or name "
            f"the head's tensor with weight=: there are {listing(self.tensors.values())}"
        )

    def _layer(self, name: str) -> Any | None:
        module = _named(self.model, name)
        if not self._is_plain(module) or self._lacks_weight(name):
            return None
        weight = self.tensors[f"{name}.weight" if name else "weight"]
        return module if weight.matrix_shape else None

    def _is_plain(self, module: Any) -> bool:
        """Whether this is one of torch's own linear layers, and every class sees all features."""
        kind = type(module)
        own = kind.__module__.startswith("torch.nn.modules.") and is_own_class(kind)
        return own and kind.__name__ in _LINEAR and getattr(module, "groups", 1) == 1

    def _lacks_weight(self, name: str) -> bool:
        return f"{name}.weight".lstrip(".") not in self.tensors


def _outside(outer: Sequence[Any]) -> tuple[str, ...]:
    """What is taken for granted of the wrappers around a model."""
    assumed = []
    for wrapper in outer:
        if is_compiled(wrapper):
            assumed.append("torch.compile changes nothing but rounding, and that little")
        elif (reason := changed(wrapper)) is not None:
            raise Stopped(f"{type(wrapper).__name__}: {reason}")
    if (everywhere := hooked_everywhere()) is not None:
        raise Stopped(everywhere)
    return tuple(assumed)


def _sequences(name: str, sequence: Any) -> list[tuple[str, Any]]:
    """A sequence and those inside it, with their names."""
    if not _is_sequential(sequence):
        return []
    found = [(name, sequence)]
    for inner, child in sequence._modules.items():
        found += _sequences(f"{name}.{inner}" if name else inner, child)
    return found


def _called(module: Any, name: str) -> str:
    return f"{type(module).__name__} {name}".strip()


def _is_matrix(value: Any) -> bool:
    return len(value.shape) == 2 and min(value.shape) > 1


def _named(model: Any, name: str) -> Any | None:
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


def _is_sequential(module: Any) -> bool:
    import torch

    return type(module) is torch.nn.Sequential and "forward" not in vars(module)


def _flat(module: Any, name: str) -> list[tuple[str, Any]]:
    """The layers of an nn.Sequential in the order they run, with their names, each every time."""
    if not _is_sequential(module):
        return [(name, module)]
    steps = []
    for inner, child in module._modules.items():  # named_children leaves out what comes again
        steps += _flat(child, f"{name}.{inner}" if name else inner)
    return steps


def _last_linear(steps: Sequence[tuple[str, Any]]) -> str | None:
    """The last layer of that kind. What looks like one may be it, and is not passed over."""
    names = [name for name, module in steps if type(module).__name__ in _LINEAR]
    return names[-1] if names else None


def _unordered(steps: Sequence[tuple[str, Any]], head: str) -> bool:
    """Whether something after the head is not known to keep its classes in order."""
    return any("may change" in doubt for doubt in _reordering(steps, head))


def _reordering(steps: Sequence[tuple[str, Any]], head: str) -> Iterator[str]:
    """Doubts about what follows the head, each naming the layer."""
    at = max(k for k, (name, _) in enumerate(steps) if name == head)
    axis = _LINEAR[type(steps[at][1]).__name__]  # of the classes, counted from the end
    axes = _axes(steps[:at]) if axis == 1 else axis + 1  # how many the scores have, if known
    linear, single = True, False  # nothing bent so far; each class has one score left
    for name, module in steps[at + 1 :]:
        kind, what = type(module).__name__, f"{type(module).__name__} {name}"
        if (reason := changed(module)) is not None:
            yield f"{what} follows the head: {reason}; it may change the classes' order"
        elif kind in _OFF and module.training and module.p:
            yield f"{what} follows the head in training mode and drops scores: call eval() first"
        elif kind in _RISING or kind in _OFF:
            linear &= kind == "Identity" or kind in _OFF
        elif kind in ("Softmax", "LogSoftmax"):
            linear = False
            if axes is None and module.dim in (1, None):
                yield (
                    f"{what} follows the head along axis 1: over the classes only if the model is "
                    "given one row an example"
                )
            elif module.dim != -axis and module.dim != (axes or 0) - axis:
                yield f"{what} follows the head along axis {module.dim}, not over the classes"
        elif kind == f"AdaptiveAvgPool{axis - 1}d" and linear:
            sizes = module.output_size
            single = set(sizes if isinstance(sizes, tuple | list) else (sizes,)) == {1}
        elif kind == "Flatten" and (single or axes == 2) and module.start_dim == 1:
            axis, axes = 1, 2
        else:
            yield f"{what} follows the head and may change the order of its classes"


def _axes(steps: Sequence[tuple[str, Any]]) -> int | None:
    """How many axes a value has after these layers, where that is certain."""
    from torch import nn

    for _, module in reversed(steps):
        if type(module) is nn.Flatten:
            return 2 if (module.start_dim, module.end_dim) == (1, -1) else None
        if isinstance(module, nn.Unflatten):
            return None
    return None
