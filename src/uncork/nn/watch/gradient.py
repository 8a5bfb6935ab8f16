"""What passes of the gradient through the layer that is watched, by the kind of layer it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uncork.core.errors import UncorkError
from uncork.nn._torch import torch
from uncork.nn.heads.base import OutputHead
from uncork.nn.heads.mixture import MixtureOfSoftmaxes
from uncork.nn.heads.softmax import LinearHead
from uncork.nn.passing import Passing, measure_passing
from uncork.nn.watch.layers import parameters

Tensor = torch.Tensor
Tokens = Callable[[], tuple[Tensor, Tensor]]


def check_measurable(layer: Any) -> None:
    """Whether `passing_of` knows the gradient of such a layer."""
    if isinstance(layer, OutputHead) and not isinstance(layer, MixtureOfSoftmaxes | LinearHead):
        raise UncorkError(
            f"the {layer.name} head's scores are not linear in its contexts: what passes of the "
            "gradient is measured of linear layers, linear heads and mixtures of softmaxes"
        )


@torch.no_grad()
def passing_of(layer: Any, hidden: Tensor, target: Tensor) -> Passing:
    """Of hidden states (..., d) as the layer gets them. A linear layer is taken to be trained with
    cross entropy, a head of uncork.nn with its own loss; of a mixture of softmaxes, the logits of
    all components together."""
    if isinstance(layer, MixtureOfSoftmaxes):
        counted = target.reshape(-1) != -100
        states = hidden.reshape(-1, hidden.shape[-1])[counted]
        contexts, log_prior = layer.contexts(states.to(layer.weight.dtype))
        each = target.reshape(-1)[counted].repeat_interleave(layer.components)
        found = measure_passing(layer.weight, layer.bias, contexts.flatten(0, 1), each)
        return found.mixed(log_prior.exp())
    if isinstance(layer, LinearHead):
        loss = layer.specification
        given = layer._family_parameters()
        weight, bias = layer._shared_tensors()
        assert weight is not None
        (states,) = layer._row_tensors(hidden.reshape(-1, hidden.shape[-1]).to(weight.dtype))
        return measure_passing(
            weight.detach(), bias, states, target, output=lambda z: loss.family.predict(z, given)
        )
    check_measurable(layer)
    weight, bias = parameters(layer)
    return measure_passing(weight, bias, hidden.to(weight.device), target.to(weight.device))


def gradient_counts(layer: Any, tokens: Tokens) -> dict[str, float]:
    """Means over tokens, as a watch counts them. Training goes on with the random numbers it would
    have had, whatever dropout takes here."""
    with torch.no_grad(), torch.random.fork_rng(range(torch.cuda.device_count())):
        given = tokens()
    if not (isinstance(given, (tuple, list)) and len(given) == 2):
        raise UncorkError(
            "tokens: expected a function that returns hidden states and targets, got "
            f"{type(given).__name__} from it"
        )
    hidden, target = given
    found = passing_of(layer, hidden.detach(), target)
    return {
        "gradient_passes": float(found.share.mean()), "gradient_lost": float(found.lost.mean()),
        "gradient_cosine": float(found.step.mean()),
    }  # fmt: skip
