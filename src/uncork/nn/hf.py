"""Fitting into transformers (5 and later): loss functions, and decoding from sparse outputs.

    model.loss_function = uncork.nn.hf.causal_lm_loss("entmax", alpha=1.5)
    Trainer(..., compute_loss_func=uncork.nn.hf.trainer_loss("alpha_relu", tau=0.3))
    model.generate(..., logits_processor=[uncork.nn.hf.EntmaxLogitsProcessor(alpha=1.5)])

Nothing here imports transformers: it calls these objects, not the other way round.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

from uncork.core.errors import UncorkError
from uncork.nn import functional as F
from uncork.nn._rows import check_number, check_parameter
from uncork.nn._torch import torch
from uncork.nn.losses.specification import loss_named
from uncork.nn.transformers.causal_models import one_place_on, shared_out

Tensor = torch.Tensor

_OF_THE_CALL = ("input", "target", "ignore_index", "reduction")


def _loss(name: str | Callable[..., Tensor], options: dict[str, Any]) -> Callable[..., Tensor]:
    if callable(name):
        return name
    loss: Callable[..., Tensor] = getattr(F, loss_named(name).names.function)
    taken = [one for one in inspect.signature(loss).parameters if one not in _OF_THE_CALL]
    for option in options:  # said now and not at the first batch
        if option not in taken:
            raise UncorkError(f"{name} takes {', '.join(taken)}, got {option!r}")
    return loss


def _reduced(
    loss: Callable[..., Tensor],
    logits: Tensor,
    labels: Tensor,
    count: Tensor | int | None,
    ignore_index: int,
    options: dict[str, Any],
) -> Tensor:
    """A mean over the labels given; or a sum over all devices' share, divided by the global count
    that gradient accumulation passes as num_items_in_batch."""
    # float32 as transformers' own losses, so that 16-bit models report a precise loss.
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    labels = labels.to(logits.device)
    if count is None:
        return loss(logits, labels, ignore_index=ignore_index, reduction="mean", **options)
    total = loss(logits, labels, ignore_index=ignore_index, reduction="sum", **options)
    return shared_out(total, count)


def _next_token(
    loss: Callable[..., Tensor],
    options: dict[str, Any],
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **unused: Any,
) -> Tensor:
    if shift_labels is None:
        shift_labels = one_place_on(labels, ignore_index)
    rows, target = logits.reshape(-1, vocab_size), shift_labels.reshape(-1)
    return _reduced(loss, rows, target, num_items_in_batch, ignore_index, options)


def _same_token(
    loss: Callable[..., Tensor],
    options: dict[str, Any],
    logits: Tensor,
    labels: Tensor,
    vocab_size: Any = None,  # token classifiers pass their configuration: the logits tell
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    **unused: Any,
) -> Tensor:
    rows, target = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    return _reduced(loss, rows, target, num_items_in_batch, ignore_index, options)


def _of_outputs(
    family: Callable[..., Tensor],
    ignore_index: int,
    outputs: Any,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
) -> Tensor:
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs.logits
    return family(logits, labels, logits.shape[-1], num_items_in_batch, ignore_index=ignore_index)


# Partials, not closures: a model that holds one can be pickled, and so sent to other processes.


def causal_lm_loss(name: str | Callable[..., Tensor] = "entmax", **options: Any) -> Any:
    """A drop-in for transformers' ForCausalLMLoss: `model.loss_function = causal_lm_loss(...)`.

    Labels are shifted here, as there. `options` go to the loss: alpha, tau, weight,
    label_smoothing.
    """
    return functools.partial(_next_token, _loss(name, options), options)


def masked_lm_loss(name: str | Callable[..., Tensor] = "entmax", **options: Any) -> Any:
    """As :func:`causal_lm_loss` for models whose labels are not shifted: masked language models,
    token classification.

    Only for models that ask their `loss_function`: ModernBERT does, and Llama's token classifier;
    BERT, T5 and BART compute cross entropy themselves whatever it is set to. For those
    :func:`trainer_loss` with `shift=False`.
    """
    return functools.partial(_same_token, _loss(name, options), options)


def trainer_loss(
    name: str | Callable[..., Tensor] = "entmax",
    *,
    shift: bool = True,
    ignore_index: int = -100,
    **options: Any,
) -> Any:
    """For `Trainer(compute_loss_func=...)`: takes the model's outputs and the labels.

    `shift` for causal language models; False for classifiers and encoder-decoders. Trainer then
    keeps the labels from the model, so an encoder-decoder's batches need `decoder_input_ids`
    (DataCollatorForSeq2Seq makes them if it is given the model).
    """
    family = causal_lm_loss(name, **options) if shift else masked_lm_loss(name, **options)
    return functools.partial(_of_outputs, family, ignore_index)


class EntmaxLogitsProcessor:
    """Makes `generate` sample, and beam-search, from α-entmax: scores become log probabilities.

    Classes off the support get −inf and are never drawn. Works on logits and on the log-softmax
    scores of beam search alike, since α-entmax ignores a constant added to a row. A beam's score
    is then the sum of its entmax log-probabilities.
    """

    supports_continuous_batching = False

    def __init__(self, alpha: float = 1.5) -> None:
        self.alpha = check_parameter(alpha, above=0.0)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return F.log_entmax(scores, self.alpha, -1)


class AlphaReLULogitsProcessor:
    """Makes `generate` sample, and beam-search, from α-ReLU, normalised at each step.

    α-ReLU does depend on a constant added to the row, and beam search hands processors
    log-softmax scores whose constant is gone. So give the model: its raw logits are noted as it
    runs and the constant is put back. Scores that are no such row, as most of an assisted
    decoding's, and all without `model`, are taken as raw logits, which is right for sampling and
    greedy search. Close it (or use it in a `with`) to detach from the model.
    """

    supports_continuous_batching = False

    def __init__(
        self, alpha: float = 1.5, tau: float = 0.0, model: torch.nn.Module | None = None
    ) -> None:
        self.alpha = check_parameter(alpha, above=1.0)
        check_number(tau, "tau", "a number", math.isfinite)
        self.tau = float(tau)
        self._raw: Tensor | None = None
        self._hook = None if model is None else model.register_forward_hook(self._note)

    def _note(self, model: torch.nn.Module, arguments: Any, outputs: Any) -> None:
        if outputs.logits is not None:  # none where a fused loss was asked for
            # A copy: generate may write into what the model returned.
            self._raw = outputs.logits[:, -1, :].detach().to(torch.float32, copy=True)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        wide = scores.float()
        if self._hook is not None and self._raw is not None and self._raw.shape == wide.shape:
            wide = wide + _constant(self._raw.to(wide.device), wide)
        return F.alpha_relu_log_scores(wide, self.alpha, self.tau, -1).to(scores.dtype)

    def close(self) -> None:
        """Detach from the model."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def __enter__(self) -> AlphaReLULogitsProcessor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _constant(raw: Tensor, scores: Tensor) -> Tensor:
    """What was taken from each row of logits (R, C) to make its scores, of which some may be masked
    or penalised since: the difference that half of them have. 0 where there is none, and the
    scores are of other logits. (R, 1)"""
    known = scores > -math.inf
    apart = torch.where(known, raw - scores, math.nan)
    middle = apart.nanmedian(-1, keepdim=True).values
    near = 1e-4 * (1 + torch.where(known, raw, 0.0).abs().amax(-1, keepdim=True))
    same = ((apart - middle).abs() <= near).sum(-1, keepdim=True)
    return torch.where(2 * same > known.sum(-1, keepdim=True), middle, 0.0)
