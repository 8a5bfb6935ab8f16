"""Thresholds: above which logit a label is predicted."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head


def logit_thresholds(head: Head, thresholds: float | np.ndarray | None) -> np.ndarray:
    """One logit for each label: (labels,) float64. 0 where none is given."""
    values = np.asarray(0.0 if thresholds is None else thresholds, dtype=np.float64)
    if values.ndim > 1 or (values.ndim == 1 and values.shape != (head.classes,)):
        raise UncorkError(
            f"thresholds of shape {values.shape}: expected one number, or one for each of "
            f"{head.classes} labels"
        )
    if not np.isfinite(values).all():
        raise UncorkError("a threshold is not finite")
    return np.full(head.classes, values, dtype=np.float64)


def logit(probability: float) -> float:
    """The logit whose sigmoid is a probability, as the float nearest to it: 0 for one half."""
    if not 0 < probability < 1:
        raise UncorkError(f"threshold {probability:g}: expected a probability between 0 and 1")
    if probability == 0.5:
        return 0.0
    return math.log(probability) - math.log1p(-probability)


def read_thresholds(text: str, head: Head, logits: bool = False) -> np.ndarray:
    """What `--threshold` means: a probability, or @FILE with one a line (or a .npy array)."""
    if not text.startswith("@"):
        try:
            values = [float(text)]
        except ValueError:
            raise UncorkError(
                f"threshold {text!r}: expected a number, or @FILE with one for each label"
            ) from None
    else:
        values = _from_file(Path(text[1:]))
        if len(values) != head.classes:
            raise UncorkError(
                f"{text[1:]}: {len(values)} thresholds for {head.classes} labels: give one each"
            )
    if not logits:
        values = [logit(value) for value in values]
    return logit_thresholds(head, values[0] if len(values) == 1 else np.array(values))


def _from_file(path: Path) -> list[float]:
    if not path.is_file():
        raise UncorkError(f"{path}: no such file")
    try:
        if path.suffix.lower() == ".npy":
            return [float(v) for v in np.load(path, allow_pickle=False).reshape(-1)]
        return [float(part) for part in path.read_text("utf-8-sig").replace(",", " ").split()]
    except (OSError, ValueError) as error:
        raise UncorkError(f"{path}: not thresholds ({error})") from None


def configured_thresholds(source: str, head: Head) -> tuple[np.ndarray, str] | None:
    """Thresholds that a model folder's config.json gives, as logits, and where from; None where it
    gives none. `threshold` or `thresholds`: a probability, a list, or one for each label's name."""
    path = Path(source) / "config.json"
    if not path.is_file():
        return None
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    for key in ("thresholds", "threshold"):
        given = config.get(key) if isinstance(config, dict) else None
        if isinstance(given, dict) and head.labels is not None:
            given = [given.get(name) for name in head.labels]
        values = given if isinstance(given, list) else [given]
        good = all(isinstance(v, int | float) and 0 < v < 1 for v in values)
        if given is not None and good and len(values) in (1, head.classes):
            logits = [logit(float(v)) for v in values if v is not None]
            chosen = logit_thresholds(head, logits[0] if len(logits) == 1 else np.array(logits))
            return chosen, f"{key!r} of {path}"
    return None
