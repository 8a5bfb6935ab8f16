"""What a running model hands on: inputs that arrived at its head, and which class came first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from uncork.core.head import Head


@dataclass(frozen=True)
class Batch:
    """Inputs of the head (n, d), the class the model put first (n,), and whether another class had
    the same logit (n,); `items` pieces of data were used up for them. `targets` (n,): the class
    that comes next in the data, −100 where none does; None unless the model is a language model."""

    inputs: np.ndarray
    first: np.ndarray
    shared: np.ndarray
    items: int
    targets: np.ndarray | None = None


class Runner(Protocol):
    """A model over data: always the same batches in the same order."""

    head: Head  # as `uncork.load` reads it from the same model
    unit: float  # relative rounding of the type the model computes in
    name: str
    identity: str  # model, data and settings: two runs with one identity go through the same
    total: int  # items in the data

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """Items start to stop, a batch at a time."""


def firsts(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The class with the largest logit of each row (n, C), the lowest id where several share it,
    and whether several do."""
    first = logits.argmax(axis=1)
    largest = np.take_along_axis(logits, first[:, None], axis=1)
    return first, (logits == largest).sum(axis=1) > 1
