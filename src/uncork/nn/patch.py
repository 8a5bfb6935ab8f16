"""One line that puts a linear loss into a causal language model of transformers (5 and later).

    from uncork.nn.patch import fuse_loss

    fuse_loss(model, "entmax", alpha=1.5)

From then on `model(input_ids, labels=labels).loss` is that loss, computed from the hidden states
and the output layer's weight together, and the logits (rows × classes) are never made: `.logits` is
None. Without labels the model does what it did.

The model's class becomes a subclass of itself, of the same name, with a forward that knows labels:
so the change goes with copies, pickles, replicas and wrappers as any method does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from uncork.errors import UncorkError
from uncork.nn import functional as F
from uncork.nn._torch import torch
from uncork.nn.argmaxable import ArgmaxableLinear

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
# Arguments of a loss that the model's call decides.
_OF_THE_CALL = (
    "input", "linear_weight", "target", "linear_bias", "ignore_index", "reduction", "softcap",
)  # fmt: skip
_FUSED = "_uncork_fused_loss"  # the attribute of a model that holds its loss


def fuse_loss(
    model: Any, name: str = "entmax", *, unknown_model: bool = False, **options: Any
) -> Any:
    """Change `model.forward` so that labels are met by a linear loss; returns the model.

    Args:
        model: a causal language model: Llama, Mistral, Qwen, Gemma, GPT-2, Phi-3, OLMo 2,
            Cohere, Granite. Itself, not what wraps it (DistributedDataParallel, PEFT, compiled).
        name: "softmax", "sparsemax", "entmax" or "alpha_relu".
        unknown_model: take any model whose logits are its output layer applied to its last hidden
            states. Compare a loss before you train with it.
        options: go to the loss: alpha, tau, weight, label_smoothing, input_grad,
            float32_accumulation. A tensor τ receives its gradient, and is not made a parameter of
            the model: give it to the optimiser yourself.
    """
    if name not in _LOSSES:
        raise UncorkError(f"loss must be one of {', '.join(sorted(_LOSSES))}, got {name!r}")
    _check_model(model, unknown_model)
    _check_options(name, options, _head(model).out_features)
    kind: Any = type(model)
    if _ours(kind) is None:
        if "forward" in vars(model):
            raise UncorkError(
                "something (accelerate, say) has put its own forward in front of this model's: "
                "fuse the loss before that"
            )
        model.__class__ = _fused(kind)
    setattr(model, _FUSED, functools.partial(_LOSSES[name], **options))
    return model


def unfuse_loss(model: Any) -> Any:
    """Undo :func:`fuse_loss`; returns the model."""
    vars(model).pop(_FUSED, None)
    if _ours(type(model)) is type(model):  # where another class lies over ours, that is enough
        model.__class__ = type(model)._uncork_plain
    return model


# --- What is taken ---------------------------------------------------------------------------


def _check_model(model: Any, unknown_model: bool) -> None:
    kind = type(model).__name__
    for inside in ("module", "_orig_mod"):
        if inside in getattr(model, "_modules", ()):
            raise UncorkError(f"this is a {kind} around a model: fuse the loss of its .{inside}")
    if hasattr(model, "get_base_model"):  # PEFT
        raise UncorkError(f"this is a {kind} around a model: fuse that of .get_base_model()")
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
            raise UncorkError(f"{kind} has no .{needed}: it is no causal language model")
    _head(model)


def _check_config(config: Any, kind: str) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise UncorkError(
            f"{kind} is an encoder-decoder, whose loss is not fused here: "
            "uncork.nn.hf.trainer_loss(..., shift=False) is for its Trainer"
        )
    if hasattr(config, "get_text_config") and config.get_text_config() is not config:
        raise UncorkError(f"{kind} takes more than text: its loss is not fused")
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
    ours = _ours(type(model))
    own = type(model).forward if ours is None else ours._uncork_plain.forward
    return known is not None and own is known.forward


def _head(model: Any) -> Any:
    """The output layer, if it is no more than a product with its weight and a bias."""
    head = model.get_output_embeddings()
    plain = (torch.nn.Linear, ArgmaxableLinear)
    if not isinstance(head, plain) or type(head).forward not in [kind.forward for kind in plain]:
        raise UncorkError(
            f"the output layer must be a torch.nn.Linear, got {type(head).__name__}: what its "
            "forward adds would be left out"
        )
    if "forward" in vars(head) or head._forward_hooks or head._forward_pre_hooks:
        raise UncorkError("the output layer has hooks, which would not run: its loss is not fused")
    return head


def _check_options(name: str, options: dict[str, Any], classes: int) -> None:
    """Said now and not at the first batch."""
    loss = _LOSSES[name]
    taken = [known for known in inspect.signature(loss).parameters if known not in _OF_THE_CALL]
    for option in options:
        if option not in taken:
            raise UncorkError(f"{name} takes {', '.join(taken)}, got {option!r}")
    here = {
        option: value.detach().cpu() if isinstance(value, Tensor) else value
        for option, value in options.items()
    }
    loss(torch.zeros(1, 1), torch.zeros(classes, 1), torch.zeros(1, dtype=torch.long), **here)


# --- The model's class, with another forward -------------------------------------------------


@functools.cache
def _fused(plain: Any) -> Any:
    """`plain` with a forward that fuses the loss of a model which holds one."""
    signature = inspect.signature(plain.forward)

    @functools.wraps(plain.forward)
    def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
        loss = self.__dict__.get(_FUSED)
        given = _named(signature, (self, *arguments), keywords)
        del given["self"]
        if loss is None or (given.get("labels") is None and given.get("shift_labels") is None):
            return plain.forward(self, *arguments, **keywords)
        return _forward(self, loss, given)

    def reduce(self: Any, protocol: Any) -> Any:
        if type(self) is not fused:
            return plain.__reduce_ex__(self, protocol)
        return _empty, (plain,), plain.__reduce_ex__(self, 2)[2]

    # By its signature a Trainer chooses columns; but whoever unwraps a forward is to stop here.
    vars(forward)["__signature__"] = signature
    del vars(forward)["__wrapped__"]
    # The name under which a checkpoint says what it is.
    named = {"__module__": plain.__module__, "__qualname__": plain.__qualname__}
    own = {"forward": forward, "__reduce_ex__": reduce, "_uncork_plain": plain}
    fused: Any = type(plain)(plain.__name__, (plain,), named | own)
    return fused


def _ours(kind: Any) -> Any:
    """The class made by `_fused`: this one, or one that another (FSDP's) was laid over."""
    return next((base for base in kind.__mro__ if "_uncork_plain" in vars(base)), None)


def _empty(plain: Any) -> Any:
    """For pickle and copy: a model yet without contents."""
    fused = _fused(plain)
    return fused.__new__(fused)


def _named(
    signature: inspect.Signature, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> dict[str, Any]:
    """All arguments by their names."""
    bound = dict(signature.bind(*arguments, **keywords).arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            bound |= bound.pop(name, {})
    return bound


# --- The loss --------------------------------------------------------------------------------


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
    _check_router(model.config, given)
    head = _head(model)
    body = getattr(model, model.base_model_prefix)
    if not getattr(model.config, "return_dict", True):
        rest["return_dict"] = True  # its names are needed here, whatever the caller wants
    outputs = body(**rest)
    hidden = _kept(outputs.last_hidden_state, given.get("logits_to_keep", 0))  # (batch, length, d)
    bias = head.bias
    scale = _scale(model)
    if scale != 1:
        hidden = hidden * scale
        bias = None if bias is None else bias * scale
    if shifted is None:
        shifted = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    value = loss(
        hidden,
        head.weight,
        shifted.to(hidden.device),
        linear_bias=bias,
        ignore_index=ignore_index,
        reduction="mean" if count is None else "sum",
        softcap=_softcap(model.config),
        **_moved(loss, hidden.device),
    )
    if count is not None:  # gradient accumulation: all devices' tokens of all micro-batches
        value = value / (count.to(value.device) if isinstance(count, Tensor) else count)
    result = _output(outputs, value)
    asked = given.get("return_dict")
    asked = getattr(model.config, "return_dict", True) if asked is None else asked
    return result if asked else result.to_tuple()


def _softcap(config: Any) -> float | None:
    cap: float | None = getattr(config, "final_logit_softcapping", None)
    return cap


def _scale(model: Any) -> float:
    """What a model multiplies its logits by: as good as its hidden states and its bias."""
    if getattr(model, "logit_scale", None) is not None:  # Cohere
        return float(model.logit_scale)
    return 1 / float(getattr(model.config, "logits_scaling", None) or 1.0)  # Granite


def _kept(hidden: Tensor, positions: int | Tensor) -> Tensor:
    """The positions whose logits are asked for, as transformers reads `logits_to_keep`."""
    if not isinstance(positions, Tensor):
        return hidden[:, -positions:] if positions else hidden
    if positions.dim() < 2:
        return hidden[:, positions]
    if positions.dtype == torch.bool:
        return hidden[positions]
    return torch.take_along_dim(hidden, positions[..., None], dim=1)


def _moved(loss: Any, device: torch.device) -> dict[str, Tensor]:
    """The loss's tensors, which no one moves with the model, to where it is."""
    return {
        name: value.to(device)
        for name, value in loss.keywords.items()
        if isinstance(value, Tensor) and value.device != device
    }


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
