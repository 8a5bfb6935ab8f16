"""Another head in a model, in one line: `replace`; and back from disk: `load_pretrained`.

uncork.nn.heads.replace(model, "mos", components=10)       # a causal model of transformers
model(input_ids, labels=labels).loss                       # the head's own loss
model.save_pretrained(folder)
model = uncork.nn.heads.load_pretrained(folder)            # with the head it was saved with

uncork.nn.heads.replace(network, "mos", name="decoder")    # any module: a Linear of its own
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from uncork.errors import UncorkError
from uncork.nn import patch
from uncork.nn._torch import torch
from uncork.nn.heads.argmaxable import ArgmaxableHead
from uncork.nn.heads.base import OutputHead
from uncork.nn.heads.registry import describe, make

Tensor = torch.Tensor
_SETTING = "uncork_head"  # where a model's configuration names its head


def replace(
    model: Any,
    head: OutputHead | str,
    *,
    name: str | None = None,
    keep_weight: bool = True,
    tie: bool | None = None,
    unknown_model: bool = False,
    **options: Any,
) -> Any:
    """Put another head in a model; returns the model.

    A causal language model of transformers then computes the head's own loss from `labels`, without
    the logits (`.logits` is None where there are labels), gives scores as `.logits` where there are
    none, generates, and is saved and loaded with its head. Any other module has the Linear called
    `name` replaced: calling it gives scores, and its `loss` takes what it takes.

    Args:
        model: a causal language model (those `uncork.nn.patch.KNOWN`), or with `name` any module.
        head: a name from `HEADS`, or a head already made.
        name: the Linear to replace, as `named_modules` calls it.
        keep_weight: start from the old layer's weight, and its bias where both have one.
        tie: share the input embedding, as the model's configuration says unless given.
        unknown_model: take any model whose logits are its output layer applied to its last hidden
            states.
        options: go to the head: components, alpha, bias (as the old layer has it unless given) …
    """
    if name is not None:
        old = _linear(model.get_submodule(name), name)
        made = _made(old, head, options)
        _start(made, old, keep_weight, head)
        _set(model, name, made)
        return model
    _check_model(model, unknown_model)
    old = _linear(model.get_output_embeddings(), "the output layer")
    made = _made(old, head, options)
    shared = model.get_input_embeddings().weight
    able = not isinstance(made, ArgmaxableHead) and made.weight.shape == shared.shape
    wanted = bool(getattr(model.config, "tie_word_embeddings", False)) if tie is None else tie
    if tie and not able:
        raise UncorkError(
            f"a {made.name} head of {made.classes} × {made.embedding} cannot share the input "
            f"embedding {tuple(shared.shape)}: give tie=False"
        )
    _start(made, old, keep_weight and not (wanted and able), head)
    _install(model, made, wanted and able)
    return model


def load_pretrained(path: str | Path, **options: Any) -> Any:
    """A causal language model that was saved with a head of ours, as `from_pretrained` loads it.

    Only safetensors are read, and no code that comes with a model is run. `options` go to
    transformers' `from_pretrained`: dtype, device_map, revision …
    """
    transformers = _transformers()
    for refused in ("trust_remote_code", "use_safetensors", "config"):
        if options.pop(refused, None):
            raise UncorkError(f"load_pretrained does not take {refused}")
    revision = {key: options[key] for key in ("revision", "token") if key in options}
    config = transformers.AutoConfig.from_pretrained(path, **revision)
    described = getattr(config, _SETTING, None)
    if described is None:
        raise UncorkError(f"{path}: its config.json names no head of uncork ({_SETTING!r})")
    _check_size(path, described)
    try:
        kind = transformers.AutoModelForCausalLM._model_mapping[type(config)]
    except KeyError:
        raise UncorkError(f"{path}: {type(config).__name__} is no causal language model") from None
    model, info = _with_head(kind).from_pretrained(
        path, config=config, use_safetensors=True, output_loading_info=True, **options
    )
    lost = sorted([*info["missing_keys"], *info["unexpected_keys"]])
    if lost:
        raise UncorkError(f"{path}: weights and head do not go together: {', '.join(lost[:5])}")
    return model


def _transformers() -> Any:
    try:
        import transformers
    except ModuleNotFoundError:
        raise UncorkError("load_pretrained needs transformers: pip install transformers") from None
    return transformers


def _check_size(path: str | Path, described: Any) -> None:
    """A configuration must not ask for more than the files beside it can hold."""
    with torch.device("meta"):
        head = make(described)
    asked = sum(parameter.numel() for parameter in head.parameters())
    files = list(Path(path).glob("*.safetensors")) if Path(path).is_dir() else []
    if files and asked > 2 * sum(file.stat().st_size for file in files):
        raise UncorkError(
            f"{path}: config.json asks for a head of {asked} numbers, more than its files hold"
        )


def _check_model(model: Any, unknown_model: bool) -> None:
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "get_output_embeddings"):
        raise UncorkError(
            f"{type(model).__name__} is no model of transformers: give the name of a Linear to "
            "replace"
        )
    kind = getattr(config, "model_type", None)
    if kind not in patch.KNOWN and not unknown_model:
        raise UncorkError(
            f"model type {kind!r} is none of {', '.join(patch.KNOWN)}: what it does with its "
            "logits is not known here. Pass unknown_model=True if they are the output layer's alone"
        )
    if patch._softcap(config) is not None:
        raise UncorkError(
            f"{kind} soft-caps its logits (final_logit_softcapping), which another head's scores "
            "are not: set it to None in the configuration first"
        )
    if getattr(config, "output_router_logits", False):
        raise UncorkError("a router's auxiliary loss is not supported: output_router_logits=True")


def _linear(layer: Any, what: str) -> Any:
    if not isinstance(layer, torch.nn.Linear | OutputHead):
        raise UncorkError(f"{what} must be a torch.nn.Linear, got {type(layer).__name__}")
    return layer


def _made(old: Any, head: OutputHead | str, options: dict[str, Any]) -> OutputHead:
    """The new head, of the old layer's size, device and type."""
    classes = old.weight.shape[0]
    features = old.features if isinstance(old, OutputHead) else old.weight.shape[1]
    if isinstance(head, OutputHead):
        if options:
            raise UncorkError(f"a head that is made takes no options: {', '.join(options)}")
        if (head.features, head.classes) != (features, classes):
            raise UncorkError(
                f"the head is {head.classes} × {head.features}, the layer it replaces "
                f"{classes} × {features}"
            )
        return head
    described = {"name": head, "features": features, "classes": classes, **options}
    if head != "argmaxable":
        described.setdefault("bias", old.bias is not None)
    return make(described, device=old.weight.device, dtype=old.weight.dtype).train(old.training)


def _start(made: OutputHead, old: Any, keep_weight: bool, head: OutputHead | str) -> None:
    if keep_weight and isinstance(head, str) and old.weight.device.type != "meta":
        made.start_from(old.weight, old.bias)


def _set(model: Any, name: str, head: torch.nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, head)


def _install(model: Any, head: OutputHead, tied: bool) -> None:
    model.set_output_embeddings(head)
    setattr(model.config, _SETTING, describe(head))
    model.config.tie_word_embeddings = tied
    if tied:
        head.tie(model.get_input_embeddings().weight)
    model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)
    kind: Any = type(model)
    model.__class__ = _with_head(kind)


@functools.cache
def _with_head(kind: Any) -> Any:
    """The class of a model with its forward changed, and a head that follows its configuration."""
    if getattr(kind, "_uncork_head", False):
        return kind
    signature = inspect.signature(kind.forward)

    class WithHead(kind):
        _uncork_head = True

        def __init__(self, config: Any, *arguments: Any, **keywords: Any) -> None:
            super().__init__(config, *arguments, **keywords)
            described = getattr(config, _SETTING, None)
            if described is not None:
                tied = bool(getattr(config, "tie_word_embeddings", False))
                weight = self.get_output_embeddings().weight
                head = make(described, device=weight.device, dtype=weight.dtype)
                _install(self, head, tied and not isinstance(head, ArgmaxableHead))

        @functools.wraps(kind.forward)  # with its signature, by which generate and Trainer choose
        def forward(self, *arguments: Any, **keywords: Any) -> Any:
            given = patch._named(signature, (self, *arguments), keywords)
            del given["self"]
            return _forward(self, given)

    WithHead.__name__, WithHead.__qualname__ = kind.__name__, kind.__qualname__
    WithHead.__module__ = kind.__module__
    return WithHead


def _forward(model: Any, given: dict[str, Any]) -> Any:
    head = model.get_output_embeddings()
    if not isinstance(head, OutputHead):
        raise UncorkError(
            f"the model's head has become a {type(head).__name__}: call replace again (resize a "
            "vocabulary before you replace its head)"
        )
    skipped = (*patch._OF_THE_LOSS, *patch._OF_THE_OUTPUT)
    rest = {key: value for key, value in given.items() if key not in skipped}
    outputs = getattr(model, model.base_model_prefix)(**rest)
    hidden = outputs.last_hidden_state  # (batch, length, features)
    scale = patch._scale(model)
    if scale != 1:
        hidden = hidden * scale
    if given.get("labels") is None and given.get("shift_labels") is None:
        keep = given.get("logits_to_keep", 0)
        kept = hidden[:, slice(-keep, None) if isinstance(keep, int) else keep]
        result = _output(outputs, None, head(kept))
    else:
        result = _output(outputs, _loss(head.loss, hidden, given), None)
    return result.to_tuple() if given.get("return_dict") is False else result


def _loss(loss: Callable[..., Tensor], hidden: Tensor, given: dict[str, Any]) -> Tensor:
    ignore_index = given.get("ignore_index", -100)
    shifted: Any = given.get("shift_labels")
    if shifted is None:
        padded = torch.nn.functional.pad(given["labels"], (0, 1), value=ignore_index)
        shifted = padded[..., 1:]
    count = given.get("num_items_in_batch")
    value = loss(
        hidden, shifted.to(hidden.device), ignore_index=ignore_index,
        reduction="mean" if count is None else "sum",
    )  # fmt: skip
    if count is not None:  # gradient accumulation: all devices' tokens of all micro-batches
        value = value / (count.to(value.device) if isinstance(count, Tensor) else count)
    return value


def _output(outputs: Any, loss: Any, logits: Any) -> Any:
    made = patch._output(outputs, loss)
    made["logits"] = logits
    return made
