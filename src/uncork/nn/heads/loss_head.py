"""A head from a loss: a linear layer, the loss's map, and its Fenchel-Young loss."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any

from uncork.core.errors import UncorkError
from uncork.nn._torch import torch
from uncork.nn.heads.base import OutputHead
from uncork.nn.heads.softmax import LinearHead
from uncork.nn.losses.forms import KEYWORD, described, options_of, parameter, words
from uncork.nn.losses.specification import Loss
from uncork.nn.transforms.entmax import entmax
from uncork.nn.transforms.shape import tau_from_shape

Tensor = torch.Tensor


class LossHead(LinearHead):
    """P(x | h) = p(W h + b)_x with p the map of a loss, trained with that loss.

    Log-probabilities are −inf off the support, and `loss` is the Fenchel-Young loss, not −log P:
    the logarithm of zero trains nothing.
    """

    def __init__(self, features: int, classes: int, **settings: Any) -> None:
        options = {option.name: option for option in self.specification.options}
        given = {name: settings.pop(name) for name in list(settings) if name in options}
        super().__init__(features, classes, **settings)
        for name, option in options.items():
            value = given.get(name, option.default)
            if option is not self.specification.threshold:
                setattr(self, name, option.number(value))
        self._set_threshold(given)
        self.reset_parameters()

    def _set_threshold(self, given: dict[str, Any]) -> None:
        """There is none."""

    def options(self) -> dict[str, Any]:
        loss = self.specification
        numbers = [option.name for option in loss.options if option is not loss.threshold]
        return super().options() | {name: getattr(self, name) for name in numbers}

    def forward(self, hidden: Tensor, *, everywhere: bool = False) -> Tensor:
        """Log-probabilities (..., classes): −inf where the probability is zero. `everywhere`: there
        something far below all others, in the order of the logits, for a decoder that may forbid
        every class of the support."""
        logits = super().forward(hidden)
        log_p = self._log_of_ranked(logits)
        return _with_order(log_p, logits.detach()) if everywhere else log_p

    def _log_of_ranked(self, ranked: Tensor) -> Tensor:
        return self.specification.family.log_probabilities(ranked, self._family_parameters())

    def _log_probabilities(self, scores: Tensor) -> Tensor:
        return scores  # they are

    def _ranked(self, hidden: Tensor) -> Tensor:
        self._check_gathered(hidden)
        return super().forward(hidden)  # logits: no threshold to find


def _with_order(log_p: Tensor, logits: Tensor) -> Tensor:
    """log P with what is off the support below it by so much that its exponential is 0. A factor
    and no distance, so that 16 bits keep the order too."""
    behind = logits.amax(-1, keepdim=True) - logits
    far = max(-1e6, torch.finfo(log_p.dtype).min / 64)
    return torch.where(log_p == -math.inf, (far * (1 + behind)).to(log_p.dtype), log_p)


class ThresholdHead(LossHead):
    """A head whose threshold τ is given, and whose scores do not sum to one.

    What stands for the log-probabilities, in `log_probabilities`, `top_k` and `sample`, is the
    logarithm of the scores divided by their sum; a row without any support puts everything on its
    largest logit. `loss` is that of the scores as they are. τ is computed for the head as it is
    initialised, after a layer norm, unless given; :meth:`calibrate` measures it.
    """

    tau: Tensor

    def _set_threshold(self, given: dict[str, Any]) -> None:
        tau = given.get("tau")
        if tau is None:  # rows are uniform ±1/√d: logits of standard deviation 1/√3
            tau = 0.0
            if self.classes > 1:
                std = 1 / math.sqrt(3)
                tau = tau_from_shape(self.features, self.classes, self._alpha(), logit_std=std)
        if not math.isfinite(tau):
            raise UncorkError(f"tau must be a number, got {tau!r}")
        self._new_tau = float(tau)
        self.register_buffer("tau", torch.empty((), dtype=torch.float32, device=self.weight.device))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.tau.fill_(self._new_tau)

    def _alpha(self) -> float:
        loss = self.specification
        numbers = [option for option in loss.options if option is not loss.threshold]
        given = {option.name: getattr(self, option.name) for option in numbers}
        alpha = loss.family.exponent(loss.parameters_from(given, linear=True))
        assert alpha is not None
        return alpha

    @torch.no_grad()
    def calibrate(self, hidden: Tensor) -> float:
        """Set τ to the mean threshold of α-entmax on these hidden states; returns it."""
        thresholds = [
            entmax(scores, self._alpha(), return_support=True).tau
            for scores in self._linear_blocks(hidden)
        ]
        if not thresholds:
            raise UncorkError("no hidden states to calibrate with")
        self.tau.fill_(torch.cat(thresholds).double().mean())
        return float(self.tau)

    def _linear_blocks(self, hidden: Tensor) -> Iterator[Tensor]:
        for rows in self._rows(hidden).split(256):
            yield LinearHead.forward(self, rows)


def head_of(loss: Loss, name: str) -> type[LossHead]:
    """The output head of a loss."""
    base = ThresholdHead if loss.family.threshold_given else LossHead
    parameters = list(inspect.signature(OutputHead.__init__).parameters.values())
    own, sizes, settings = parameters[0], parameters[1:3], parameters[3:]
    options = [
        parameter("tau", "float | None", None)
        if option is loss.threshold
        else option_parameter.replace(annotation="float", kind=KEYWORD)
        for option, option_parameter in zip(loss.options, options_of(loss, True), strict=True)
    ]

    def __init__(self: Any, features: int, classes: int, **given: Any) -> None:
        base.__init__(self, features, classes, **given)

    doc = (
        f"An output layer whose loss is :func:`uncork.nn.functional.{loss.names.function}`.\n\n"
        f"{words(loss)}\n\n{inspect.cleandoc(base.__doc__ or '')}"
    )
    given = [*sizes, *options, *settings]
    described(__init__, "__init__", __name__, [own, *given], "None", doc)
    kind = loss.name.replace("_", "-")
    made = type(name, (base,), {"__init__": __init__, "specification": loss, "name": kind})
    return described(made, name, "uncork.nn.heads", given, "None", doc)
