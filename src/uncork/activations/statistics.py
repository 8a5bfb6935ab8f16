"""Running statistics of the head's inputs, in memory that does not grow with the data.

Minimum, maximum, mean and deviation are of every input. Quantiles are those of a uniform random
sample of whole inputs (a reservoir, Vitter's algorithm R with a fixed seed), so that features and
norms are seen together: the quantile q of a sample of n is off by about √(q(1−q)/n) in rank.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from uncork.activations.batch import Batch
from uncork.core.errors import UncorkError
from uncork.core.own_archive import OwnArchive

QUANTILES = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
_SAMPLE_BYTES = 64 << 20
_LARGEST_SAMPLE = 16_384
_STATE = 10_000  # characters of a random generator's state
# The members of a file of them.
STATISTICS = ("counts", "norms", "lower", "upper", "mean", "squares", "first", "sample", "random")


def sample_size(features: int) -> int:
    """How many inputs the sample keeps: 16,384, or as many as fit into 64 MiB."""
    return max(64, min(_LARGEST_SAMPLE, _SAMPLE_BYTES // (4 * features)))


class Statistics:
    """Everything recorded so far."""

    def __init__(self, features: int, classes: int, seed: int = 0) -> None:
        self.features, self.classes = features, classes
        self.count = 0
        self.lower = np.full(features, np.inf)
        self.upper = np.full(features, -np.inf)
        self.mean = np.zeros(features)
        self.squares = np.zeros(features)  # sum of squared differences from the mean
        self.norm_lower, self.norm_upper, self.norm_mean = np.inf, -np.inf, 0.0
        self.first = np.zeros(classes, dtype=np.int64)
        self.shared = 0
        self.random = np.random.default_rng(seed)
        self._sample = np.zeros((sample_size(features), features), dtype=np.float32)

    @property
    def sample(self) -> np.ndarray:
        """The inputs kept: (n, d) float32."""
        return self._sample[: min(self.count, len(self._sample))]

    def add(self, batch: Batch) -> None:
        """Take note of a batch."""
        x = np.asarray(batch.inputs, dtype=np.float64)
        if not len(x):
            return
        if x.shape[1] != self.features:
            raise UncorkError(
                f"inputs of {x.shape[1]} features arrived at a head of {self.features}"
            )
        if not np.isfinite(x).all():
            at = int(np.flatnonzero(~np.isfinite(x).all(axis=1))[0])
            raise UncorkError(
                f"input {self.count + at} of the head is not finite: the model overflows on this "
                "data, and there is no range to record"
            )
        self.lower = np.minimum(self.lower, x.min(axis=0))
        self.upper = np.maximum(self.upper, x.max(axis=0))
        total = self.count + len(x)
        # Chan's way to join two means and two sums of squares.
        mean = x.mean(axis=0)
        step = mean - self.mean
        self.squares += ((x - mean) ** 2).sum(axis=0) + step**2 * self.count * len(x) / total
        self.mean += step * len(x) / total
        norms = np.linalg.norm(x, axis=1)
        self.norm_lower = min(self.norm_lower, float(norms.min()))
        self.norm_upper = max(self.norm_upper, float(norms.max()))
        self.norm_mean += (float(norms.mean()) - self.norm_mean) * len(x) / total
        np.add.at(self.first, batch.first, 1)
        self.shared += int(batch.shared.sum())
        places = np.arange(self.count, total)
        # The k-th input takes a random place among the first k + 1, if that is in the sample.
        late = places >= len(self._sample)
        drawn = (self.random.random(len(x)) * (places + 1)).astype(np.int64)
        places = np.where(late, drawn, places)
        kept = places < len(self._sample)
        self._sample[places[kept]] = x[kept]
        self.count = total

    def quantiles(self) -> dict[float, np.ndarray]:
        """Of each feature: {q: (d,)}."""
        found = np.quantile(self.sample.astype(np.float64), QUANTILES, axis=0)
        return dict(zip(QUANTILES, found, strict=True))

    def norm_quantiles(self) -> dict[float, float]:
        norms = np.linalg.norm(self.sample.astype(np.float64), axis=1)
        return dict(zip(QUANTILES, np.quantile(norms, QUANTILES).tolist(), strict=True))

    def deviation(self) -> np.ndarray:
        return np.sqrt(self.squares / max(1, self.count))

    def as_dict(self) -> dict[str, Any]:
        """The statistics as plain values, for JSON."""
        seen = np.flatnonzero(self.first)
        return {
            "inputs": self.count,
            "features": self.features,
            "per_feature": {
                "minimum": self.lower.tolist(),
                "maximum": self.upper.tolist(),
                "mean": self.mean.tolist(),
                "deviation": self.deviation().tolist(),
                "quantiles": {str(q): v.tolist() for q, v in self.quantiles().items()},
            },
            "norm": {
                "minimum": self.norm_lower,
                "maximum": self.norm_upper,
                "mean": self.norm_mean,
                "quantiles": {str(q): v for q, v in self.norm_quantiles().items()},
            },
            "first": {
                "classes": self.classes,
                "seen": len(seen),
                "shared": self.shared,
                "counts": {str(k): int(self.first[k]) for k in seen.tolist()},
            },
            "sample": {"method": "reservoir, uniform, fixed seed", "inputs": len(self.sample)},
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything, for a file that `from_archive` reads back."""
        numbers = [self.norm_lower, self.norm_upper, self.norm_mean]
        return {
            "counts": np.array([self.count, self.shared, self.classes], dtype=np.int64),
            "norms": np.array(numbers), "lower": self.lower, "upper": self.upper,
            "mean": self.mean, "squares": self.squares, "first": self.first,
            "sample": self.sample, "random": np.array(json.dumps(self.random.bit_generator.state)),
        }  # fmt: skip

    @classmethod
    def from_archive(cls, arrays: OwnArchive, features: int, classes: int) -> Statistics:
        """Read back what `arrays` gave, for a head of that size."""
        count, shared, stored = arrays.array("counts", (3,), np.int64).tolist()
        if stored != classes:
            raise UncorkError(f"it is of a head of {stored:,} classes, not {classes:,}")
        found = cls(features, classes)
        found.count, found.shared = count, shared
        found.norm_lower, found.norm_upper, found.norm_mean = arrays.array(
            "norms", (3,), np.float64
        ).tolist()
        for name in ("lower", "upper", "mean", "squares"):
            setattr(found, name, arrays.array(name, (features,), np.float64).copy())
        found.first = arrays.array("first", (classes,), np.int64).copy()
        if arrays.count("sample") > len(found._sample):
            raise UncorkError("its sample is too large")
        sample = arrays.array("sample", (None, features), np.float32)
        found._sample[: len(sample)] = sample
        found.random.bit_generator.state = json.loads(arrays.text("random", _STATE))
        return found
