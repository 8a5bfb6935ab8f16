"""KActiveHead: sigmoids on a layer whose sets of up to k labels are all feasible; and a model's
multi-label classifier replaced by it."""

from __future__ import annotations

from typing import Any

from uncork.core.errors import UncorkError
from uncork.nn._torch import torch
from uncork.nn.k_active import KActiveLinear

Tensor = torch.Tensor

# What transformers calls the last layer of its classifiers, most common first.
_NAMES = ("classifier.out_proj", "classifier", "score", "classification_head.out_proj", "fc")


class KActiveHead(torch.nn.Module):
    """From hidden states (..., features) to independent probabilities of labels.

    :class:`uncork.nn.KActiveLinear` as a head: any set of up to `k` labels can be predicted.
    """

    name = "k-active"

    def __init__(
        self,
        features: int,
        labels: int,
        *,
        k: int,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.linear = KActiveLinear(features, labels, k, bias, device=device, dtype=dtype)
        self.features, self.labels, self.k = features, labels, k

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits (..., labels)."""
        return self.linear(hidden)

    def probabilities(self, hidden: Tensor) -> Tensor:
        """Of each label by itself (..., labels)."""
        return torch.sigmoid(self(hidden))

    def predict(self, hidden: Tensor, threshold: float = 0.5) -> Tensor:
        """Which labels are above the threshold (..., labels), bool."""
        return self.probabilities(hidden) > threshold

    def loss(self, hidden: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
        """Binary cross-entropy of targets (..., labels) of zeros and ones."""
        return torch.nn.functional.binary_cross_entropy_with_logits(
            self(hidden), target.to(hidden.dtype), reduction=reduction
        )


def replace_classifier(model: Any, k: int, *, name: str | None = None, bias: bool = False) -> Any:
    """Put a :class:`uncork.nn.KActiveLinear` in the place of a model's last layer; the model.

    For the sequence and image classifiers of transformers with
    ``problem_type="multi_label_classification"``: their loss, `Trainer` and saving go on as they
    were. Any other module has the Linear called `name` replaced.
    """
    found = _last_layer(model) if name is None else name
    try:
        old = model.get_submodule(found)
    except AttributeError:
        raise UncorkError(f"the model has no module called {found!r}") from None
    if not isinstance(old, torch.nn.Linear):
        raise UncorkError(f"{found} is a {type(old).__name__}: expected a torch.nn.Linear")
    made = KActiveLinear(
        old.in_features, old.out_features, k, bias,
        device=old.weight.device, dtype=old.weight.dtype,
    )  # fmt: skip
    parent, _, own = found.rpartition(".")
    setattr(model.get_submodule(parent), own, made)
    return model


def _last_layer(model: Any) -> str:
    config = getattr(model, "config", None)
    kind = getattr(config, "problem_type", None)
    if kind not in (None, "multi_label_classification"):
        raise UncorkError(
            f"the model's problem_type is {kind!r}: a k-active layer is for "
            "multi_label_classification"
        )
    labels = getattr(config, "num_labels", None)
    modules = dict(model.named_modules())
    for name in _NAMES:
        layer = modules.get(name)
        if isinstance(layer, torch.nn.Linear) and labels in (None, layer.out_features):
            return name
    raise UncorkError("no classifier layer was found in the model: give its name, name=…")
