"""What a configuration says of how a model's logits become its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MULTI_LABEL = (
    "the head is multi-label: each class is decided by itself against a threshold, so that the "
    "largest logit is not the model's answer (uncork labels asks which label sets are possible)"
)
REGRESSION = (
    "the head is a regression: its outputs are numbers, not classes that compete, so that the "
    "largest is not the model's answer"
)


def decision_notes(config: Mapping[str, Any], classes: int) -> Iterator[str]:
    """A note where the model's answer is not the class with the largest logit."""
    kind = config.get("problem_type")
    listed = config.get("architectures")
    labelled = (
        isinstance(listed, list | tuple)
        and bool(listed)
        and (str(listed[0]).endswith("Classification"))
    )
    if kind == "multi_label_classification":
        yield MULTI_LABEL
    elif kind == "regression" or (labelled and classes == 1):
        yield REGRESSION
