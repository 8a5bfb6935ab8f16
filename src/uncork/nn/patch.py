"""One line that puts a linear loss into a causal language model of transformers (5 and later).

    uncork.nn.patch.fuse_loss(model, "entmax", alpha=1.5)

From then on `model(input_ids, labels=labels).loss` is that loss, computed from the hidden states
and the output layer's weight together, and the logits (rows × classes) are never made: `.logits` is
None. Without labels the model does what it did.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from uncork.errors import UncorkError
from uncork.nn import functional as F
from uncork.nn._torch import torch

Tensor = torch.Tensor

_LOSSES: dict[str, Callable[..., Tensor]] = {
    "softmax": F.linear_cross_entropy,
    "sparsemax": F.linear_sparsemax_loss,
    "entmax": F.linear_entmax_loss,
    "alpha_relu": F.linear_alpha_relu_loss,
}
# What their forward does between output layer and loss is known, and held to by the tests.
KNOWN = (
    "cohere", "gemma", "gemma2", "gemma3_text", "gpt2", "granite", "llama", "mistral", "olmo2",
    "phi3", "qwen2", "qwen3",
)  # fmt: skip
_OF_THE_LOSS = ("labels", "shift_labels", "num_items_in_batch", "ignore_index")
_OF_THE_OUTPUT = ("logits_to_keep", "return_dict")


def fuse_loss(
    model: Any, name: str = "entmax", *, unknown_model: bool = False, **options: Any
) -> Any:
    """Change `model.forward` so that labels are met by a linear loss; returns the model.

    Args:
        model: a causal language model: Llama, Mistral, Qwen, Gemma, GPT-2, Phi-3, OLMo 2,
            Cohere, Granite.
        name: "softmax", "sparsemax", "entmax" or "alpha_relu".
        unknown_model: take any model whose logits are its output layer applied to its last hidden
            states. Compare a loss before you train with it.
        options: go to the loss: alpha, tau, weight, label_smoothing, float32_accumulation.
    """
    if name not in _LOSSES:
        raise UncorkError(f"loss must be one of {', '.join(sorted(_LOSSES))}, got {name!r}")
    config = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    if kind not in KNOWN and not unknown_model:
        raise UncorkError(
            f"model type {kind!r} is none of {', '.join(KNOWN)}: what it does with its logits is "
            "not known here. Pass unknown_model=True if they are the output layer's, untouched"
        )
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        raise UncorkError(f"the output layer must be a torch.nn.Linear, got {type(head).__name__}")
    if getattr(config, "output_router_logits", False):
        raise UncorkError("a router's auxiliary loss is not supported: output_router_logits=True")
    unfuse_loss(model)
    original = model.forward
    signature = inspect.signature(original)
    loss = functools.partial(_LOSSES[name], softcap=_softcap(config), **options)

    @functools.wraps(original)  # with its signature, by which a Trainer chooses columns
    def forward(*arguments: Any, **keywords: Any) -> Any:
        given = _named(signature, arguments, keywords)
        if given.get("labels") is None and given.get("shift_labels") is None:
            return original(*arguments, **keywords)
        return _forward(model, loss, given)

    model.forward = forward
    model._uncork_original_forward = original
    return model


def unfuse_loss(model: Any) -> Any:
    """Undo :func:`fuse_loss`; returns the model."""
    if "_uncork_original_forward" in vars(model):
        del model._uncork_original_forward
        del model.forward  # the class's own shows again
    return model


def _named(
    signature: inspect.Signature, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> dict[str, Any]:
    """All arguments by their names."""
    bound = dict(signature.bind(*arguments, **keywords).arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            bound |= bound.pop(name, {})
    return bound


def _softcap(config: Any) -> float | None:
    cap: float | None = getattr(config, "final_logit_softcapping", None)
    return cap


def _scale(model: Any) -> float:
    """What a model multiplies its logits by: for a head without bias, as good as its hidden
    states."""
    if getattr(model, "logit_scale", None) is not None:  # Cohere
        return float(model.logit_scale)
    return 1 / float(getattr(model.config, "logits_scaling", None) or 1.0)  # Granite


def _forward(model: Any, loss: Callable[..., Tensor], given: dict[str, Any]) -> Any:
    labels: Any = given.get("labels")
    shifted: Any = given.get("shift_labels")
    count = given.get("num_items_in_batch")
    ignore_index = given.get("ignore_index", -100)
    rest = {
        name: value
        for name, value in given.items()
        if name not in _OF_THE_LOSS and name not in _OF_THE_OUTPUT
    }
    body = getattr(model, model.base_model_prefix)
    outputs = body(**rest)
    hidden = outputs.last_hidden_state  # (batch, length, d)
    head = model.get_output_embeddings()
    scale = _scale(model)
    if scale != 1:
        hidden = hidden * scale
    if shifted is None:
        shifted = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    reduction = "mean" if count is None else "sum"
    value = loss(
        hidden,
        head.weight,
        shifted.to(hidden.device),
        linear_bias=head.bias,
        ignore_index=ignore_index,
        reduction=reduction,
    )
    if count is not None:  # gradient accumulation: all devices' tokens of all micro-batches
        value = value / (count.to(value.device) if isinstance(count, Tensor) else count)
    result = _output(outputs, value)
    return result.to_tuple() if given.get("return_dict") is False else result


def _output(outputs: Any, loss: Any) -> Any:
    """What a causal language model returns, without logits."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    return CausalLMOutputWithPast(
        loss=loss,
        logits=None,
        past_key_values=getattr(outputs, "past_key_values", None),
        hidden_states=getattr(outputs, "hidden_states", None),
        attentions=getattr(outputs, "attentions", None),
    )
