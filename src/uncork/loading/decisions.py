"""Notes on models whose answer is not the class with the largest logit: one place for the words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

MULTI_LABEL = (
    "this head is multi-label: each class is decided by itself against a threshold, so that the "
    "largest logit is not the model's answer: see uncork labels"
)
REGRESSION = (
    "the head is a regression: its outputs are numbers, not classes that compete, so that the "
    "largest is not the model's answer"
)


# How layers are called whose rows, and whose inputs, are brought to length one when they run.
_MARGIN = re.compile(
    r"(^|[._/])(arc|cos|sphere|ada|mag|curricular|am|aam|lmcl|magface)_?"
    r"(face|softmax|margin|product|linear|head|loss)\w*[._/]|(^|[._/])(metric_fc|margin\w*)[._/]",
    re.IGNORECASE,
)
COSINE = (
    "by its name the layer compares by cosine (ArcFace, CosFace, AAM-softmax): rows are divided by "
    "their length when it runs, and --metric cosine asks about that; this is about the rows as "
    "they are stored"
)


def compares_by_cosine(weight: str) -> bool:
    """Whether a weight of that name belongs to a layer whose rows are normalised."""
    return _MARGIN.search(weight) is not None


def sigmoids(what: str) -> str:
    """The note on a layer that ends in a sigmoid for each of its classes."""
    return (
        f"{what} ends in a sigmoid for each class: if the model gives any number of labels at "
        "once, there is no argmax between them: see uncork labels"
    )


def decision_notes(config: Mapping[str, Any]) -> Iterator[str]:
    """What a transformers configuration says of how logits become an answer, if not by argmax."""
    kind = config.get("problem_type")
    if kind == "multi_label_classification":
        yield MULTI_LABEL
    elif kind == "regression":
        yield REGRESSION
