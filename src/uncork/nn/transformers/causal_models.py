"""Causal language models of transformers: which are known, and what a call asks of their output.

A model's forward is its body, its output layer, and what is done with the logits: scaled,
soft-capped, kept for some positions, shifted against the labels, reduced to a loss. All but the
output layer and the loss itself is here, so that others can stand in their place.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

from uncork.core.errors import UncorkError
from uncork.nn._torch import torch
from uncork.nn.transformers.model_class import plain_class

Tensor = torch.Tensor

# What their forward does between output layer and loss is known, and held to by the tests.
KNOWN = (
    "cohere", "gemma", "gemma2", "gemma3_text", "gpt2", "granite", "llama", "mistral", "olmo2",
    "phi3", "qwen2", "qwen3",
)  # fmt: skip
# Arguments of a forward that its body is not given.
_OF_THE_LOSS = ("labels", "shift_labels", "num_items_in_batch", "ignore_index")
_OF_THE_OUTPUT = ("logits_to_keep", "return_dict")


# --- Which model ------------------------------------------------------------------------------


def check_causal(model: Any, unknown_model: bool) -> None:
    """Raise unless its logits are known to be its output layer's, or the caller knows it."""
    kind = type(model).__name__
    config = getattr(model, "config", None)
    _check_config(config, kind)
    name = getattr(config, "model_type", None)
    if not unknown_model and name not in KNOWN:
        raise UncorkError(
            f"model type {name!r} is none of {', '.join(KNOWN)}: what it does with its logits is "
            "not known here. Pass unknown_model=True if they are the output layer's, untouched"
        )
    if not unknown_model and not _is_the_known_class(model):
        raise UncorkError(
            f"{kind} does not compute as {name}'s causal language model in transformers does. Pass "
            "unknown_model=True if its logits are the output layer's, untouched, and its loss is "
            "that of the next token alone"
        )
    for needed in ("get_output_embeddings", getattr(model, "base_model_prefix", "") or "model"):
        if getattr(model, needed, None) is None:
            raise UncorkError(f"{kind} has no .{needed}: it is not a causal language model")


def _check_config(config: Any, kind: str) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise UncorkError(
            f"{kind} is an encoder-decoder, not a causal language model: "
            "uncork.nn.hf.trainer_loss(..., shift=False) is for its Trainer"
        )
    if hasattr(config, "get_text_config") and config.get_text_config() is not config:
        raise UncorkError(f"{kind} takes more than text, which is not supported")
    _check_router(config, {})


def _check_router(config: Any, given: dict[str, Any]) -> None:
    asked = given.get("output_router_logits")
    if asked or (asked is None and getattr(config, "output_router_logits", False)):
        raise UncorkError("a router's auxiliary loss is not supported: output_router_logits=True")


def _is_the_known_class(model: Any) -> bool:
    """Whether its forward is the one the tests hold to: no subclass's, no other task's."""
    from transformers import AutoModelForCausalLM

    mapping: Any = AutoModelForCausalLM._model_mapping
    known = mapping.get(type(model.config), None)
    return known is not None and plain_class(type(model)).forward is known.forward


# --- What it does with its logits -------------------------------------------------------------


def softcap(config: Any) -> float | None:
    """c, where logits z become c·tanh(z / c)."""
    cap: float | None = getattr(config, "final_logit_softcapping", None)
    return cap


def logit_scale(model: Any) -> float:
    """What a model multiplies its logits by: as good as its hidden states and its bias."""
    if getattr(model, "logit_scale", None) is not None:  # Cohere
        return float(model.logit_scale)
    return 1 / float(getattr(model.config, "logits_scaling", None) or 1.0)  # Granite


# --- A call, from its arguments by name -------------------------------------------------------


def asks_for_loss(given: dict[str, Any]) -> bool:
    return given.get("labels") is not None or given.get("shift_labels") is not None


def warn_of_label_smoother(instead: str) -> None:
    """Warn where the call comes from a Trainer that smooths labels: it keeps them from the model
    and takes cross entropy of the logits, whatever the model's own loss is."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "compute_loss":
            trainer = frame.f_locals.get("self")
            if getattr(trainer, "label_smoother", None) is not None:
                warnings.warn(
                    "Trainer's label_smoothing_factor keeps the labels from the model and trains "
                    f"with cross entropy of its logits, not with the model's own loss: {instead}, "
                    "and set label_smoothing_factor=0",
                    stacklevel=2,
                )
            return
        frame = frame.f_back


def run_body(model: Any, given: dict[str, Any]) -> tuple[Any, Tensor]:
    """What the body returns, and its last hidden states (batch, length, d): those to be kept."""
    _check_router(model.config, given)
    skipped = (*_OF_THE_LOSS, *_OF_THE_OUTPUT)
    rest = {name: value for name, value in given.items() if name not in skipped}
    if not getattr(model.config, "return_dict", True):
        rest["return_dict"] = True  # its names are needed here, whatever the caller wants
    outputs = getattr(model, model.base_model_prefix)(**rest)
    return outputs, _kept(outputs.last_hidden_state, given.get("logits_to_keep", 0))


def _kept(hidden: Tensor, positions: int | Tensor) -> Tensor:
    """The positions whose logits are asked for, as transformers reads `logits_to_keep`."""
    if not isinstance(positions, Tensor):
        return hidden[:, -positions:] if positions else hidden
    if positions.dim() < 2:
        return hidden[:, positions]
    if positions.dtype == torch.bool:
        return hidden[positions]
    return torch.take_along_dim(hidden, positions[..., None], dim=1)


def next_token_loss(loss: Callable[..., Tensor], hidden: Tensor, given: dict[str, Any]) -> Tensor:
    """`loss(hidden, target, ignore_index=, reduction=)` against the labels, one place on."""
    ignore_index = given.get("ignore_index", -100)
    target: Any = given.get("shift_labels")
    if target is None:
        target = one_place_on(given["labels"], ignore_index)
    count = given.get("num_items_in_batch")
    value = loss(
        hidden, target.to(hidden.device), ignore_index=ignore_index,
        reduction="mean" if count is None else "sum",
    )  # fmt: skip
    return value if count is None else shared_out(value, count)


def one_place_on(labels: Tensor, ignore_index: int) -> Tensor:
    """Labels (..., length) of the next token at every place; the last has none."""
    return torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]


def shared_out(total: Tensor, count: Tensor | int) -> Tensor:
    """A sum of losses over all devices' tokens of all micro-batches, as gradient accumulation
    passes them (num_items_in_batch)."""
    return total / (count.to(total.device) if isinstance(count, Tensor) else count)


def answer(
    model: Any, given: dict[str, Any], outputs: Any, *, loss: Any = None, logits: Any = None
) -> Any:
    """What a causal language model returns, as an object or a tuple."""
    # By name, since torch.compile of torch 2.11 does not follow the package itself, which is lazy.
    from transformers.modeling_outputs import (
        CausalLMOutputWithCrossAttentions,
        CausalLMOutputWithPast,
    )

    kind: Any = CausalLMOutputWithPast
    more: dict[str, Any] = {}
    if hasattr(outputs, "cross_attentions"):  # a body that may be a decoder
        kind = CausalLMOutputWithCrossAttentions
        more = {"cross_attentions": outputs.cross_attentions}
    made: Any = kind(
        loss=loss,
        logits=logits,
        past_key_values=getattr(outputs, "past_key_values", None),
        hidden_states=getattr(outputs, "hidden_states", None),
        attentions=getattr(outputs, "attentions", None),
        **more,
    )
    asked = given.get("return_dict")
    asked = getattr(model.config, "return_dict", True) if asked is None else asked
    return made if asked else made.to_tuple()
