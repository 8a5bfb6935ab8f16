"""Inputs driven towards the bounds of a domain, and how a run of many models is told.

`run(count, seed)` of each module here makes and tries that many models and returns `Figures`;
`command` makes the same a command line.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from uncork.domain import Ball, Box, Domain, LayerNorm, RMSNorm

LANES = 24  # inputs that climb side by side


@dataclass
class Figures:
    """What came of a run: models, domains that were claimed, by what, and violations in words."""

    models: int = 0
    known: int = 0
    inputs: int = 0
    by: Counter[str] = field(default_factory=Counter)
    stopped: Counter[str] = field(default_factory=Counter)
    doubtful: int = 0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rules = ", ".join(f"{name} {count}" for name, count in self.by.most_common())
        stops = ", ".join(f"{name} {count}" for name, count in self.stopped.most_common(12))
        lines = [
            f"{self.models} models, {self.known} domains, {self.doubtful} with doubts, "
            f"{self.inputs} inputs, {len(self.violations)} violations",
            f"  by what precedes the head: {rules}", f"  nothing known because of: {stops}",
        ]  # fmt: skip
        return "\n".join(lines + [f"  {text}" for text in self.violations[:20]])


def command(run: Callable[[int, int], Figures]) -> None:
    """`--count N --seed S`: ends with status 1 where something arrived outside its domain."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    begin = time.time()
    figures = run(options.count, options.seed)
    print(f"seed {options.seed}, {time.time() - begin:.0f} s: {figures}")
    raise SystemExit(bool(figures.violations))


def starts(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Inputs to begin with: ordinary ones, huge, tiny and constant ones, single large numbers."""
    size = (LANES, *shape)
    x = rng.normal(size=size) * 10.0 ** rng.integers(-3, 3, (LANES,) + (1,) * len(shape))
    x[1] = 0.0
    x[2] = rng.normal() * 10.0 ** rng.integers(-30, 30)
    x[3] = rng.normal(size=shape) * 1e30
    x[4] = rng.normal(size=shape) * 1e-30
    x[5] = 1e8 * (1 + 1e-7 * rng.integers(0, 3, shape))
    x[6] = 10.0 ** rng.uniform(-38, 37, shape) * rng.choice([-1, 1], shape)
    x[7] = rng.choice([-1.2784645, -0.7517916, -1.1924, -3.0, -20.0, 88.0, 0.0], shape)
    return x.astype(np.float32)


def climb(
    arrive: Callable[[np.ndarray], np.ndarray],
    x: np.ndarray,
    domain: Domain,
    rng: np.random.Generator,
    rounds: int,
) -> np.ndarray:
    """All that arrives while inputs (lanes, …) are moved towards the bounds: (many, d).

    `arrive` gives one or more rows for each input, in order: (lanes, rows, d).
    """
    seen = arrive(x)
    every = [seen]
    best = _outwards(seen, domain)
    for _ in range(rounds):
        step = rng.normal(size=x.shape) * 10.0 ** rng.integers(
            -8, 2, (len(x),) + (1,) * (x.ndim - 1)
        )
        few = rng.random(x.shape) < rng.choice([0.1, 1.0])
        with np.errstate(all="ignore"):
            moved = (x + step * few * (1 + np.abs(x) * rng.choice([0, 1]))).astype(np.float32)
        moved = np.clip(moved, -3e38, 3e38)
        seen = arrive(moved)
        every.append(seen)
        now = _outwards(seen, domain)
        better = now > best
        x, best = (
            np.where(better.reshape(-1, *(1,) * (x.ndim - 1)), moved, x),
            np.maximum(now, best),
        )
    return np.concatenate(every).reshape(-1, every[0].shape[-1])


def _outwards(rows: np.ndarray, domain: Domain) -> np.ndarray:
    """How far out each input's rows are: (lanes, rows, d) → (lanes,)."""
    with np.errstate(all="ignore"):
        if isinstance(domain, Box):
            low, high = domain.lower, domain.upper
            far = np.full(rows.shape, -np.inf)
            far = np.maximum(far, np.where(np.isfinite(high), rows - high, -np.inf))
            far = np.maximum(far, np.where(np.isfinite(low), low - rows, -np.inf))
        elif isinstance(domain, Ball):
            far = np.linalg.norm(rows, axis=-1)
        else:
            assert isinstance(domain, LayerNorm | RMSNorm)
            u = rows - (0 if domain.offset is None else domain.offset)
            u = u if domain.gain is None else np.where(domain.gain == 0, 0, u / domain.gain)
            far = np.linalg.norm(u, axis=-1)
        return np.nan_to_num(far.reshape(len(rows), -1), nan=-np.inf).max(axis=1)


def outside(rows: np.ndarray, domain: Domain, tolerance: float = 0.0) -> np.ndarray:
    """The finite rows that are not in the domain. (What is not a number is claimed by none.)"""
    rows = np.unique(rows[np.isfinite(rows).all(axis=1)], axis=0)
    if (
        len(rows) > 64 and isinstance(domain, RMSNorm) and not tolerance
    ):  # exact answers are dear: the outermost
        rows = rows[np.argsort(_outwards(rows[:, None], domain))[-64:]]
    return rows[~domain.contains(rows, tolerance)] if len(rows) else rows


def turned_round(logits: np.ndarray, output: np.ndarray) -> bool:
    """Whether the model clearly prefers a class that the head's scores clearly do not."""
    fine = np.isfinite(logits).all(axis=1) & np.isfinite(output).all(axis=1)
    logits, output = logits[fine], output[fine]
    if not len(logits):
        return False
    rows = np.arange(len(logits))
    ours, theirs = logits.argmax(axis=1), output.argmax(axis=1)
    size = np.abs(logits).max(axis=1) + 1e-30
    clear = logits[rows, ours] - logits[rows, theirs] > 1e-2 * size
    other = output[rows, theirs] - output[rows, ours]
    return bool((clear & (other > 1e-3 * (np.abs(output).max(axis=1) + 1e-30))).any())
