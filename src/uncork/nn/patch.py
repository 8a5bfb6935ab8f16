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

from uncork.core.errors import UncorkError
from uncork.nn import functional as F
from uncork.nn._torch import torch
from uncork.nn.argmaxable import ArgmaxableLinear
from uncork.nn.losses.specification import loss_named
from uncork.nn.transformers import causal_models
from uncork.nn.transformers.model_class import (
    Change,
    change_class,
    check_changeable,
    undo_change,
)
from uncork.nn.transformers.wrappers import check_unwrapped, in_use

Tensor = torch.Tensor

KNOWN = causal_models.KNOWN
# Arguments of a loss that the model's call decides, and what its answer has no room for.
_OF_THE_CALL = (
    "input", "linear_weight", "target", "linear_bias", "ignore_index", "reduction", "softcap",
    "token_weight", "return_lse", "return_predictions", "options",
)  # fmt: skip
_FUSED = "_uncork_fused_loss"  # the attribute of a model that holds its loss


def fuse_loss(
    model: Any, name: str = "entmax", *, unknown_model: bool = False, **options: Any
) -> Any:
    """Change `model.forward` so that labels are met by a linear loss; returns the model.

    Args:
        model: a causal language model: Llama, Mistral, Qwen, Gemma, GPT-2, Phi-3, OLMo 2,
            Cohere, Granite. Itself, not what wraps it (DistributedDataParallel, PEFT, compiled).
        name: "softmax", "sparsemax", "entmax", "alpha_relu", or any loss in `losses.LOSSES`.
        unknown_model: take any model whose logits are its output layer applied to its last hidden
            states. Compare a loss before you train with it.
        options: go to the loss: alpha, tau, weight, label_smoothing, input_grad,
            float32_accumulation, z_loss. A tensor τ receives its gradient, and is not made a
            parameter of the model: give it to the optimiser yourself.
    """
    loss: Callable[..., Tensor] = getattr(F, loss_named(name).names.linear_function)
    check_unwrapped(model, "fuse the loss")
    causal_models.check_causal(model, unknown_model)
    check_changeable(model, FusedLoss, "fuse the loss")
    _check_options(name, loss, options, _head(model).out_features)
    change_class(model, FusedLoss)
    setattr(model, _FUSED, functools.partial(loss, **options))
    return model


def unfuse_loss(model: Any) -> Any:
    """Undo :func:`fuse_loss`; returns the model."""
    vars(model).pop(_FUSED, None)
    undo_change(model, FusedLoss)
    return model


class FusedLoss(Change):
    """A model that fuses its loss, as long as it holds one."""

    in_the_way = (
        "this model's loss is fused with its output layer, and a head has a loss of its own: "
        "uncork.nn.patch.unfuse_loss(model) first"
    )

    def forward_named(self, given: dict[str, Any], own: Callable[[], Any]) -> Any:
        loss = self.__dict__.get(_FUSED)
        if loss is None or not causal_models.asks_for_loss(given):
            if loss is not None:
                causal_models.warn_of_label_smoother("give label_smoothing to fuse_loss")
            return own()
        return _forward(self, loss, given)


def _head(model: Any) -> Any:
    """The output layer, if it is no more than a product with its weight and a bias."""
    given = model.get_output_embeddings()
    head = in_use(given)
    plain = (torch.nn.Linear, ArgmaxableLinear)
    if not isinstance(head, plain) or type(head).forward not in [kind.forward for kind in plain]:
        raise UncorkError(
            f"the output layer must be a torch.nn.Linear, got {type(head).__name__}: what its "
            "forward adds would be left out"
        )
    hooked = any(each._forward_hooks or each._forward_pre_hooks for each in (given, head))
    if "forward" in vars(head) or hooked:
        raise UncorkError("the output layer has hooks, which would not run: its loss is not fused")
    return head


def _check_options(
    name: str, loss: Callable[..., Tensor], options: dict[str, Any], classes: int
) -> None:
    """Said now and not at the first batch."""
    taken = [known for known in inspect.signature(loss).parameters if known not in _OF_THE_CALL]
    for option in options:
        if option not in taken:
            raise UncorkError(f"{name} takes {', '.join(taken)}, got {option!r}")
    here = {
        option: value.detach().cpu() if isinstance(value, Tensor) else value
        for option, value in options.items()
    }
    loss(torch.zeros(1, 1), torch.zeros(classes, 1), torch.zeros(1, dtype=torch.long), **here)


def _forward(model: Any, loss: functools.partial[Tensor], given: dict[str, Any]) -> Any:
    head = _head(model)
    outputs, hidden = causal_models.run_body(model, given)
    bias = head.bias
    scale = causal_models.logit_scale(model)
    if scale != 1:
        hidden = hidden * scale
        bias = None if bias is None else bias * scale
    moved = _moved(loss, hidden.device)

    def fused(states: Tensor, target: Tensor, **reduction: Any) -> Tensor:
        return loss(
            states, head.weight, target, linear_bias=bias,
            softcap=causal_models.softcap(model.config), **moved, **reduction,
        )  # fmt: skip

    value = causal_models.next_token_loss(fused, hidden, given)
    return causal_models.answer(model, given, outputs, loss=value)


def _moved(loss: functools.partial[Tensor], device: torch.device) -> dict[str, Tensor]:
    """The loss's tensors, which no one moves with the model, to where it is."""
    return {
        name: value.to(device)
        for name, value in loss.keywords.items()
        if isinstance(value, Tensor) and value.device != device
    }
