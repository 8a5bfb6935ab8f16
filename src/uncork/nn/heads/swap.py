"""Another head in a model, in one line: `replace`; and back from disk: `load_pretrained`.

uncork.nn.heads.replace(model, "mos", components=10)       # a causal model of transformers
model(input_ids, labels=labels).loss                       # the head's own loss
model.save_pretrained(folder)
model = uncork.nn.heads.load_pretrained(folder)            # with the head it was saved with

uncork.nn.heads.replace(network, "mos", name="decoder")    # any module: a Linear of its own
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from uncork.core.errors import UncorkError
from uncork.nn._torch import torch
from uncork.nn.heads.argmaxable import ArgmaxableHead
from uncork.nn.heads.base import OutputHead
from uncork.nn.heads.loss_head import LossHead, ThresholdHead
from uncork.nn.heads.mixtape import MixtapeHead
from uncork.nn.heads.registry import describe, make
from uncork.nn.transformers import causal_models
from uncork.nn.transformers.model_class import (
    Change,
    change_class,
    changed,
    check_changeable,
)
from uncork.nn.transformers.wrappers import check_unwrapped, in_use

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
        tie: share the input embedding, or with `name` what the Linear shares with another layer,
            its weight and perhaps its bias: as the model does unless given.
        unknown_model: take any model whose logits are its output layer applied to its last hidden
            states.
        options: go to the head: components, alpha, bias (as the old layer has it unless given) …
    """
    if name is not None:
        if not name:
            raise UncorkError("name must be that of a Linear in the model, got ''")
        old = _linear(model.get_submodule(name), name)
        made = _made(old, head, options)
        shared = _is_shared(model, f"{name}.weight", old.weight)
        if tie and not shared:
            raise UncorkError(f"{name} shares its weight with nothing: there is nothing to tie")
        tied = _tied(made, old.weight, shared if tie is None else tie, tie)
        bias_tied = (
            tie is not False
            and made.bias is not None
            and _is_shared(model, f"{name}.bias", old.bias)
            and not isinstance(made, ArgmaxableHead)
        )
        for what, kept in (("weight", tied), ("bias", bias_tied)):
            _check_kept_tied(model, f"{name}.{what}", kept)
        _start(made, old, keep_weight, head)
        _set(model, name, made)
        if tied:
            made.tie(old.weight)
        if bias_tied:
            made.bias = old.bias
        return model
    _check_model(model, unknown_model)
    check_changeable(model, WithHead, "replace the head")
    old = _linear(model.get_output_embeddings(), "the output layer")
    made = _made(old, head, options)
    _check_bias(model, made)
    shared = model.get_input_embeddings().weight
    says = bool(getattr(model.config, "tie_word_embeddings", False))
    tied = _tied(made, shared, says and old.weight is shared if tie is None else tie, tie)
    _start(made, old, keep_weight, head)
    _own_config(model)
    _install(model, made, tied)
    change_class(model, WithHead)
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
        raise UncorkError(
            f"{path}: {type(config).__name__} is not a causal language model"
        ) from None
    model, info = changed(kind, WithHead).from_pretrained(
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
    check_unwrapped(model, "replace the head")
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "get_output_embeddings"):
        raise UncorkError(
            f"{type(model).__name__} is not a model of transformers: give the name of a Linear to "
            "replace"
        )
    causal_models.check_causal(model, unknown_model)
    if causal_models.softcap(config) is not None:
        raise UncorkError(
            f"{config.model_type} soft-caps its logits (final_logit_softcapping), which another "
            "head's scores are not: set it to None in the configuration first"
        )


def _check_bias(model: Any, head: OutputHead) -> None:
    """Scaled hidden states are as good as scaled logits, but for a bias."""
    scale = causal_models.logit_scale(model)
    if scale != 1 and head.bias is not None:
        raise UncorkError(
            f"{model.config.model_type} multiplies its logits by {scale:g}, and a head's hidden "
            "states are multiplied in their stead, which leaves its bias as it is: give a head "
            "without one (bias=False, or how='norm' for an argmaxable one)"
        )


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
        made = head
    else:
        described = {"name": head, "features": features, "classes": classes, **options}
        if head != "argmaxable":
            described.setdefault("bias", old.bias is not None)
        made = make(described, device=old.weight.device, dtype=old.weight.dtype)
        made.train(old.training)
    if (made.features, made.classes) != (features, classes):
        raise UncorkError(
            f"the head is {made.classes} × {made.features}, the layer it replaces "
            f"{classes} × {features}"
        )
    return made


def _tied(made: OutputHead, shared: Any, wanted: bool, tie: bool | None) -> bool:
    """Whether the head shares this weight: where it is wanted, and where it can."""
    able = not isinstance(made, ArgmaxableHead) and made.weight.shape == shared.shape
    if tie and not able:
        raise UncorkError(
            f"the {made.name} head of {made.classes} × {made.embedding} cannot share a weight of "
            f"{tuple(shared.shape)}: give tie=False"
        )
    return wanted and able


def _is_shared(model: Any, name: str, parameter: Any) -> bool:
    """Whether the parameter that is called `name` has another name too."""
    every = model.named_parameters(remove_duplicate=False)
    return any(one is parameter and at != name for at, one in every)


def _check_kept_tied(model: Any, name: str, tied: bool) -> None:
    """transformers ties again what it has on its list, whatever is there by then."""
    listed = getattr(model, "all_tied_weights_keys", None) or {}
    if not tied and name in listed:
        raise UncorkError(
            f"transformers ties {name} to {listed[name]} again whenever it "
            "saves, loads or resizes: give a head that can share it, or load the model with "
            "tie_word_embeddings=False"
        )


def _start(made: OutputHead, old: Any, keep_weight: bool, head: OutputHead | str) -> None:
    if keep_weight and isinstance(head, str) and old.weight.device.type != "meta":
        made.start_from(old.weight, old.bias)


def _set(model: Any, name: str, head: torch.nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, head)


def _own_config(model: Any) -> None:
    """Other models may have been made with the same configuration: this head is not theirs."""
    before, after = model.config, copy.deepcopy(model.config)
    for module in model.modules():
        if getattr(module, "config", None) is before:
            module.config = after


def _install(model: Any, head: OutputHead, tied: bool) -> None:
    model.set_output_embeddings(head)
    setattr(model.config, _SETTING, describe(head))
    model.config.tie_word_embeddings = tied
    if tied:
        head.tie(model.get_input_embeddings().weight)
    model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)


@torch.no_grad()
def resized(head: OutputHead, classes: int) -> OutputHead:
    """The head with so many classes: what belongs to a class goes along, what is new is a mean."""
    if isinstance(head, ArgmaxableHead):
        raise UncorkError("an argmaxable head cannot be resized: replace it in the resized model")
    weight = head.weight
    described = describe(head) | {"classes": classes}
    before = dict(head.named_parameters()) | dict(head.named_buffers())
    if isinstance(head, MixtapeHead):
        stay = head.frequent_classes < classes
        if not bool(stay.any()):
            raise UncorkError(
                f"of {classes} classes none would have gates of its own: replace the head in the "
                "resized model"
            )
        described["frequent"] = head.frequent_classes[stay]
        gates = ("frequent_classes", "gate_weight", "gate_bias")
        before |= {name: before[name][stay] for name in gates}
    if isinstance(head, ThresholdHead):
        described["tau"] = head._new_tau
    made = make(described, device=weight.device, dtype=weight.dtype).train(head.training)
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(before[name].requires_grad)
    for name, tensor in (*made.named_parameters(), *made.named_buffers()):
        old = before[name]
        if tensor.shape == old.shape:
            tensor.copy_(old)
            continue
        shared = min(len(tensor), len(old))
        tensor[:shared] = old[:shared]
        tensor[shared:] = old.float().mean(0).to(old.dtype)
    return made


class WithHead(Change):
    """A model whose head is ours, as its configuration says."""

    in_the_way = (
        "this model's head was replaced, and its loss is that head's, without logits already: "
        'put in the head whose loss you want, as replace(model, "entmax") does'
    )

    def __init__(self, config: Any, *arguments: Any, **keywords: Any) -> None:
        super().__init__(config, *arguments, **keywords)  # type: ignore[call-arg]
        model: Any = self
        described = getattr(config, _SETTING, None)
        if described is not None:
            tied = bool(getattr(config, "tie_word_embeddings", False))
            weight = model.get_output_embeddings().weight
            head = make(described, device=weight.device, dtype=weight.dtype)
            _check_bias(model, head)
            _install(model, head, tied and not isinstance(head, ArgmaxableHead))

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        *arguments: Any,
        **keywords: Any,
    ) -> Any:
        """The head grows, or shrinks, with the vocabulary: new rows are the mean of the old."""
        model: Any = self
        head = model.get_output_embeddings()
        classes = new_num_tokens or model.get_input_embeddings().weight.shape[0]
        if pad_to_multiple_of:
            classes = math.ceil(classes / pad_to_multiple_of) * pad_to_multiple_of
        changes = isinstance(head, OutputHead) and head.classes != classes
        new = resized(head, classes) if changes else None  # refused before anything is changed
        made = super().resize_token_embeddings(  # type: ignore[misc]
            new_num_tokens, pad_to_multiple_of, *arguments, **keywords
        )
        if new is not None:
            _install(model, new, bool(getattr(model.config, "tie_word_embeddings", False)))
        return made

    def _get_resized_lm_head(self, old: Any, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(old, OutputHead):
            return old  # `resize_token_embeddings` sees to it
        return super()._get_resized_lm_head(  # type: ignore[misc]
            old, *arguments, **keywords
        )

    def forward_named(self, given: dict[str, Any], own: Callable[[], Any]) -> Any:
        model: Any = self
        head = in_use(model.get_output_embeddings())
        if not isinstance(head, OutputHead):
            raise UncorkError(
                f"the model's head has become a {type(head).__name__}, none of uncork.nn's: leave "
                "the output layer out of what changes layers, or call replace after that"
            )
        outputs, hidden = causal_models.run_body(model, given)
        scale = causal_models.logit_scale(model)
        if scale != 1:
            hidden = hidden * scale
        if not causal_models.asks_for_loss(given):
            causal_models.warn_of_label_smoother("smooth the labels in a compute_loss of your own")
            # `generate` forbids classes by what it is given, and may forbid all of a support.
            scores = head(hidden, everywhere=True) if isinstance(head, LossHead) else head(hidden)
            return causal_models.answer(model, given, outputs, logits=scores)
        loss = causal_models.next_token_loss(head.loss, hidden, given)
        return causal_models.answer(model, given, outputs, loss=loss)
